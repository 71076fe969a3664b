"""The job that is running here: what a handler may ask and report."""

import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, overload
from uuid import UUID

import msgspec

from aiopgq._words.failure import storable
from aiopgq._words.job import ClaimedJob, Mark
from aiopgq.errors import ConfigError, NoCurrentJob, UsageError

__all__ = ["Around", "CurrentJob", "StopReason", "current_job", "entered"]

StopReason = Literal["timeout", "cancel", "shutdown", "lease"]
_LONGEST_STAGE: Final = 200


class _Cancellable(Protocol):
    def cancel(self) -> Any: ...


class _Home(Protocol):
    async def settle_with(self, run: "CurrentJob", connection: Any, result: Any) -> None: ...


class CurrentJob:
    """The job that runs here; get it from `current_job()`.

    Attributes:
        job: The row as it was claimed.
        began: Monotonic seconds when the run began.
        stop_reason: Why the run was asked to end: timeout, cancel, shutdown, lease (others may run it now), or None.
    """

    __slots__ = (
        "_headers",
        "_home",
        "began",
        "deadline",
        "ending",
        "events",
        "handle",
        "job",
        "percent",
        "reported",
        "settles_itself",
        "stage",
        "stop_reason",
        "transaction",
    )

    def __init__(self, job: ClaimedJob, began: float, home: _Home | None = None) -> None:
        self.job = job
        self.began = began
        self._home = home
        self.transaction: Any = None
        self.settles_itself = False
        self.ending = False
        self.handle: _Cancellable | None = None
        self.deadline = math.inf
        self.stop_reason: StopReason | None = None
        self.percent: float | None = None
        self.stage: str | None = None
        self.events = 0
        self.reported = False
        self._headers: dict[str, Any] | None = None

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self.job.id

    @property
    def task(self) -> str:
        """The name of its task, as stored."""
        return self.job.task

    @property
    def queue(self) -> str:
        """Its queue."""
        return self.job.queue

    @property
    def attempt(self) -> int:
        """Which run this is, from 1."""
        return self.job.attempts

    @property
    def max_attempts(self) -> int:
        """How many runs there may be."""
        return self.job.max_attempts

    @property
    def created_at(self) -> datetime:
        """When it was enqueued, by the clock of PostgreSQL."""
        return datetime.fromtimestamp(self.job.created, UTC)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers given when it was enqueued."""
        headers = self._headers
        if headers is None:
            headers = self._headers = msgspec.json.decode(self.job.headers) if self.job.headers else {}
        return headers

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to end; `def` tasks look at it, since a thread cannot be cancelled."""
        return self.stop_reason is not None

    @property
    def connection(self) -> Any:
        """The asyncpg connection of a transactional task: what it writes there commits together with its outcome.

        It is in a transaction; `async with current_job().connection.transaction():` makes a savepoint.

        Raises:
            ConfigError: The task is not transactional, or the run has ended.
        """
        if self.transaction is None:
            raise ConfigError(
                "current_job().connection",
                f"task {self.task!r} has none. It takes @task(transactional=True), and a worker that runs it.",
            )
        return self.transaction.connection

    async def settle_with(self, connection: Any, result: Any = None) -> None:
        """Complete the job inside a transaction that the handler has opened itself, as its last statement.

        If that transaction commits, the job is completed, whatever the handler does afterwards; if it rolls back,
        the job is settled by what the handler returns or raises, as usual.

        Args:
            connection: An asyncpg Connection, or a SQLAlchemy AsyncSession or AsyncConnection.
            result: The job's result, instead of what the handler returns.

        Raises:
            JobLost: The job belongs to another worker by now; let it pass, so that the transaction rolls back.
            UsageError: The task is transactional, no transaction is open, or no worker runs it.
            ValueError: The result cannot be encoded.
            TypeError: connection is of no kind we know; the message lists what works.

        Example:
            >>> async def charge(order_id: int) -> None:
            ...     async with Session.begin() as session:
            ...         session.add(Charge(order_id=order_id))
            ...         await current_job().settle_with(session)
        """
        if self._home is None:
            raise UsageError("settle_with(…) settles a job in the database, and no worker has claimed this one.")
        if self.transaction is not None:
            raise UsageError(f"Task {self.task!r} is transactional: it is settled by what it returns.")
        await self._home.settle_with(self, connection, result)

    def progress(self, percent: float, *, stage: str | None = None) -> None:
        """Report how far the run is; written together with others about once a second.

        Args:
            percent: 0 to 100.
            stage: What it is doing, up to 200 characters.

        Raises:
            ConfigError: percent is not between 0 and 100.
        """
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:  # noqa: PLR2004  # percent
            raise ConfigError("progress(…)", f"takes 0 to 100, not {percent!r}.")
        self.percent = float(percent)
        if stage is not None:
            self.stage = storable(str(stage), _LONGEST_STAGE)
        self.events += 1
        self.reported = True

    def take_report(self, now: float) -> Mark:
        """Take what was reported since the last time, to be written."""
        # Down first: what a thread reports from here on is taken the next time.
        self.reported = False
        events, self.events = self.events, 0

        return Mark(self.id, self.job.claim_id, now - self.began, self.percent, self.stage, events)


# What goes around a run: it is given the job, and what gives the rest of it.
Around: TypeAlias = Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]

_current: Final[ContextVar[CurrentJob]] = ContextVar("aiopgq_current_job")
_Default = TypeVar("_Default")
_NOTHING: Final[Any] = object()


def entered(run: CurrentJob) -> None:
    """Make a job the current one of this context."""
    _current.set(run)


@overload
def current_job() -> CurrentJob: ...
@overload
def current_job(default: _Default) -> CurrentJob | _Default: ...
def current_job(default: Any = _NOTHING) -> Any:
    """Return the job that runs here, also in its threads and child tasks.

    Args:
        default: What to return outside a job.

    Raises:
        NoCurrentJob: No job runs here and no default was given.

    Example:
        >>> current_job(default=None) is None
        True
    """
    job = _current.get(default)
    if job is _NOTHING:
        raise NoCurrentJob

    return job
