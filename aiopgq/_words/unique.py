"""Uniqueness: what the key of a job is made of, and what becomes of a call whose key is taken."""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

from msgspec import Struct

from aiopgq._words import options
from aiopgq.errors import ArgumentError, ConfigError

__all__ = ["Conflict", "Standing", "Unique", "UniqueKey", "uniqueness"]

Conflict = Literal["skip", "replace", "debounce"]

_BY_ARGUMENTS: Final = "args"
_CONFLICTS: Final = ("skip", "replace", "debounce")
_KEY_BYTES: Final = 1000


@dataclass(frozen=True, slots=True)
class Unique:
    """One unfinished job a key; or also none for a while after it was completed.

    A key belongs to its task: two tasks never meet. A dead letter has none, until it is replayed.

    Args:
        key: `"args"`: the arguments as they were passed. A function of the task's parameters that returns the key.
            Any other string is the key itself.
        on_conflict: What to do when the key is taken. `skip`: nothing, the handle is that of the job that has it.
            `replace`: give that job these args, headers, priority and moment. `debounce`: postpone it to the moment
            of this call. The last two leave a job alone that a worker has claimed.
        period: Seconds (or a timedelta) the key stays taken after the job is completed. Default: not at all.
        max_delay: Seconds (or a timedelta) after it was first enqueued beyond which debounce postpones no job.
            Default: no end.

    Raises:
        ConfigError: One of them cannot be used.

    Example:
        >>> @jobs.task(unique=Unique(lambda user_id, **_: f"user:{user_id}", period=3600))
        ... async def remind(user_id: int, text: str) -> None: ...
    """

    key: str | Callable[..., str] = _BY_ARGUMENTS
    on_conflict: Conflict = "skip"
    period: float | timedelta | None = None
    max_delay: float | timedelta | None = None

    def __post_init__(self) -> None:
        if not callable(self.key):
            _key_text("unique", self.key)
        if self.on_conflict not in _CONFLICTS:
            raise ConfigError("unique, on_conflict", f"takes skip, replace or debounce, not {self.on_conflict!r}.")
        if self.period is not None:
            options.seconds("unique, period", self.period)
        if self.max_delay is not None:
            options.seconds("unique, max_delay", self.max_delay)
            if self.on_conflict != "debounce":
                raise ConfigError("unique, max_delay", 'goes with on_conflict="debounce".')

    def of(
        self, task: str, function: Callable[..., Any], encoded: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "UniqueKey":
        """Return the key of one call.

        Args:
            task: The name of the task.
            function: That of the task; a key function is given its parameters by name, with their defaults.
            encoded: The arguments as they are stored.
            args: The positional arguments.
            kwargs: The others.

        Raises:
            ArgumentError: What the key function returns is no key.
        """
        key = self.key
        if callable(key):
            try:
                key = _key_text("unique", key(**_by_name(function, args, kwargs)))
            except ConfigError as error:
                raise ArgumentError(task, "unique", error.reason) from None
        elif key == _BY_ARGUMENTS:
            # Names in order, numbers as written: 1, 1.0, True and "1" are four things.
            canonical = json.dumps(json.loads(encoded), sort_keys=True, separators=(",", ":"))
            key = f"args:{hashlib.sha256(canonical.encode()).hexdigest()}"

        return UniqueKey(
            key,
            self.on_conflict,
            None if self.period is None else options.seconds("unique, period", self.period),
            None if self.max_delay is None else options.seconds("unique, max_delay", self.max_delay),
        )


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """The key of one call, and what becomes of the call if it is taken; durations in seconds."""

    key: str
    on_conflict: Conflict
    period: float | None
    max_delay: float | None


class Standing(Struct, frozen=True, gc=False):
    """The job that stands for a call once it is enqueued, and why.

    Attributes:
        id: The job.
        verdict: new, known (by its id), or what became of the job that had the key: existing (left as it is),
            replaced or debounced.
    """

    id: UUID
    verdict: Literal["new", "known", "existing", "replaced", "debounced"]


def uniqueness(given: str | Callable[..., str] | Unique, before: Unique | None = None) -> Unique:
    """Read what `unique=` was given; a key alone keeps the rest of what was said `before`.

    Raises:
        ConfigError: It cannot be used.
    """
    if isinstance(given, Unique):
        return given
    if not callable(given) and not isinstance(given, str):
        raise ConfigError("unique", f'takes "args", a key, a function or Unique(…), not {type(given).__name__}.')
    return Unique(given) if before is None else replace(before, key=given)


def _by_name(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    rest = [one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    named = {name: value for name, value in bound.arguments.items() if name not in rest}
    for name in rest:
        named.update(bound.arguments[name])

    return named


def _key_text(setting: str, value: object) -> str:
    """Check a key: 1 to 1,000 bytes of UTF-8, no NUL.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, str):
        raise ConfigError(setting, f"a key is a string, not {type(value).__name__}.")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigError(setting, f"the key {value[:50]!r} holds a character PostgreSQL cannot store.")
    if not 1 <= len(value.encode()) <= _KEY_BYTES:
        raise ConfigError(setting, f"a key has 1 to {_KEY_BYTES:,} bytes, this one {len(value.encode()):,}.")
    return str.__str__(value)
