"""Pulse, beside the path: says that the incarnation lives.

One beat a few seconds, for the incarnation, never for a job. The answer brings what the worker should know: how
many workers live, and which of its jobs somebody wants cancelled.

If the process dies here, its beat stands still, and after a lease others may take its jobs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from aiopgq._store.jobs import Beat, Jobs
from aiopgq._store.patience import Patience
from aiopgq.errors import StoreError

__all__ = ["BEAT_INTERVAL", "LEASE", "Pulse"]

log = logging.getLogger("aiopgq.pulse")

BEAT_INTERVAL: Final = 5.0
LEASE: Final = 60.0


class Pulse:
    """The beats of one incarnation.

    Args:
        jobs: The store.
        worker: The incarnation.
        draining: Tells whether it has stopped claiming.
        cancel: Asks a run to end because its cancel was requested.
    """

    def __init__(self, jobs: Jobs, worker: UUID, draining: Callable[[], bool], cancel: Callable[[UUID], None]) -> None:
        self._jobs = jobs
        self._worker = worker
        self._draining = draining
        self._cancel = cancel
        self._patience = Patience(log, "beat")
        self._last: Beat | None = None

    def fleet(self) -> int:
        """Return the number of live workers, as last heard; at least this one."""
        return max(1, self._last.fleet) if self._last else 1

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            try:
                await self.beat()
            except StoreError as error:
                await asyncio.sleep(min(BEAT_INTERVAL, self._patience.failed(error)))
            else:
                self._patience.worked()
                await asyncio.sleep(BEAT_INTERVAL)

    async def beat(self) -> None:
        """Beat once, and act on the answer."""
        self._last = await self._jobs.heartbeat(self._worker, draining=self._draining())
        for job_id in self._last.cancelled:
            self._cancel(job_id)
