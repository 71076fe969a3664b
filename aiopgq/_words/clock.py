"""Where time comes from: wall-clock moments for people, monotonic seconds for lengths, ids that sort by time.

What is due is decided by the clock of PostgreSQL alone; nothing here is compared with a column.
"""

import os
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID, SafeUUID

__all__ = ["monotonic", "now", "uuid7"]

monotonic = time.monotonic

# The constructor of UUID checks what is known here, and is half of what an id costs.
_set_int: Final = vars(UUID)["int"].__set__
_set_safe: Final = vars(UUID)["is_safe"].__set__
_UNKNOWN: Final = SafeUUID.unknown
_VERSION_AND_VARIANT: Final = 7 << 76 | 2 << 62


def now() -> datetime:
    """Return the present moment, aware, in UTC."""
    return datetime.now(UTC)


def uuid7() -> UUID:
    """Make a UUIDv7: 48 bits of milliseconds, then 74 random bits.

    Ids made later sort later, so the index on them grows at its right edge.
    """
    high, low = _random()
    random = (high & 0xFFF) << 64 | low & 0x3FFF_FFFF_FFFF_FFFF
    made = UUID.__new__(UUID)
    _set_int(made, time.time_ns() // 1_000_000 << 80 | _VERSION_AND_VARIANT | random)
    _set_safe(made, _UNKNOWN)

    return made


def _random() -> tuple[int, int]:
    # The system is asked for many at once. Taking the next one is atomic, so threads never share it.
    global _stock  # noqa: PLW0603  # one stock a process
    while True:
        for pair in _stock:
            return pair
        _stock = _new_stock()


def _new_stock() -> Iterator[tuple[int, int]]:
    return struct.iter_unpack(">HQ", os.urandom(10 * 256))


def _forget_stock() -> None:
    # A forked child would make the ids of its parent.
    global _stock  # noqa: PLW0603  # one stock a process
    _stock = iter(())


_stock: Iterator[tuple[int, int]] = iter(())
os.register_at_fork(after_in_child=_forget_stock)
