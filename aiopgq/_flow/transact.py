"""Transact, beside the path: a run and its settlement in one transaction.

Takes claimed jobs, gives a transaction in which the handler writes; when the handler has returned, its outcome is
written as the last statement of that transaction, by the fence: if the job belongs to somebody else by then, all is
rolled back. A handler may also settle its job in a transaction of its own.

If the process dies here, its transaction is rolled back, or was committed as a whole; if the answer to a COMMIT is
lost, nothing is sent but the question whether the job is still ours.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from aiopgq._store.foreign import check_connection, in_transaction, is_asyncpg
from aiopgq._store.jobs import Jobs, complete_foreign
from aiopgq._store.patience import Patience, comes
from aiopgq._store.transaction import Transaction, Transactions
from aiopgq._store.trouble import NoPartition
from aiopgq._words.clock import monotonic
from aiopgq._words.conclusion import NotBegun, postpone, replace_unstorable
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq.errors import JobLost, RowRefused, StoreError, StoreUnavailable, UsageError

__all__ = ["Transactor"]

log = logging.getLogger("aiopgq.transact")

_SHORTEST_PAUSE: Final = 1.0
_PARTITION_DAYS: Final = 14


class _Doubt(NamedTuple):
    """A transaction whose end is unknown, and what becomes of the job if it is still ours."""

    settlement: Settlement
    terminate: bool
    since: float


class Transactor:
    """The transactions of the runs of one worker process.

    Args:
        transactions: Their connections.
        jobs: The store, on a line of its own, to see what became of them.
        worker: The worker's name, for the errors it records.
        unsettled: Called with an outcome that is still to be written after all.
        keep: Whether finished jobs are kept.
    """

    def __init__(
        self,
        transactions: Transactions,
        jobs: Jobs,
        worker: str,
        unsettled: Callable[[Settlement], None],
        *,
        keep: bool,
    ) -> None:
        self._transactions = transactions
        self._jobs = jobs
        self._worker = worker
        self._unsettled = unsettled
        self._keep = keep
        self._doubts: list[_Doubt] = []
        self._arrived = asyncio.Event()
        self._certain = asyncio.Event()
        self._certain.set()
        self._beginning = Patience(log, "begin a transaction; its job is put back")
        self._asking = Patience(log, "see what became of a transaction")

    @property
    def unsettled(self) -> int:
        """How many transactions there are whose end is unknown."""
        return len(self._doubts)

    @property
    def stuck_for(self) -> float:
        """Seconds since the oldest of them."""
        return monotonic() - self._doubts[0].since if self._doubts else 0.0

    async def settled(self, within: float) -> bool:
        """Wait until none is unknown, so many seconds at most; tell whether that came true."""
        return await comes(self._certain, within)

    async def begin(self, job: ClaimedJob) -> Transaction:
        """Begin the transaction of a run.

        Raises:
            NotBegun: It could not be begun, or the job is no longer ours.
        """
        try:
            transaction = await self._transactions.begin(job.id, job.claim_id)
        except StoreError as error:
            raise NotBegun(max(_SHORTEST_PAUSE, self._beginning.failed(error))) from error
        self._beginning.worked()
        if transaction is None:
            # What is written about it meets the fence, and is said there.
            raise NotBegun(_SHORTEST_PAUSE)

        return transaction

    async def end(
        self,
        transaction: Transaction,
        settlement: Settlement,
        failed: Callable[[BaseException], Settlement],
        *,
        commits: bool,
    ) -> Settlement | None:
        """End the transaction of a run.

        Args:
            transaction: The transaction.
            settlement: The run's outcome.
            failed: Concludes the run anew, if its writes could not be committed.
            commits: Whether the handler's writes are kept.

        Returns:
            The outcome, written already or still to be written; None if the job was lost or the end is unknown.
        """
        instead = await self._settle(transaction, settlement, failed) if commits else settlement
        if instead is None:
            return await self._commit(transaction, settlement, failed)
        if not await transaction.roll_back():
            self._doubt(instead)
            return None

        return None if instead.settled else instead

    async def complete_within(self, job: ClaimedJob, connection: Any, result: str | None) -> None:
        """Complete a job in the transaction of its handler.

        Raises:
            JobLost: It belongs to somebody else.
            UsageError: The connection is not in a transaction.
            TypeError: It is of no kind we know.
        """
        check_connection(connection)
        if is_asyncpg(connection) and not in_transaction(connection):
            raise UsageError(
                "settle_with(connection) settles in your transaction, and none is open. Put it and your writes "
                "into `async with connection.transaction():`."
            )
        if not await complete_foreign(connection, self._jobs.schema, job, result, keep=self._keep):
            raise JobLost(job.id)

    async def confirm(self, settlement: Settlement) -> Settlement | None:
        """Look whether a job is settled that a handler said it would settle itself.

        Returns:
            The outcome to be written, if it is not; else that it is completed; None while that is unknown.
        """
        try:
            ours = await self._jobs.still_claimed(settlement.job, terminate=False)
        except (StoreError, asyncio.CancelledError):
            self._doubt(settlement, terminate=False)
            return None

        return settlement if ours else Settlement(settlement.job, "completed", settled=True)

    async def run(self) -> None:
        """See what became of transactions whose end is unknown, until cancelled."""
        while True:
            await self._arrived.wait()
            for doubt in list(self._doubts):
                try:
                    ours = await self._jobs.still_claimed(doubt.settlement.job, terminate=doubt.terminate)
                except StoreError as error:
                    await asyncio.sleep(self._asking.failed(error))
                    continue
                self._asking.worked()
                self._resolve(doubt.settlement, ours=ours)
                self._doubts.remove(doubt)
            if not self._doubts:
                self._arrived.clear()
                self._certain.set()

    async def _settle(
        self, transaction: Transaction, settlement: Settlement, failed: Callable[[BaseException], Settlement]
    ) -> Settlement | None:
        """Write an outcome inside the transaction; if that cannot be, return what is written instead, without it."""
        job, jobs = settlement.job, Jobs(transaction)
        try:
            if settlement.report is not None:
                await jobs.mark([settlement.report])
            if await jobs.settle(settlement.kind, [settlement], keep=self._keep):
                return None
        except NoPartition:
            await self._make_partition()
            return postpone(job)
        except RowRefused as error:
            return self._refused(settlement, error)
        except (StoreError, asyncio.CancelledError) as error:
            return failed(error)
        log.warning(
            "job %s is no longer ours, its outcome (%s) is dropped, and what its handler wrote is rolled back: "
            "another worker has it, or it is gone",
            job.id,
            settlement.kind,
            extra={"job_id": job.id, "task": job.task},
        )

        return replace(settlement, settled=True)

    async def _commit(
        self, transaction: Transaction, settlement: Settlement, failed: Callable[[BaseException], Settlement]
    ) -> Settlement | None:
        try:
            await transaction.commit()
        except (StoreUnavailable, asyncio.CancelledError) as error:
            self._doubt(failed(error))
            return None
        except StoreError as error:
            return failed(error)

        return replace(settlement, settled=True)

    def _refused(self, settlement: Settlement, error: RowRefused) -> Settlement:
        log.error("the outcome (%s) of job %s cannot be stored: %s", settlement.kind, settlement.job.id, error)
        return replace_unstorable(settlement, error, self._worker)

    def _doubt(self, settlement: Settlement, *, terminate: bool = True) -> None:
        self._doubts.append(_Doubt(settlement, terminate, monotonic()))
        self._certain.clear()
        self._arrived.set()

    def _resolve(self, settlement: Settlement, *, ours: bool) -> None:
        job = settlement.job
        if not ours:
            log.info("the transaction of job %s was committed, or the job was taken by others", job.id)
        elif not settlement.settled:
            log.warning(
                "the transaction of job %s was lost, with what its handler wrote; the job is %s (%s)",
                job.id,
                settlement.kind,
                settlement.reason or "released",
                extra={"job_id": job.id, "task": job.task},
            )
            self._unsettled(settlement)

    async def _make_partition(self) -> None:
        try:
            await self._jobs.make_partitions(_PARTITION_DAYS)
        except StoreError as error:
            log.debug("cannot make a partition of the archive yet: %s", error)
