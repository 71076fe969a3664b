"""A task as user code holds it: still callable as its function, and able to enqueue calls of itself."""

from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from uuid import UUID

import anyio.from_thread

from aiopgq._store.foreign import check_connection
from aiopgq._words import options
from aiopgq._words.options import UNSET, JobOptions, Unset
from aiopgq._words.outcome import Outcome
from aiopgq._words.task import TaskDefinition
from aiopgq._words.unique import Unique, uniqueness
from aiopgq.call import Call
from aiopgq.errors import ArgumentError, ConfigError, TaskNotIncluded, UsageError
from aiopgq.handle import Home, JobHandle
from aiopgq.schedules import Declared
from aiopgq.terms import Terms

__all__ = ["Enqueuer", "Task", "TaskCore", "ThreadTask"]

P = ParamSpec("P")
R = TypeVar("R")
X_co = TypeVar("X_co", covariant=True)


class EnqueueHome(Home, Protocol):
    """What a task needs of its App."""

    @property
    def max_args_bytes(self) -> int: ...

    async def enqueue_one(self, call: Call[Any]) -> JobHandle[Any]: ...


class Enqueuer(Generic[P, X_co]):
    """A task with options for one call: `send.options(delay=60).enqueue(42)`."""

    __slots__ = ("_connection", "_options", "_task", "_terms")

    def __init__(self, task: "TaskCore", chosen: JobOptions, connection: Any = None) -> None:
        self._task = task
        self._options = chosen
        self._connection = connection
        self._terms: Terms | None = None

    def __repr__(self) -> str:
        return f"<task {self._task.definition.name!r}>"

    async def enqueue(self: "Enqueuer[P, R | Outcome]", /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call of the task; return when its row is committed.

        With `options(connection=…)` the row is inserted in the caller's transaction, and becomes a job when he
        commits. Otherwise it is written together with the calls of other coroutines, each in a row of its own:
        one that PostgreSQL refuses does not harm the others. Cancelling the caller does not undo the row.

        Raises:
            ArgumentError: The call does not fit the task. No SQL was sent.
            TaskNotIncluded: The task belongs to a Router that no App includes.
            AppNotOpen: No connection was given and the App is not open.
            RowRefused: PostgreSQL cannot store it.
            UniqueKeyHeld: Another transaction has written its unique key, and does not end.
            QueueFull: The queue has as many ready jobs as `max_pending` allows.
            StoreUnavailable: PostgreSQL did not answer for ten seconds; safe to repeat with the same id.
            EnqueueUnknown: The answer to the commit was lost, and finished jobs are not kept.

        Example:
            >>> async def welcome() -> None:
            ...     job = await send_welcome.enqueue(42, locale="de")
            ...     print(await job.result())
        """
        call = (self._terms or self._agree()).call(self._connection, args, kwargs)
        return await self._task.home().enqueue_one(call)

    def enqueue_sync(self: "Enqueuer[P, R | Outcome]", /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue from a thread of the event loop: a `def` endpoint of FastAPI, a `def` task.

        Raises:
            UsageError: The thread was not started by anyio, so there is no loop to ask.
            AiopgqError: What `enqueue` raises.
        """
        try:
            return anyio.from_thread.run(partial(self.enqueue, *args, **kwargs))
        except anyio.NoEventLoopError as error:
            raise UsageError(
                f"Task {self._task.definition.name!r}: enqueue_sync works in threads that anyio started (def "
                "endpoints, def tasks, anyio.to_thread.run_sync). In a coroutine, await enqueue(…)."
            ) from error

    def call(self: "Enqueuer[P, R | Outcome]", /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode a call for `jobs.enqueue_many`.

        Raises:
            ArgumentError: The call does not fit the task.
        """
        return (self._terms or self._agree()).call(self._connection, args, kwargs)

    def _agree(self) -> Terms:
        self._terms = terms = Terms(self._task.home(), self._task.definition, self._options)
        return terms

    def handle(self: "Enqueuer[P, R | Outcome]", job_id: UUID) -> JobHandle[R]:
        """Make a handle on a job of this task from its id, in any process.

        Raises:
            TaskNotIncluded: The task belongs to a Router that no App includes.
        """
        home = self._task.home()
        return JobHandle(home, options.identity("handle(…)", job_id), self._task.definition.codec)

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        headers: Mapping[str, str] | None = None,
        id: UUID | None = None,  # noqa: A002  # the option is named after the column
        limit: str | int | UUID | None = None,
        connection: Any = None,
        unique: str | Unique | Unset | None = UNSET,
    ) -> "Enqueuer[P, X_co]":
        """Set options for one call; what is not given stays as the task says.

        Args:
            queue: Another queue.
            priority: Any smallint; higher runs first.
            delay: Seconds (or a timedelta) from now until it is due, by the clock of PostgreSQL.
            run_at: An aware datetime when it is due.
            max_attempts: How many runs it may take, the first included.
            timeout: Seconds (or a timedelta) one run may take; None for no limit.
            headers: Strings carried with the job, for tracing and the like.
            id: The job's id. Enqueuing an id that is already known changes nothing and gives its handle.
            limit: The key to be counted under, instead of what the limit of the task gives.
            connection: An asyncpg Connection or a SQLAlchemy AsyncSession or AsyncConnection: the row is
                inserted in its transaction.
            unique: The call's unique key (`"args"` makes it of the arguments), or a Unique; None for none.

        Raises:
            ArgumentError: An option cannot be used.
            TypeError: connection is of no kind we know; the message lists what works.
        """
        name = self._task.definition.name
        if connection is not None:
            check_connection(connection)
        try:
            chosen = JobOptions(
                queue=None if queue is None else options.name("queue", queue),
                priority=None if priority is None else options.priority("priority", priority),
                delay=None if delay is None else options.seconds("delay", delay),
                run_at=None if run_at is None else options.moment("run_at", run_at),
                max_attempts=None if max_attempts is None else options.attempts("max_attempts", max_attempts),
                timeout=timeout
                if timeout is None or isinstance(timeout, Unset)
                else options.seconds("timeout", timeout),
                headers=None if headers is None else options.headers("headers", headers),
                id=None if id is None else options.identity("id", id),
                unique=unique
                if unique is None or isinstance(unique, Unset)
                else uniqueness(unique, self._task.uniqueness(self._options)),
                limit=limit,
            )
        except ConfigError as error:
            raise ArgumentError(name, error.setting, error.reason) from None
        if delay is not None and run_at is not None:
            raise ArgumentError(name, "run_at", "give delay or run_at, not both.")
        if chosen.timeout == 0:
            raise ArgumentError(name, "timeout", "no run takes 0 seconds; None is no limit.")

        return Enqueuer(self._task, self._options.merged(chosen), connection or self._connection)


class TaskCore:
    """What the typed classes share: the definition, and the App it will belong to."""

    __slots__ = ("_home", "definition", "face", "schedules")

    def __init__(self, definition: TaskDefinition) -> None:
        self.definition = definition
        self.face: Any = None
        self.schedules: list[Declared] = []
        self._home: EnqueueHome | None = None

    def bind(self, home: EnqueueHome) -> None:
        """Make it a task of an App, which knows its full name."""
        self.definition.codec.task = self.definition.name
        self._home = home

    @property
    def bound(self) -> bool:
        """Whether an App knows it."""
        return self._home is not None

    def home(self) -> EnqueueHome:
        """Return its App.

        Raises:
            TaskNotIncluded: It has none.
        """
        if self._home is None:
            raise TaskNotIncluded(self.definition.name)
        return self._home

    def uniqueness(self, chosen: JobOptions) -> Unique | None:
        """Return what the keys of its jobs are made of."""
        return self.definition.unique if isinstance(chosen.unique, Unset) else chosen.unique


class Task(Enqueuer[P, X_co]):
    """A decorated coroutine function: still callable as itself, and able to enqueue calls of itself."""

    __slots__ = ("__dict__",)

    def __init__(self, core: TaskCore) -> None:
        super().__init__(core, JobOptions())
        update_wrapper(self, core.definition.function)

    @property
    def name(self) -> str:
        """The name its jobs carry."""
        return self._task.definition.name

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, X_co]:
        """Call the function itself; nothing is enqueued."""
        result: Coroutine[Any, Any, X_co] = self._task.definition.function(*args, **kwargs)
        return result


class ThreadTask(Enqueuer[P, X_co]):
    """A decorated `def` function: still callable as itself; its jobs run in threads."""

    __slots__ = ("__dict__",)

    def __init__(self, core: TaskCore) -> None:
        super().__init__(core, JobOptions())
        update_wrapper(self, core.definition.function)

    @property
    def name(self) -> str:
        """The name its jobs carry."""
        return self._task.definition.name

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> X_co:
        """Call the function itself; nothing is enqueued."""
        result: X_co = self._task.definition.function(*args, **kwargs)
        return result
