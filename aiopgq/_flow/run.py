"""Run, step 4: a row becomes a call, a call becomes an outcome.

Takes claimed jobs, gives settlements. One asyncio task a job, with a context of its own; `def` tasks in threads.
Time-out, cancel request and shutdown are three outcomes, whatever the handler makes of being cancelled, and
nothing a handler raises or returns takes the worker down.

If the process dies here, the run is over and nobody settles it: its job is rescued and the attempt is spent.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

import anyio
import anyio.to_thread
from msgspec.structs import replace

from aiopgq._store.patience import comes
from aiopgq._words.clock import monotonic
from aiopgq._words.conclusion import NotBegun, conclude, inconclusive, postpone
from aiopgq._words.current import Around, CurrentJob, StopReason, entered
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq._words.outcome import OUTCOMES
from aiopgq._words.task import TaskDefinition

__all__ = ["Runner"]

log = logging.getLogger("aiopgq.run")

# So many begin in one turn of the loop. Between turns it looks at its sockets: the next claim is under way while the
# rest begins, and what has ended is being written.
_AT_ONCE: Final = 100


class Transacting(Protocol):
    """Who begins and ends transactions of runs; `transact.py` has it."""

    async def begin(self, job: ClaimedJob) -> Any: ...

    async def end(
        self,
        transaction: Any,
        settlement: Settlement,
        failed: Callable[[BaseException], Settlement],
        *,
        commits: bool,
    ) -> Settlement | None: ...

    async def complete_within(self, job: ClaimedJob, connection: Any, result: str | None) -> None: ...

    async def confirm(self, settlement: Settlement) -> Settlement | None: ...


class Runner:
    """Runs the jobs of one incarnation.

    Args:
        tasks: The tasks known, by name and alias.
        worker: The worker's name, for the errors it records.
        threads: How many `def` tasks run at once.
        finished: Called with each settlement, and the seconds its run took, in the loop, when it has ended.
        transacting: Begins and ends the transactions of runs; None where there is no database.
        around: Goes around each run; None if nothing does.
        timed: Say with each settlement how long its run took.
        job_log: Write a line for each completed job.
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskDefinition],
        worker: str,
        threads: int,
        finished: Callable[[Settlement, float], None],
        transacting: Transacting | None = None,
        *,
        around: Around | None = None,
        timed: bool = False,
        max_result_bytes: int,
        job_log: bool,
    ) -> None:
        self._tasks = tasks
        self._worker = worker
        self._finished = finished
        self._transacting = transacting
        self._around = around
        self._timed = timed
        self._max_result_bytes = max_result_bytes
        self._job_log = job_log
        self._threads = anyio.CapacityLimiter(threads)
        self._loop = asyncio.get_running_loop()
        self.running: dict[UUID, CurrentJob] = {}
        self._fresh: list[tuple[CurrentJob, TaskDefinition]] = []
        self._begun = 0
        self._all_done = asyncio.Event()
        self._all_done.set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    def start(self, job: ClaimedJob) -> None:
        """Start a job; its settlement is given to `finished`."""
        if job.id in self.running:
            # Somebody took it from the run that still goes on here: two runs of a job never overlap.
            log.warning("job %s is put back: a run that has lost it has not ended yet", job.id)
            self._finished(postpone(job), 0.0)
            return
        definition = self._tasks[job.task]
        run = CurrentJob(job, monotonic(), None if self._transacting is None else self)
        if not self.running:
            self._all_done.clear()
        self.running[job.id] = run
        if self._fresh or self._begun == _AT_ONCE:
            self._fresh.append((run, definition))
        else:
            if not self._begun:
                self._loop.call_soon(self._next_turn)
            self._begun += 1
            self._loop.create_task(self._run(run, definition))
        timeout = definition.timeout if job.timeout is None else job.timeout.total_seconds()
        if timeout:
            run.deadline = run.began + timeout
            if run.deadline < self._alarm_at:
                self._set_alarm(run.deadline)

    def _next_turn(self) -> None:
        fresh, self._fresh = self._fresh[:_AT_ONCE], self._fresh[_AT_ONCE:]
        self._begun = len(fresh)
        if fresh:
            self._loop.call_soon(self._next_turn)
        for run, definition in fresh:
            self._loop.create_task(self._run(run, definition))

    def runs(self, job: ClaimedJob) -> bool:
        """Tell whether this claim of a job runs here."""
        return (run := self.running.get(job.id)) is not None and run.job is job

    def stop(self, run: CurrentJob, reason: StopReason) -> None:
        """Ask a run to end: an async handler is cancelled, a thread sees `should_stop`."""
        if reason not in ("shutdown", "lease") and (run.ending or run.stop_reason is not None):
            # A handler on its way out is not disturbed again by every beat that repeats the request.
            return
        run.stop_reason = run.stop_reason or reason
        # Without a handle it has not begun, and will not; or the end of its transaction has not, and is let be.
        if run.handle is not None and (run.ending or not self._tasks[run.task].threaded):
            run.handle.cancel()

    def stop_all(self, reason: StopReason) -> None:
        """Ask all runs to end."""
        for run in list(self.running.values()):
            self.stop(run, reason)

    async def done(self, within: float | None) -> bool:
        """Wait until no job runs, so many seconds at most, None for ever; tell whether that came true."""
        return await comes(self._all_done, within)

    def _set_alarm(self, at: float) -> None:
        # One timer for all runs, at the earliest deadline: one for each costs more than a short handler does.
        self._unset_alarm()
        self._alarm_at = at
        self._alarm = self._loop.call_later(at - monotonic(), self._stop_late)

    def _unset_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            self._alarm_at = math.inf

    def _stop_late(self) -> None:
        self._unset_alarm()
        now = monotonic()
        for run in list(self.running.values()):
            if run.deadline <= now:
                run.deadline = math.inf
                self.stop(run, "timeout")
        earliest = min((run.deadline for run in self.running.values()), default=math.inf)
        if earliest < math.inf:
            self._set_alarm(earliest)

    async def _run(self, run: CurrentJob, definition: TaskDefinition) -> None:
        entered(run)
        run.handle = asyncio.current_task(self._loop)
        value: Any = None
        failure: BaseException | None = None
        try:
            if run.stop_reason in ("shutdown", "lease"):
                raise NotBegun(0.0)  # noqa: TRY301  # nothing has happened, so nothing is spent
            if run.stop_reason is not None:
                raise asyncio.CancelledError  # noqa: TRY301  # asked to end before it began
            if self._around is None:
                value = await self._call(run, definition)
            else:
                value = await self._around(run, partial(self._proceed, run, definition))
        except BaseException as error:  # noqa: BLE001  # SystemExit of a handler must not end the worker
            failure = error
        self._finish(run, definition, value, failure)
        # This frame is in the traceback: without the knot, what the handler held goes at once.
        value = failure = None

    async def _proceed(self, run: CurrentJob, definition: TaskDefinition) -> Any:
        return await self._call(run, definition)

    def _call(self, run: CurrentJob, definition: TaskDefinition) -> Awaitable[Any]:
        # No coroutine around the handler's own: each run would pay for it.
        args, kwargs = definition.codec.decode(run.job.args)
        if definition.threaded:
            call = partial(definition.function, *args, **kwargs)
            return anyio.to_thread.run_sync(call, limiter=self._threads)
        if definition.transactional and self._transacting is not None:
            return self._call_in_transaction(self._transacting, run, partial(definition.function, *args, **kwargs))

        handler: Awaitable[Any] = definition.function(*args, **kwargs)
        return handler

    async def _call_in_transaction(
        self, transacting: Transacting, run: CurrentJob, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        run.transaction = await transacting.begin(run.job)
        return await call()

    def _finish(self, run: CurrentJob, definition: TaskDefinition, value: Any, failure: BaseException | None) -> None:
        # The task holds the run by its context.
        run.handle = None
        run.deadline = math.inf
        settlement = self._concluded(run, definition, value, failure)
        if run.reported:
            settlement = replace(settlement, report=run.take_report(monotonic()))
        if run.transaction is None and not run.settles_itself:
            self._close(run, settlement, failure)
            return
        run.ending = True
        # What the handler says by returning keeps its writes; a result that cannot be stored says nothing.
        commits = failure is None and (settlement.kind == "completed" or isinstance(value, OUTCOMES))
        # A task of its own: a cancellation on its way to the handler's does not reach a COMMIT.
        # It takes its own handle when it begins: one that is cancelled before never begins, and the slot is lost.
        self._loop.create_task(self._end(run, definition, settlement, failure, commits=commits))

    async def _end(
        self,
        run: CurrentJob,
        definition: TaskDefinition,
        settlement: Settlement,
        failure: BaseException | None,
        *,
        commits: bool,
    ) -> None:
        """Wait for the end of the transaction that decides what becomes of the job."""
        assert self._transacting is not None  # noqa: S101  # it has begun the transaction
        run.handle = asyncio.current_task(self._loop)
        transaction = run.transaction
        ended: Settlement | None

        def failed(error: BaseException) -> Settlement:
            return replace(self._concluded(run, definition, None, error), report=settlement.report)

        try:
            if transaction is None:
                ended = await self._transacting.confirm(settlement)
            else:
                ended = await self._transacting.end(transaction, settlement, failed, commits=commits)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the fence tells what became of the job
            ended = inconclusive(run.job, error, self._worker)
        run.handle = run.transaction = None
        if ended is None:
            self._close(run, replace(settlement, settled=True), failure, tells=False)
        else:
            self._close(run, ended, failure)
        if transaction is not None:
            await transaction.release()

    def _concluded(
        self, run: CurrentJob, definition: TaskDefinition, value: Any, failure: BaseException | None
    ) -> Settlement:
        try:
            return conclude(definition, run.job, value, failure, run.stop_reason, self._worker, self._max_result_bytes)
        except BaseException as error:  # noqa: BLE001  # a hostile exception or policy must not lose the job
            return inconclusive(run.job, error, self._worker)

    def _close(
        self, run: CurrentJob, settlement: Settlement, failure: BaseException | None, *, tells: bool = True
    ) -> None:
        del self.running[run.job.id]
        seconds = monotonic() - run.began
        if self._timed:
            settlement = replace(settlement, seconds=seconds)
        self._finished(settlement, seconds)
        if not self.running:
            self._all_done.set()
            self._unset_alarm()
        if tells:
            self._tell(run, settlement, failure, seconds)

    async def settle_with(self, run: CurrentJob, connection: Any, result: Any) -> None:
        """Complete the job of a run in the transaction of its handler.

        Raises:
            JobLost: It is no longer the run's.
            UsageError: The connection is not in a transaction.
            ValueError: The result cannot be encoded.
        """
        assert self._transacting is not None  # noqa: S101  # the run would not have called
        text = self._tasks[run.task].codec.encode_result(result, self._max_result_bytes)
        run.settles_itself = True
        await self._transacting.complete_within(run.job, connection, text)

    def _tell(self, run: CurrentJob, settlement: Settlement, failure: BaseException | None, seconds: float) -> None:
        late = run.stop_reason == "timeout"
        if settlement.kind == "completed" and not late and not (self._job_log and log.isEnabledFor(logging.INFO)):
            return
        job = run.job
        facts = {
            "job_id": job.id,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempts,
            "seconds": seconds,
        }
        match settlement.kind:
            case "completed":
                if late:
                    log.warning("%s %s completed after its timeout, in %.3f s", job.task, job.id, seconds, extra=facts)
                else:
                    log.info("completed %s %s in %.3f s", job.task, job.id, seconds, extra=facts)
            case "cancelled":
                log.info("cancelled %s %s after %.3f s", job.task, job.id, seconds, extra=facts)
            case "failed":
                log.error(
                    "dead letter: %s %s failed for good in attempt %d: %s",
                    job.task,
                    job.id,
                    job.attempts,
                    settlement.reason,
                    exc_info=failure,
                    extra=facts,
                )
            case "pending" if settlement.refund:
                log.info("put back %s %s, due in %.3g s", job.task, job.id, settlement.delay, extra=facts)
            case _:
                log.warning(
                    "retry: %s %s failed in attempt %d of %d, due again in %.3g s: %s",
                    job.task,
                    job.id,
                    job.attempts,
                    job.max_attempts,
                    settlement.delay,
                    settlement.reason,
                    extra=facts,
                )
