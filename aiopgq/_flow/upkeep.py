"""Upkeep, beside the path: looks after the tables. Any worker may do it; each task is one idempotent statement.

If the process dies here, another worker's next pass does the rest.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from aiopgq._store.inbox import Inbox
from aiopgq._store.jobs import Jobs, Unserved
from aiopgq._store.patience import Patience
from aiopgq._store.workers import Workers
from aiopgq._words.clock import monotonic
from aiopgq.errors import StoreError, StoreUnavailable

__all__ = ["Upkeep"]

log = logging.getLogger("aiopgq.upkeep")

_PASS: Final = 15.0
_WARN_INTERVAL: Final = 60.0
_TABLES_INTERVAL: Final = 3600.0
_PARTITION_DAYS: Final = 14
_FORGET_WORKERS: Final = 86_400.0
_LOOK_AT: Final = 10_000
_BATCH: Final = 5_000
# Fewer jobs of unknown tasks cost a sweep nothing; more of them are taken out of the line.
_MANY_UNKNOWN: Final = 100
_MANY_DEAD: Final = 10_000


class Upkeep:
    """The upkeep done by one incarnation.

    Args:
        jobs: The store of jobs.
        workers: The store of workers.
        inbox: The store of messages received.
        tasks: Names the worker knows.
        retention: Seconds the archive keeps jobs.
        inbox_window: Seconds the inbox knows a message.
    """

    def __init__(
        self, jobs: Jobs, workers: Workers, inbox: Inbox, tasks: Sequence[str], retention: float, inbox_window: float
    ) -> None:
        self._jobs = jobs
        self._workers = workers
        self._inbox = inbox
        self._tasks = list(tasks)
        self._retention = retention
        self._inbox_window = inbox_window
        self._tables_at: float | None = None
        self._warned: dict[tuple[str, str], float] = {}
        self._patience = Patience(log, "look after the tables")

    async def run(self) -> None:
        """Do a pass now and then until cancelled."""
        while True:
            wait = _PASS * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
            try:
                await self.work()
            except StoreError as error:
                wait = max(wait, self._patience.failed(error))
            else:
                self._patience.worked()
            await asyncio.sleep(wait)

    async def work(self) -> None:
        """Do one pass."""
        while await self._jobs.free_known(self._tasks, _BATCH) == _BATCH:
            pass
        while await self._jobs.prune_holds(_BATCH) == _BATCH:
            pass
        await self._look_for_unserved()
        if self._tables_at is None or monotonic() - self._tables_at > _TABLES_INTERVAL:
            await self._keep_tables()

    async def _keep_tables(self) -> None:
        try:
            await self._jobs.make_partitions(_PARTITION_DAYS)
            await self._jobs.drop_partitions(self._retention)
        except StoreUnavailable as error:
            # Somebody reads the archive, a backup perhaps; no reason not to start or to complain.
            log.debug("the partitions of the archive wait for the next pass: %s", error)
        else:
            await self._workers.forget(_FORGET_WORKERS)
            await self._inbox.prune(self._inbox_window)
            self._tables_at = monotonic()

    async def _look_for_unserved(self) -> None:
        unserved = await self._jobs.unserved(_LOOK_AT)
        # Names come from rows and rows from anybody: what may be said again is forgotten.
        now = monotonic()
        self._warned = {key: at for key, at in self._warned.items() if now - at < _WARN_INTERVAL}
        for one in unserved:
            if (one.queue, one.task) not in self._warned:
                self._warned[one.queue, one.task] = now
                _warn(one)
        unknown = [one for one in unserved if not one.known]
        if sum(one.jobs for one in unknown) > _MANY_UNKNOWN:
            await self._jobs.hold_unknown(sorted({one.task for one in unknown}), _BATCH)


def _warn(one: Unserved) -> None:
    log.warning(
        "%d due jobs of task %r in queue %r have no live worker: %s",
        one.jobs,
        one.task,
        one.queue,
        "start one that serves the queue" if one.known else "no live worker knows the task",
        extra={"task": one.task, "queue": one.queue, "jobs": one.jobs},
    )
