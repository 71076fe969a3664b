"""Declaring tasks: the decorator, and routers for reusable packages."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from aiopgq._words import options
from aiopgq._words.backoff import BackoffPolicy
from aiopgq._words.limit import Key, Limit, OnDead
from aiopgq._words.task import default_name, define, where_defined
from aiopgq._words.unique import Unique
from aiopgq.errors import ConfigError, TaskNameTaken
from aiopgq.schedules import DeclaresSchedules
from aiopgq.task import Enqueuer, Task, TaskCore, ThreadTask

__all__ = ["Declares", "Router"]

P = ParamSpec("P")
X_co = TypeVar("X_co", covariant=True)


class _Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, X_co]], /) -> Task[P, X_co]: ...  # type: ignore[overload-overlap]  # a coroutine function comes first
    @overload
    def __call__(self, function: Callable[P, X_co], /) -> ThreadTask[P, X_co]: ...


class Declares(DeclaresSchedules):
    """Something tasks are declared on: an App, or a Router that an App includes later.

    Args:
        queue: The queue of tasks that name none.
    """

    def __init__(self, *, queue: str = options.DEFAULT_QUEUE) -> None:
        self._queue = options.name("queue", queue)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, X_co]], /) -> Task[P, X_co]: ...  # type: ignore[overload-overlap]  # a coroutine function comes first
    @overload
    def task(self, function: Callable[P, X_co], /) -> ThreadTask[P, X_co]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        queue: str | None = None,
        priority: int = options.DEFAULT_PRIORITY,
        max_attempts: int = options.DEFAULT_MAX_ATTEMPTS,
        timeout: float | timedelta | None = options.DEFAULT_TIMEOUT,
        backoff: BackoffPolicy | None = None,
        fail_on: tuple[type[BaseException], ...] = (),
        transactional: bool = False,
        limit: Limit | None = None,
        ordered_by: Key | None = None,
        on_dead: OnDead = "pass",
        unique: str | Callable[..., str] | Unique | None = None,
    ) -> _Decorator: ...
    def task(  # type: ignore[misc]  # the overloads say it precisely, the implementation loosely
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        queue: str | None = None,
        priority: int = options.DEFAULT_PRIORITY,
        max_attempts: int = options.DEFAULT_MAX_ATTEMPTS,
        timeout: float | timedelta | None = options.DEFAULT_TIMEOUT,
        backoff: BackoffPolicy | None = None,
        fail_on: tuple[type[BaseException], ...] = (),
        transactional: bool = False,
        limit: Limit | None = None,
        ordered_by: Key | None = None,
        on_dead: OnDead = "pass",
        unique: str | Callable[..., str] | Unique | None = None,
    ) -> Any:
        """Declare a function as a task; usable bare.

        A coroutine function runs in the event loop, a `def` function in a thread. The function stays callable
        as itself.

        Args:
            function: The function, when used bare.
            name: The name its jobs carry. Default: `module.function`.
            aliases: Old names whose jobs it runs as well, for renames.
            queue: Its queue. Default: that of the App or Router.
            priority: Any smallint; higher runs first. Default 100.
            max_attempts: How many runs a job may take, the first included. Default 12.
            timeout: Seconds (or a timedelta) one run may take; None for no limit. Default one hour.
            backoff: A Backoff, or a function from a Failure to seconds, a timedelta, or None to give up.
            fail_on: Exceptions that make the job a dead letter at once.
            transactional: Run it inside a transaction, `current_job().connection`, in which its job is settled.
            limit: How many run at once, or start in a period, over all workers.
            ordered_by: An argument, or a function of them: of jobs that give the same, one runs at a time, in the
                order in which they were enqueued. A retry keeps its turn.
            on_dead: What an ordered job that became a dead letter does to those behind it: "pass" lets them by,
                "block" stops them until it is replayed or purged.
            unique: One unfinished job a key: `"args"`, a function of the parameters, a key, or a Unique.

        Raises:
            ConfigError: An option cannot be used, or the function cannot be a task.
            TaskNameTaken: Another function has that name.

        Example:
            >>> @jobs.task(queue="mail", timeout=30)
            ... async def send_welcome(user_id: int, locale: str = "en") -> str: ...
        """

        def decorate(function: Callable[..., Any]) -> Any:
            if isinstance(function, Enqueuer) or not callable(function):
                what = "is a task already" if callable(function) else "takes a function, and its name as `name=…`"
                raise ConfigError(f"task({function!r})", f"{what}.")
            definition = define(
                function,
                name=default_name(function) if name is None else name,
                aliases=aliases,
                queue=self._queue if queue is None else queue,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
                backoff=backoff,
                fail_on=fail_on,
                transactional=transactional,
                limit=limit,
                ordered_by=ordered_by,
                on_dead=on_dead,
                unique=unique,
            )
            core = TaskCore(definition)
            self._declare(core)
            core.face = ThreadTask(core) if definition.threaded else Task(core)
            return core.face

        return decorate if function is None else decorate(function)

    def _declare(self, core: TaskCore) -> None:
        raise NotImplementedError


class Router(Declares):
    """Tasks of a reusable package; an App includes them with `jobs.include(router, prefix="mail.")`.

    Its tasks may be imported and called before that; enqueuing them raises TaskNotIncluded until then.
    """

    def __init__(self, *, queue: str = options.DEFAULT_QUEUE) -> None:
        super().__init__(queue=queue)
        self.cores: list[TaskCore] = []

    def _declare(self, core: TaskCore) -> None:
        names = {core.definition.name, *core.definition.aliases}
        for other in self.cores:
            if taken := names & {other.definition.name, *other.definition.aliases}:
                raise TaskNameTaken(min(taken), where_defined(other.definition.function))
        self.cores.append(core)
