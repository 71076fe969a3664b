"""Report, beside the path: how long runs get on.

Once a second, one statement marks the runs that have taken longer than that as running and writes what they
reported; short jobs cost no write between claim and settlement. The answer says which runs still own their job
and which somebody wants cancelled.

If the process dies here, a mark is missing; no job is affected.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import Patience
from aiopgq._words.clock import monotonic
from aiopgq._words.current import CurrentJob
from aiopgq.errors import StoreError

__all__ = ["Reporter"]

log = logging.getLogger("aiopgq.report")

_TICK: Final = 1.0


class Reporter:
    """Marks the long runs of one incarnation.

    Args:
        jobs: The store.
        running: The runs, by job id.
        cancel: Asks a run to end because its cancel was requested.
    """

    def __init__(self, jobs: Jobs, running: Mapping[UUID, CurrentJob], cancel: Callable[[UUID], None]) -> None:
        self._jobs = jobs
        self._running = running
        self._cancel = cancel
        self._marked: set[UUID] = set()
        self._patience = Patience(log, "mark running jobs")

    async def run(self) -> None:
        """Mark until cancelled."""
        while True:
            await asyncio.sleep(_TICK)
            try:
                await self.mark()
            except StoreError as error:
                await asyncio.sleep(self._patience.failed(error))
            else:
                self._patience.worked()

    async def mark(self) -> None:
        """Write what is new about the runs that have taken longer than a tick."""
        now = monotonic()
        self._marked &= self._running.keys()
        # A row that is being settled in a transaction is locked; a mark would wait, and all others with it.
        free = [run for run in self._running.values() if not (run.ending or run.settles_itself)]
        marks = [
            run.take_report(now)
            for run in free
            if run.reported or (run.id not in self._marked and now - run.began >= _TICK)
        ]
        if not marks:
            return
        try:
            ours = await self._jobs.mark(marks)
        except StoreError:
            for mark in marks:
                if (still := self._running.get(mark.id)) is not None:
                    still.reported, still.events = True, still.events + mark.events
            raise
        for job_id, cancel_requested in ours.items():
            self._marked.add(job_id)
            if cancel_requested:
                self._cancel(job_id)
