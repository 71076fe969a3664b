"""Settle, step 5: an outcome becomes a row.

Takes outcomes one by one, gives them to PostgreSQL in batches, a statement for each kind. Self-clocking: with
nothing under way an outcome is written at once, and what arrives meanwhile goes together next. While the database
is away outcomes are kept and tried again; the claimer stops when too many wait.

If the process dies here, outcomes not yet written are lost and their jobs, still claimed, are rescued and run
again: at least once.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import Patience, comes
from aiopgq._store.trouble import NoPartition, NotSent
from aiopgq._words.batch import moderate
from aiopgq._words.clock import monotonic
from aiopgq._words.job import Settlement
from aiopgq.errors import RowRefused, StoreError, StoreUnavailable

__all__ = ["Settler"]

log = logging.getLogger("aiopgq.settle")

_PARTITION_DAYS: Final = 14
_MOST_REFUSALS: Final = 2
_PARTITION_PAUSE: Final = 0.05
# Short, because jobs are done and their outcomes wait.
_LONGEST_PAUSE: Final = 3.0
_URGED_PAUSE: Final = 0.2


class Settler:
    """Writes the outcomes of one incarnation.

    Args:
        jobs: The store, on a line of its own.
        keep: Whether completed and cancelled jobs go to the archive.
        refused: Turns an outcome PostgreSQL cannot store into one that it can.
        written: Called with each outcome that was written and changed its job; None if nobody asks.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        keep: bool,
        refused: Callable[[Settlement, RowRefused], Settlement],
        written: Callable[[Settlement], None] | None = None,
    ) -> None:
        self._jobs = jobs
        self._keep = keep
        self._refused = refused
        self._written = written
        self._waiting: list[Settlement] = []
        self._under_way = 0
        self._began = 0.0
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._wrote = asyncio.Event()
        self._patience = Patience(log, "settle", _LONGEST_PAUSE)
        self._urged = asyncio.Event()

    @property
    def unsettled(self) -> int:
        """How many outcomes are not yet written."""
        return len(self._waiting) + self._under_way

    @property
    def stuck_for(self) -> float:
        """Seconds the oldest outcomes have been under way, answered or not; 0 when none are."""
        # No failure is waited for: a line that swallows everything shows none for half a minute.
        return monotonic() - self._began if self._under_way else 0.0

    def add(self, settlement: Settlement) -> None:
        """Take an outcome; it is kept until written."""
        if not self._waiting:
            self._arrived.set()
            self._idle.clear()
        self._waiting.append(settlement)

    async def run(self) -> None:
        """Write outcomes until cancelled."""
        while True:
            await self._arrived.wait()
            # The jobs that end in this turn of the loop go together.
            await asyncio.sleep(0)
            taken = moderate(self._waiting, _size)
            batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
            if not self._waiting:
                self._arrived.clear()
            self._under_way, self._began = len(batch), monotonic()
            by_kind: defaultdict[str, list[Settlement]] = defaultdict(list)
            for one in batch:
                by_kind[one.kind].append(one)
            for kind, some in by_kind.items():
                await self._write(kind, some)
                self._under_way -= len(some)
            self._wrote.set()
            if not self.unsettled:
                self._idle.set()

    async def progress(self) -> None:
        """Wait until the outcomes under way are written."""
        self._wrote.clear()
        await self._wrote.wait()

    async def settled(self, within: float) -> bool:
        """Wait until nothing is unsettled, so many seconds at most; tell whether that came true.

        Pauses between tries are cut short meanwhile: what is not written now may never be.
        """
        self._urged.set()
        try:
            return await comes(self._idle, within)
        finally:
            self._urged.clear()

    async def _pause(self, seconds: float) -> None:
        """Wait before another try; a short moment only when somebody waits for the end."""
        if not self._urged.is_set():
            await comes(self._urged, seconds)
        if self._urged.is_set():
            await asyncio.sleep(min(seconds, _URGED_PAUSE))

    async def _write(self, kind: str, batch: Sequence[Settlement], *, refusals: int = 0) -> None:
        maybe_written = False
        while True:
            try:
                # What a run reported last belongs to the row before it leaves for the archive.
                if reports := [one.report for one in batch if one.report is not None]:
                    await self._jobs.mark(reports)
                ours = await self._jobs.settle(kind, batch, keep=self._keep)
            except NoPartition:
                await self._make_partition()
            except RowRefused as error:
                await self._find_culprit(kind, batch, error, refusals)
                return
            except StoreError as error:
                maybe_written = maybe_written or not isinstance(error, NotSent)
                await self._pause(self._patience.failed(error))
            else:
                self._patience.worked()
                if len(ours) < len(batch) and not maybe_written:
                    _tell_lost(batch, ours)
                if self._written is not None:
                    for one in batch:
                        if one.job.id in ours:
                            self._written(one)
                return

    async def _find_culprit(self, kind: str, batch: Sequence[Settlement], error: RowRefused, refusals: int) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._write(kind, batch[:middle], refusals=refusals)
            await self._write(kind, batch[middle:], refusals=refusals)
            return
        [one] = batch
        log.error("the outcome (%s) of job %s cannot be stored: %s", kind, one.job.id, error)
        # Others wait behind it: what replaces it may be refused as well, but not for ever.
        if refusals < _MOST_REFUSALS:
            storable = self._refused(one, error)
            await self._write(storable.kind, [storable], refusals=refusals + 1)

    async def _make_partition(self) -> None:
        pause = _PARTITION_PAUSE * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
        try:
            await self._jobs.make_partitions(_PARTITION_DAYS)
        except StoreUnavailable as error:
            # Behind somebody who reads the archive, mostly; a statement that waits stops all who settle.
            log.debug("cannot make a partition of the archive yet: %s", error)
        except StoreError as error:
            pause = self._patience.failed(error)
        await self._pause(pause)


def _size(settlement: Settlement) -> int:
    return len(settlement.result or "") + len(settlement.error or "")


def _tell_lost(batch: Sequence[Settlement], ours: set[UUID]) -> None:
    """An outcome that changed no row belongs to a run that lost its job: it is dropped, and said."""
    for one in batch:
        if one.job.id not in ours:
            log.warning(
                "job %s is no longer ours, its outcome (%s) is dropped: another worker has it, or it is gone",
                one.job.id,
                one.kind,
                extra={"job_id": one.job.id, "task": one.job.task},
            )
