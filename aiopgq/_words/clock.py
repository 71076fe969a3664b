"""Where time comes from: wall-clock moments for people, monotonic seconds for lengths, ids that sort by time.

What is due is decided by the clock of PostgreSQL alone; nothing here is compared with a column.
"""

import secrets
import time
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
    random = int.from_bytes(secrets.token_bytes(10), "big")
    version_7 = 7 << 76 | (random >> 4 & 0xFFF) << 64
    variant_2 = 2 << 62 | random >> 16 & 0x3FFF_FFFF_FFFF_FFFF

    return UUID(int=milliseconds << 80 | version_7 | variant_2)
