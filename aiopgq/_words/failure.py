"""An error as text that can be stored: guarded against hostile exceptions, bounded, free of what jsonb refuses."""

import re
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

__all__ = ["describe", "entry", "storable", "trace"]

_LONGEST_TEXT: Final = 2_000
_LONGEST_TRACE: Final = 8_000
_FRAMES: Final = 30
# NUL and lone surrogates: PostgreSQL stores neither.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def storable(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return a text that PostgreSQL stores, with its middle cut out where it is too long."""
    text = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(text) <= longest:
        return text
    half = longest // 2

    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def describe(error: BaseException) -> str:
    """Return an error's class and message, whatever its `__str__` does."""
    name = type(error).__name__
    text = _guarded(lambda: str(error), "(its __str__ failed)")

    return storable(f"{name}: {text}" if text else name)


def trace(error: BaseException) -> str:
    """Return an error's traceback with its causes, whatever its `__str__` does."""
    return storable(
        _guarded(lambda: "".join(traceback.format_exception(error, limit=-_FRAMES)), type(error).__name__),
        _LONGEST_TRACE,
    )


def entry(at: datetime, attempt: int, error: str, traceback: str | None, worker: str) -> str:
    """Encode one entry of a job's list of errors."""
    return msgspec.json.encode(
        {"at": at, "attempt": attempt, "error": error, "traceback": traceback, "worker": worker}
    ).decode()


def _guarded(make: Callable[[], str], instead: str) -> str:
    try:
        return str(make())
    except BaseException:  # noqa: BLE001  # a hostile __str__ may raise anything
        return instead
