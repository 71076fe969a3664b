"""Rescue, beside the path: takes jobs back from incarnations that died.

Takes the beats of all workers, gives their jobs back to the line when one has been seen silent for a whole lease.
Any worker may do it; declaring an incarnation dead and taking its jobs is one transaction.

If the process dies here, another worker's observation goes on.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final
from uuid import UUID

from aiopgq._store.patience import Patience
from aiopgq._store.workers import Workers
from aiopgq._words.clock import monotonic
from aiopgq._words.counted import counted
from aiopgq._words.observation import Observation
from aiopgq.errors import StoreError

__all__ = ["Rescuer"]

log = logging.getLogger("aiopgq.rescue")

# Three missed readings, or this process was not awake to read.
_GAPS: Final = 3


class Rescuer:
    """Watches the others, for one incarnation.

    Args:
        workers: The store.
        myself: Gives this worker's incarnation; it does not watch itself.
        interval: Seconds between readings.
        keep: Whether finished jobs are kept.
    """

    def __init__(self, workers: Workers, myself: Callable[[], UUID | None], interval: float, *, keep: bool) -> None:
        self._workers = workers
        self._myself = myself
        self._interval = interval
        self._keep = keep
        self._observation = Observation(_GAPS * interval)
        self._patience = Patience(log, "watch the other workers")

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            wait = self._interval * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
            try:
                await self.watch()
            except StoreError as error:
                self._observation.start_anew()
                wait = max(wait, self._patience.failed(error))
            else:
                self._patience.worked()
            await asyncio.sleep(wait)

    async def watch(self) -> None:
        """Read the beats once; rescue whoever was silent for a lease, and jobs that nobody owns any more."""
        began = monotonic()
        reading = await self._workers.beats()
        for silent in self._observation.silent(reading, began, monotonic()):
            if silent.id == self._myself():
                continue
            taken = await self._workers.rescue(silent.id, silent.beat, keep=self._keep)
            if taken is not None:
                log.warning(
                    "worker %s (%s) was silent for its whole lease of %g s: it is dead, %d of its jobs go back",
                    silent.name,
                    silent.id,
                    silent.lease,
                    taken,
                )
        orphans = await self._workers.rescue_orphans(keep=self._keep)
        if orphans:
            log.warning("put back: %s of workers that are dead", counted(orphans, "job"))
