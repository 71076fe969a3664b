"""Middleware: what goes around each enqueue and each run.

The first of a list is the outermost. Each calls `proceed()` for what is inside it, and returns what that gives.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from aiopgq._words.current import Around, CurrentJob
from aiopgq.call import Call
from aiopgq.errors import ConfigError, UsageError
from aiopgq.handle import JobHandle

__all__ = ["Chain", "EnqueueMiddleware", "Middleware", "RunMiddleware"]

_Handles: TypeAlias = list[JobHandle[Any]]


class EnqueueMiddleware(Protocol):
    """Something that goes around each enqueue."""

    async def enqueue(
        self, calls: Sequence[Call[Any]], proceed: Callable[[], Awaitable[list[JobHandle[Any]]]], /
    ) -> list[JobHandle[Any]]:
        """Go around one enqueue: of one call, or of all those of `enqueue_many`.

        What it raises before `proceed()` is raised to the caller, and nothing was sent. What it raises afterwards does
        not undo what is committed.

        Args:
            calls: What is enqueued; `call.add_headers(…)` gives a job something to carry.
            proceed: Enqueues them, and gives their handles, in the same order.
        """
        ...


class RunMiddleware(Protocol):
    """Something that goes around each run, in the worker's event loop; `def` tasks run in their thread inside."""

    async def run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]], /) -> Any:
        """Go around one run.

        What it raises counts as raised by the handler, and what it returns as returned: return what `proceed()` gives,
        or the job has no result. It is inside the timeout of the run; a transaction of the run begins in `proceed()`
        and ends afterwards.

        Args:
            job: What `current_job()` is; its headers are those given when it was enqueued.
            proceed: Decodes the arguments and calls the task's function; raises what that raises.
        """
        ...


Middleware: TypeAlias = EnqueueMiddleware | RunMiddleware


class Chain:
    """The middleware of an App, in order.

    Args:
        middleware: The outermost first; each has `enqueue`, `run`, or both.

    Attributes:
        around_enqueue: What goes around an enqueue, the outermost first.
        run: Goes around a run; None if nothing does.

    Raises:
        ConfigError: One has neither, or one that is no coroutine function.
    """

    def __init__(self, middleware: Iterable[Middleware]) -> None:
        self.around_enqueue: list[Any] = []
        self._around_run: list[Any] = []
        for one in middleware:
            methods = {name: getattr(one, name) for name in ("enqueue", "run") if hasattr(one, name)}
            if not methods or isinstance(one, type):
                raise ConfigError("middleware", f"takes objects with `async def enqueue` or `run`, not {one!r}.")
            for name, method in methods.items():
                if not inspect.iscoroutinefunction(method):
                    raise ConfigError("middleware", f"{type(one).__name__}.{name} is no coroutine function.")
            if "enqueue" in methods:
                self.around_enqueue.append(methods["enqueue"])
            if "run" in methods:
                self._around_run.append(methods["run"])
        self.run: Around | None = self._run if self._around_run else None

    async def enqueue(self, calls: Sequence[Call[Any]], insert: Callable[[], Awaitable[_Handles]]) -> _Handles:
        """Enqueue calls through all that goes around it.

        Raises:
            UsageError: One did not return the handles that `proceed()` gives.
        """
        proceed = insert
        for around in reversed(self.around_enqueue):
            proceed = partial(_checked, around, calls, proceed)

        return await proceed()

    async def _run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        for around in reversed(self._around_run):
            proceed = partial(around, job, proceed)

        return await proceed()


async def _checked(around: Any, calls: Sequence[Call[Any]], proceed: Callable[[], Awaitable[_Handles]]) -> _Handles:
    handles = await around(calls, proceed)
    if not isinstance(handles, list) or len(handles) != len(calls):
        raise UsageError(
            f"{around.__qualname__} returned {type(handles).__name__}; it has to return what `await proceed()` gives, "
            "the handles of its calls."
        )

    return handles
