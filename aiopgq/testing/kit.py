"""Run a task as a worker would, without a database; and look at what was enqueued."""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, overload
from uuid import UUID

import msgspec

from aiopgq._flow.run import Runner
from aiopgq._store.foreign import check_connection, fetch_foreign
from aiopgq._store.statements import statement
from aiopgq._words import options
from aiopgq._words.clock import now, uuid7
from aiopgq._words.codec import ResultNotEncodable
from aiopgq._words.current import Around, CurrentJob
from aiopgq._words.job import ClaimedJob, NewJob, Settlement
from aiopgq._words.options import UNSET, Unset
from aiopgq._words.outcome import OUTCOMES, Outcome
from aiopgq._words.task import TaskDefinition
from aiopgq.call import Call
from aiopgq.errors import ConfigError
from aiopgq.state import lent_state
from aiopgq.task import Enqueuer

__all__ = ["Completed", "EnqueuedJob", "Run", "enqueued", "perform"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# As an App has it unless told otherwise.
_MAX_RESULT_BYTES: Final = 1024 * 1024
_WORKER: Final = "perform"


@dataclass(frozen=True, slots=True)
class Completed(Generic[R_co]):
    """The outcome of a run that completed its job.

    Attributes:
        result: What the task returned, as `JobHandle.result()` would give it: encoded and decoded.
    """

    result: R_co


@dataclass(frozen=True, slots=True)
class Run(Generic[R_co]):
    """One run of a task, and what a worker would have written about it.

    Attributes:
        outcome: Completed, or the Retry, Snooze, Cancel or Fail that was returned or raised, or the exception
            (a TimeoutError when the run took longer than its timeout).
        error: The exception a handler raised that is no outcome, or the TimeoutError; None without one.
        settlement: What becomes of the job: completed, retry (pending again, an attempt spent), snoozed
            (pending again, no attempt spent), cancelled, or failed (a dead letter).
        delay: Seconds until it is due again, for retry and snoozed.
        reason: The last error as stored, or why it was cancelled or failed.
        progress: The percentage reported last; None if there was none.
        stage: The stage reported last.
    """

    outcome: Completed[R_co] | Outcome | BaseException
    error: BaseException | None
    settlement: Literal["completed", "retry", "snoozed", "cancelled", "failed"]
    delay: float | None
    reason: str | None
    progress: float | None
    stage: str | None

    @property
    def result(self) -> R_co:
        """What the task returned, as `JobHandle.result()` would give it.

        Raises:
            AssertionError: The run did not complete its job; the exception of the task is its cause.
        """
        if isinstance(self.outcome, Completed):
            return self.outcome.result
        again = "" if self.delay is None else f", due again in {self.delay:.3g} s"
        reason = f": {self.reason}" if self.reason else ""
        raise AssertionError(f"the run gave no result, its job is {self.settlement}{again}{reason}") from self.error


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A pending job.

    Attributes:
        id: The job's id.
        task: The name of its task, as stored.
        queue: Its queue.
        priority: Higher runs first.
        run_at: When it is due.
        headers: The headers given when it was enqueued.
        args: The arguments by name, as the task would get them; those that were not passed are missing.
    """

    id: UUID
    task: str
    queue: str
    priority: int
    run_at: datetime
    headers: dict[str, Any]
    args: dict[str, Any]


@overload
async def perform(
    task: Call[R],
    /,
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    headers: Mapping[str, str] | None = None,
    state: Any = UNSET,
    connection: Any = None,
) -> Run[R]: ...
@overload
async def perform(
    task: Enqueuer[..., R | Outcome],
    /,
    *args: Any,
    attempt: int = 1,
    max_attempts: int | None = None,
    headers: Mapping[str, str] | None = None,
    state: Any = UNSET,
    connection: Any = None,
    **kwargs: Any,
) -> Run[R]: ...
async def perform(
    task: Any,
    /,
    *args: Any,
    attempt: int = 1,
    max_attempts: int | None = None,
    headers: Mapping[str, str] | None = None,
    state: Any = UNSET,
    connection: Any = None,
    **kwargs: Any,
) -> Run[Any]:
    """Run a task once, as a worker would, without a database.

    The arguments are encoded and decoded, `current_job()` works, `def` tasks run in a thread, the timeout holds.
    Nothing is enqueued or written.

    Args:
        task: The task, also with `options(…)`; or a call of it, `send.call(42, state="new")`, which is typed and
            leaves the task free to have parameters named like those of `perform`.
        args: Positional arguments of the task.
        attempt: Which run it is. Default 1.
        max_attempts: How many runs there may be. Default: what the call or the task says.
        headers: Headers of the job. Default: those of the call.
        state: What `jobs.state` is during the run.
        connection: What `current_job().connection` of a transactional task is; its transaction is left to you.
        kwargs: Keyword arguments of the task.

    Raises:
        ArgumentError: The call does not fit the task.
        TaskNotIncluded: The task belongs to a Router that no App includes.
        ConfigError: An option cannot be used.

    Example:
        >>> async def test_a_missing_user_is_looked_for_again() -> None:
        ...     run = await perform(send_welcome, 42, attempt=3, state=Fakes(users={}))
        ...     assert run.settlement == "retry"
    """
    if isinstance(task, Call):
        if args or kwargs:
            raise ConfigError("perform", "a call has its arguments already.")
        call = task
    else:
        call = task.call(*args, **kwargs)
    job = _claimed(call.job, attempt, max_attempts, headers)
    home: Any = call.home
    runner = _Once(call.definition, home.around_run)
    lent = None if isinstance(state, Unset) else lent_state.set(state)
    try:
        runner.start(job)
        if connection is not None:
            runner.running[job.id].transaction = _Lent(connection)
    finally:
        if lent is not None:
            lent_state.reset(lent)
    try:
        return await runner.ended
    except asyncio.CancelledError:
        runner.stop_all("cancel")
        raise


async def enqueued(task: Enqueuer[..., Any], *, connection: Any = None) -> list[EnqueuedJob]:
    """List the pending jobs of a task, in the order they were enqueued.

    Args:
        task: The task.
        connection: An asyncpg Connection or a SQLAlchemy AsyncSession or AsyncConnection: what its transaction
            sees is listed, although it may be rolled back. Default: a connection of the opened App.

    Raises:
        AppNotOpen: No connection was given and the App is not open.
        ArgumentError: The arguments of a job do not fit the task.
        StoreUnavailable: PostgreSQL did not answer.
        TypeError: connection is of no kind we know.

    Example:
        >>> async def test_who_signs_up_is_welcomed(session: AsyncSession) -> None:
        ...     user = await sign_up(session, "ada@example.org")
        ...     [job] = await enqueued(send_welcome, connection=session)
        ...     assert job.args == {"user_id": user.id}
    """
    core = task._task  # noqa: SLF001  # the kit looks behind the face
    definition = core.definition
    names = [definition.name, *definition.aliases]
    home: Any = core.home()
    if connection is None:
        rows = await home.store("look at enqueued jobs").enqueued(names)
    else:
        check_connection(connection)
        rows = await fetch_foreign(connection, statement("enqueued", home.schema), ["text[]"], [names])

    return [
        EnqueuedJob(
            id=job_id,
            task=name,
            queue=queue,
            priority=priority,
            run_at=run_at,
            headers=msgspec.json.decode(headers) if headers else {},
            args=_arguments(definition, args),
        )
        for job_id, name, queue, priority, run_at, args, headers in rows
    ]


class _Lent(NamedTuple):
    """A transaction that is begun and ended by the test."""

    connection: Any


class _Once(Runner):
    """Runs one job, and keeps what a worker would have settled."""

    def __init__(self, definition: TaskDefinition, around: Around | None) -> None:
        self._settlements: list[Settlement] = []
        self.ended: asyncio.Future[Run[Any]] = asyncio.get_running_loop().create_future()
        super().__init__(
            {definition.name: definition},
            _WORKER,
            1,
            lambda settlement, _: self._settlements.append(settlement),
            around=around,
            max_result_bytes=_MAX_RESULT_BYTES,
            job_log=False,
        )

    def _finish(self, run: CurrentJob, definition: TaskDefinition, value: Any, failure: BaseException | None) -> None:
        run.transaction = None
        super()._finish(run, definition, value, failure)
        if not self.ended.done():
            self.ended.set_result(_seen(run, definition, value, failure, self._settlements[-1]))


def _claimed(new: NewJob, attempt: int, max_attempts: int | None, headers: Mapping[str, str] | None) -> ClaimedJob:
    attempt = options.attempts("attempt", attempt)
    most = new.max_attempts if max_attempts is None else options.attempts("max_attempts", max_attempts)
    if attempt > most:
        raise ConfigError("attempt", f"{attempt} is more than the {most} there may be.")
    text = new.headers if headers is None else msgspec.json.encode(options.headers("headers", headers)).decode()

    return ClaimedJob(
        id=new.id,
        queue=new.queue,
        task=new.task,
        priority=new.priority,
        place=1,
        args=new.args,
        headers=text,
        attempts=attempt,
        max_attempts=most,
        timeout=None if new.timeout is None else timedelta(seconds=new.timeout),
        created=now().timestamp(),
        claim_id=uuid7(),
    )


def _seen(
    run: CurrentJob, definition: TaskDefinition, value: Any, failure: BaseException | None, settlement: Settlement
) -> Run[Any]:
    """Put what happened and what would be written side by side."""
    error: BaseException | None = None
    outcome: Completed[Any] | Outcome | BaseException
    if isinstance(failure, OUTCOMES):
        outcome = failure
    elif failure is not None:
        outcome = error = _late(failure) if run.stop_reason == "timeout" else failure
    elif isinstance(value, OUTCOMES):
        outcome = value
    elif settlement.kind == "completed":
        outcome = Completed(definition.codec.decode_result(settlement.result))
    else:
        outcome = error = ResultNotEncodable(str(settlement.reason))
    again = settlement.kind == "pending"

    return Run(
        outcome=outcome,
        error=error,
        settlement=("snoozed" if settlement.refund else "retry") if settlement.kind == "pending" else settlement.kind,
        delay=settlement.delay if again else None,
        reason=settlement.reason,
        progress=run.percent,
        stage=run.stage,
    )


def _late(failure: BaseException) -> TimeoutError:
    late = TimeoutError("the run took longer than its timeout")
    late.__cause__ = failure

    return late


def _arguments(definition: TaskDefinition, text: str) -> dict[str, Any]:
    """Decode arguments, and give those passed by position their names."""
    args, kwargs = definition.codec.decode(text)
    names = list(inspect.signature(definition.function).parameters)

    return {**dict(zip(names, args, strict=False)), **kwargs}
