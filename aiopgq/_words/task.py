"""A task: a decorated function, known by its name, and what its jobs are told unless they are told otherwise."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiopgq._words import options
from aiopgq._words.backoff import Backoff, BackoffPolicy
from aiopgq._words.codec import Codec
from aiopgq._words.limit import Key, Limit, OnDead, Restraint, restraint
from aiopgq._words.unique import Unique, uniqueness
from aiopgq.errors import ConfigError

__all__ = ["TaskDefinition", "default_name", "define", "where_defined"]


@dataclass(slots=True)
class TaskDefinition:
    """Everything about a task but its name, which a Router's prefix may still change.

    Attributes:
        function: The decorated function.
        name: Its name, complete once an App knows it.
        aliases: Old names under which jobs may still be in the database.
        queue: Where its jobs stand in line.
        priority: Higher runs first.
        max_attempts: How many runs a job may take.
        timeout: Seconds one run may take; None for no limit.
        backoff: From a failure to the seconds before the next attempt.
        fail_on: Exceptions that make the job a dead letter at once.
        codec: Between calls and stored arguments.
        threaded: A `def` function; it runs in a thread.
        transactional: It runs inside a transaction in which its job is settled.
        unique: What the keys of its jobs are made of; None: they have none.
        restraint: Its limit and its order, if it has any.
    """

    function: Callable[..., Any]
    name: str
    aliases: tuple[str, ...]
    queue: str
    priority: int
    max_attempts: int
    timeout: float | None
    backoff: BackoffPolicy
    fail_on: tuple[type[BaseException], ...]
    codec: Codec
    threaded: bool
    transactional: bool = False
    unique: Unique | None = None
    restraint: Restraint | None = None

    @property
    def may_wait(self) -> bool:
        """Whether its jobs may be claimed a moment before there is a slot for them."""
        return not self.transactional and self.restraint is None


def define(
    function: Callable[..., Any],
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    queue: str = options.DEFAULT_QUEUE,
    priority: int = options.DEFAULT_PRIORITY,
    max_attempts: int = options.DEFAULT_MAX_ATTEMPTS,
    timeout: float | timedelta | None = options.DEFAULT_TIMEOUT,
    backoff: BackoffPolicy | None = None,
    fail_on: tuple[type[BaseException], ...] = (),
    transactional: bool = False,
    unique: str | Callable[..., str] | Unique | None = None,
    limit: Limit | None = None,
    ordered_by: Key | None = None,
    on_dead: OnDead = "pass",
) -> TaskDefinition:
    """Check what a decorator was told.

    Raises:
        ConfigError: An option cannot be used, or the function cannot be a task.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"task {name!r}", "a generator cannot be a task: a job has one outcome.")
    if backoff is not None and not callable(backoff):
        raise ConfigError(f"task {name!r}, backoff", "takes a Backoff or a function of a Failure.")
    if isinstance(aliases, str):
        raise ConfigError(f"task {name!r}, aliases", f'takes several names; write ("{aliases}",).')
    if isinstance(fail_on, type):
        raise ConfigError(f"task {name!r}, fail_on", f"takes several classes; write ({fail_on.__name__},).")
    if inspect.iscoroutinefunction(inspect.unwrap(function)) and not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"task {name!r}", "a decorator hides that it is a coroutine function; write its wrapper with `async def`."
        )
    for error in fail_on:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise ConfigError(f"task {name!r}, fail_on", f"takes exception classes, not {error!r}.")
    if timeout is not None and options.seconds("timeout", timeout) == 0:
        raise ConfigError(f"task {name!r}, timeout", "0 seconds end every run; use None for no limit.")
    if not isinstance(transactional, bool):
        raise ConfigError(f"task {name!r}, transactional", f"takes True or False, not {transactional!r}.")
    if transactional and not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"task {name!r}, transactional",
            "takes a coroutine function: its connection belongs to the event loop, and a `def` task runs in a thread.",
        )
    codec = Codec(name, function)
    if codec.outcome_only:
        raise ConfigError(
            f"task {name!r}",
            "its return annotation holds only outcomes; say what a completed run returns, such as `-> None | Retry`.",
        )

    return TaskDefinition(
        function=function,
        name=options.name("task name", name),
        aliases=tuple(options.name("task alias", alias) for alias in aliases),
        queue=options.name("queue", queue),
        priority=options.priority("priority", priority),
        max_attempts=options.attempts("max_attempts", max_attempts),
        timeout=None if timeout is None else options.seconds("timeout", timeout),
        backoff=backoff or Backoff(),
        fail_on=tuple(fail_on),
        codec=codec,
        threaded=not inspect.iscoroutinefunction(function),
        transactional=transactional,
        unique=None if unique is None else uniqueness(unique),
        restraint=restraint(name, function, limit, ordered_by, on_dead),
    )


def where_defined(function: Callable[..., Any]) -> str:
    """Say where a function is defined, for a person."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return repr(function)

    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def default_name(function: Callable[..., Any]) -> str:
    """Name a task after its module and function; a module run as `__main__` goes by its real name."""
    module = getattr(function, "__module__", None) or "?"
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem
        module = module.removesuffix(".__main__")
    name = getattr(function, "__qualname__", None) or type(function).__qualname__

    return f"{module}.{name.replace('<locals>.', '')}"
