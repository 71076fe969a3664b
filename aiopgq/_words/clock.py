"""Where time comes from: wall-clock moments for people, monotonic seconds for lengths, ids that sort by time.

What is due is decided by the clock of PostgreSQL alone; nothing here is compared with a column.
"""

import os
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

__all__ = ["monotonic", "now", "uuid7"]

monotonic = time.monotonic


def now() -> datetime:
    """Return the present moment, aware, in UTC."""
    return datetime.now(UTC)


def uuid7() -> UUID:
    """Make a UUIDv7: 48 bits of milliseconds, then 74 random bits.

    Ids made later sort later, so the index on them grows at its right edge.
    """
    milliseconds = time.time_ns() // 1_000_000
    high, low = _random()
    version_7 = 7 << 76 | (high & 0xFFF) << 64
    variant_2 = 2 << 62 | low & 0x3FFF_FFFF_FFFF_FFFF

    return UUID(int=milliseconds << 80 | version_7 | variant_2)


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
