"""What a task, a job or a worker may be told: checked once at the border, then frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from aiopgq.errors import ConfigError

if TYPE_CHECKING:
    from aiopgq._words.unique import Unique

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "DEFAULT_TIMEOUT",
    "FAR_FUTURE",
    "LONGEST",
    "LONG_AGO",
    "MOST",
    "UNSET",
    "JobOptions",
    "Priority",
    "Unset",
    "attempts",
    "count",
    "headers",
    "identity",
    "lease",
    "moment",
    "name",
    "number",
    "priority",
    "seconds",
]

DEFAULT_QUEUE: Final = "default"
DEFAULT_PRIORITY: Final = 100
DEFAULT_MAX_ATTEMPTS: Final = 12
DEFAULT_TIMEOUT: Final = 3600.0
FAR_FUTURE: Final = datetime(9999, 1, 1, tzinfo=UTC)
LONG_AGO: Final = datetime(1900, 1, 1, tzinfo=UTC)
LONGEST: Final = 100 * 365 * 86400.0
MOST: Final = 1e300
_NAME_BYTES: Final = 200
_SMALLINT: Final = (-32768, 32767)
_INTEGER: Final = 2**31 - 1
_SHORTEST_LEASE: Final = 2.0
_HEADERS_BYTES: Final = 65_536


class Priority(IntEnum):
    """Named priorities; a higher one runs first. Any smallint does."""

    BACKFILL = 30
    DISCOVERED = 100
    EXPLICIT = 150


class Unset:
    """The type of UNSET: an option that was not given (None is a value of its own for some)."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What one call may override; UNSET or None leaves it to the task."""

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | Unset | None = UNSET
    headers: dict[str, str] | None = None
    id: UUID | None = None
    unique: "Unique | Unset | None" = UNSET
    limit: str | int | UUID | None = None

    def merged(self, later: "JobOptions") -> "JobOptions":
        """Return these options with those given later on top; a later moment replaces an earlier one."""
        timed = later.delay is not None or later.run_at is not None
        return JobOptions(
            queue=later.queue or self.queue,
            priority=self.priority if later.priority is None else later.priority,
            delay=later.delay if timed else self.delay,
            run_at=later.run_at if timed else self.run_at,
            max_attempts=later.max_attempts or self.max_attempts,
            timeout=self.timeout if isinstance(later.timeout, Unset) else later.timeout,
            headers=later.headers or self.headers,
            id=later.id or self.id,
            unique=self.unique if isinstance(later.unique, Unset) else later.unique,
            limit=self.limit if later.limit is None else later.limit,
        )


def seconds(setting: str, value: float | timedelta) -> float:
    """Turn a duration into seconds, 0 to a hundred years.

    Raises:
        ConfigError: Not a number or timedelta, negative, not finite, or beyond a hundred years.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(setting, f"takes seconds or a timedelta, not {type(value).__name__}.")
    # A comparison takes integers of any size, which a float does not; NaN fails it.
    if not 0 <= value <= LONGEST:
        raise ConfigError(setting, f"{_shown(value)} is not between 0 seconds and a hundred years.")
    return float(value)


def number(setting: str, value: float, least: float, most: float) -> float:
    """Check a number between two others.

    Raises:
        ConfigError: Not a number, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(setting, f"takes a number from {least:g} to {most:g}, not {_shown(value)}.")
    return float(value)


def _shown(value: object) -> str:
    """Return a value as a message shows it; integers may have more digits than Python prints."""
    return "a huge number" if isinstance(value, int) and abs(value) > 10**18 else repr(value)


def moment(setting: str, value: datetime) -> datetime:
    """Check a moment: aware, from 1900 and before 9999; beyond, time zones leave the calendar.

    Raises:
        ConfigError: Not a datetime, naive, or too far away.
    """
    if not isinstance(value, datetime):
        raise ConfigError(setting, f"takes an aware datetime, not {type(value).__name__}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ConfigError(setting, f"{value!r} has no time zone. Use datetime.now(UTC) or .replace(tzinfo=…).")
    if not LONG_AGO <= value < FAR_FUTURE:
        raise ConfigError(setting, f"{value!r} is not between the years 1900 and 9999.")
    return value


def name(setting: str, value: str) -> str:
    """Check the name of a queue or task: 1 to 200 bytes of UTF-8, no NUL.

    Raises:
        ConfigError: Empty, too long, or with characters PostgreSQL cannot store.
    """
    if not isinstance(value, str):
        raise ConfigError(setting, f"takes a string, not {type(value).__name__}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(setting, f"{value!r} holds a lone surrogate.") from None
    if not 1 <= size <= _NAME_BYTES:
        raise ConfigError(setting, f"a name has 1 to {_NAME_BYTES} bytes, this one {size}.")
    if "\x00" in value:
        raise ConfigError(setting, "a name holds no NUL character.")
    return value


def priority(setting: str, value: int) -> int:
    """Check a priority: any smallint.

    Raises:
        ConfigError: Not an integer, or outside -32768 to 32767.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not _SMALLINT[0] <= value <= _SMALLINT[1]:
        raise ConfigError(setting, f"takes an integer from -32768 to 32767, not {_shown(value)}.")
    return int(value)


def attempts(setting: str, value: int) -> int:
    """Check a number of attempts: at least one.

    Raises:
        ConfigError: Not an integer, below 1, or beyond an integer column.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INTEGER:
        raise ConfigError(setting, f"takes an integer of at least 1 (the first run counts), not {_shown(value)}.")
    return value


def headers(setting: str, value: Mapping[str, str]) -> dict[str, str]:
    """Check headers: a mapping of strings to strings that jsonb can hold.

    Raises:
        ConfigError: Not a mapping, or a key or value that cannot be stored.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(setting, f"takes a mapping of strings to strings, not {type(value).__name__}.")
    for text in (*value.keys(), *value.values()):
        if not isinstance(text, str):
            raise ConfigError(setting, f"holds strings only, not {type(text).__name__}.")
        if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ConfigError(setting, f"{text[:50]!r} holds a character PostgreSQL cannot store.")
    if sum(len(key.encode()) + len(text.encode()) for key, text in value.items()) > _HEADERS_BYTES:
        raise ConfigError(setting, f"headers have {_HEADERS_BYTES:,} bytes at most; large data belongs elsewhere.")
    # Plain strings, whatever subclass they came as: that is what comes back.
    return {str.__str__(key): str.__str__(text) for key, text in value.items()}


def identity(setting: str, value: UUID) -> UUID:
    """Check an id.

    Raises:
        ConfigError: Not a UUID.
    """
    if not isinstance(value, UUID):
        raise ConfigError(setting, f"takes a uuid.UUID, not {type(value).__name__}.")
    return value


def count(setting: str, value: int) -> int:
    """Check a number of things: at least one, and no more than an integer column holds.

    Raises:
        ConfigError: Not an integer, below 1, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INTEGER:
        raise ConfigError(setting, f"takes an integer of at least 1 and below 2 ** 31, not {_shown(value)}.")
    return value


def lease(setting: str, value: float | timedelta) -> float:
    """Check a lease: at least two seconds, so that beats fit into it.

    Raises:
        ConfigError: Not a duration, or too short.
    """
    length = seconds(setting, value)
    if length < _SHORTEST_LEASE:
        raise ConfigError(
            setting, f"{length:g} s is too short for beats to fit into it; at least {_SHORTEST_LEASE:g} s."
        )
    return length
