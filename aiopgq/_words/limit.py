"""What keeps a job out of the line although it is due: limits and order, and the keys they go by."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter, signature
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from aiopgq._words import options
from aiopgq.errors import ArgumentError, ConfigError

__all__ = ["Key", "Limit", "OnDead", "Restraint", "Rule", "escaped", "restraint", "rule_of"]

OnDead = Literal["pass", "block"]
Key = str | Callable[..., object]
_KEY_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class Limit:
    """How many jobs run at once, or start in a period, over all workers together.

    Both may be given. It is strict: what workers count are the rows of the jobs, so one that dies leaves no slot taken.
    Jobs over the limit wait outside the line and cost the others nothing.

    Args:
        key: What is counted together: the name of an argument, or a function of the arguments. A call whose key
            is None is not limited. Default: all jobs of the task.
        running: How many run at once.
        rate: How many are let into the line in each period, before a retry as well; while workers have free slots,
            that is how many start.
        per: Seconds (or a timedelta) of a period. Default 60.
        burst: How many may go in at the same moment after a quiet time; 1 spaces them evenly. Default: `rate`.
        name: Tasks whose limits have the same name share them. Default: the name of the task.

    Raises:
        ConfigError: An option cannot be used.

    Example:
        >>> @jobs.task(limit=Limit(key="account_id", running=2, rate=100, per=60))
        ... async def sync_account(account_id: int) -> None: ...
    """

    key: Key | None = None
    running: int | None = None
    rate: int | None = None
    per: float | timedelta = 60.0
    burst: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Check what was given."""
        if self.running is None and self.rate is None:
            raise ConfigError("Limit", "says neither running= nor rate=, so it limits nothing.")
        if self.rate is None and self.burst is not None:
            raise ConfigError("Limit, burst", "belongs to a rate; give rate= as well.")
        for setting in ("running", "rate", "burst"):
            if getattr(self, setting) is not None:
                options.count(f"Limit, {setting}", getattr(self, setting))
        per = options.seconds("Limit, per", self.per)
        if per == 0:
            raise ConfigError("Limit, per", "a period takes more than 0 seconds.")
        if self.rate is not None and (self.burst or self.rate) * per / self.rate > options.LONGEST:
            raise ConfigError("Limit, burst", "at this rate it takes longer than 100 years to come back; give less.")
        if self.name is not None:
            options.name("Limit, name", self.name)
        _check_key("Limit, key", self.key)


def escaped(name: str) -> str:
    """Return a name as a key holds it, without the slash that ends it."""
    return name.replace("%", "%25").replace("/", "%2F")


class Rule(NamedTuple):
    """A limit as the database knows it."""

    running: int | None
    rate: int | None
    burst: int | None
    per: float | None


def rule_of(limit: Limit) -> Rule:
    """Return a limit without its key and name."""
    if limit.rate is None:
        return Rule(limit.running, None, None, None)

    return Rule(limit.running, limit.rate, limit.burst or limit.rate, options.seconds("Limit, per", limit.per))


class Restraint:
    """The limit and the order of a task.

    Attributes:
        limit: Its limit.
        blocks: Whether a dead letter stops the jobs of its key.
    """

    __slots__ = ("_function", "_ordered_by", "_parameters", "blocks", "limit")

    def __init__(self, function: Callable[..., Any], limit: Limit | None, ordered_by: Key | None, on_dead: str) -> None:
        self.limit = limit
        self._ordered_by = ordered_by
        self.blocks = on_dead == "block"
        self._function = function
        self._parameters = signature(function)

    def limit_name(self, task: str) -> str:
        """Return the name of the limit; a slash ends the name in a key, so it holds none itself."""
        assert self.limit is not None  # noqa: S101  # asked for limits only
        return escaped(self.limit.name or task)

    def keys(
        self, task: str, given: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str | None, str | None]:
        """Return the limit key and the order key of a call; `given` replaces what the limit's key would give.

        Raises:
            ArgumentError: A key is of a type that makes none, or too long.
        """
        limit_key = order_key = None
        if self.limit is not None:
            if given is None and self.limit.key is None:
                limit_key = self.limit_name(task)
            else:
                value = given if given is not None else self._value(self.limit.key, args, kwargs)
                if value is not None:
                    limit_key = f"{self.limit_name(task)}/{_text(task, 'limit', value)}"
        if self._ordered_by is not None:
            value = self._value(self._ordered_by, args, kwargs)
            if value is not None:
                order_key = f"{escaped(task)}/{_text(task, 'ordered_by', value)}"

        return limit_key, order_key

    def _value(self, key: Key | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if not isinstance(key, str):
            return None if key is None else key(*args, **kwargs)
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()

        return bound.arguments[key]


def restraint(
    task: str, function: Callable[..., Any], limit: Limit | None, ordered_by: Key | None, on_dead: str
) -> Restraint | None:
    """Check the limit and the order that a decorator was given; None if there are none.

    Raises:
        ConfigError: One of them cannot be used.
    """
    if on_dead not in ("pass", "block"):
        raise ConfigError(f"task {task!r}, on_dead", f'takes "pass" or "block", not {on_dead!r}.')
    if limit is None and ordered_by is None:
        return None
    if limit is not None and not isinstance(limit, Limit):
        raise ConfigError(f"task {task!r}, limit", f"takes a Limit, not {type(limit).__name__}.")
    _check_key(f"task {task!r}, ordered_by", ordered_by)
    named = {one.name for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD}
    for setting, key in (("limit", None if limit is None else limit.key), ("ordered_by", ordered_by)):
        if isinstance(key, str) and key not in named:
            known = ", ".join(sorted(named)) or "none"
            raise ConfigError(f"task {task!r}, {setting}", f"it has no parameter {key!r}; there are: {known}.")

    return Restraint(function, limit, ordered_by, on_dead)


def _check_key(setting: str, key: object) -> None:
    if key is not None and not isinstance(key, str) and not callable(key):
        raise ConfigError(setting, f"takes the name of an argument or a function, not {type(key).__name__}.")


def _text(task: str, setting: str, value: object) -> str:
    """Write a key; equal values give equal texts."""
    if isinstance(value, Enum):
        return _text(task, setting, value.value)
    if isinstance(value, tuple):
        text = "/".join(escaped(_text(task, setting, part)) for part in value)
    elif isinstance(value, str | int | UUID | date | Decimal):
        text = str.__str__(value) if isinstance(value, str) else str(value)
    else:
        reason = f"a key is a string, a number, a UUID, a date or a tuple of such, not {type(value).__name__}."
        raise ArgumentError(task, setting, reason)
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ArgumentError(task, setting, "the key holds a character PostgreSQL cannot store.")
    if len(text.encode()) > _KEY_BYTES:
        raise ArgumentError(task, setting, f"a key has {_KEY_BYTES} bytes at most; a digest of it does as well.")

    return text
