"""How a statement is run: whole, again if it met another transaction."""

import asyncio
import random
from typing import Any, Final, Protocol

from aiopgq._store.trouble import Conflict

__all__ = ["Fetcher", "fetch_whole"]

# Deadlocks and serialization failures pass by themselves, most at the first repetition.
_MOST_TRIES: Final = 20
_CONFLICT_PAUSE: Final = 0.005


class Fetcher(Protocol):
    """A `Line` or `Lines`."""

    @property
    def settings(self) -> Any: ...

    async def fetch(self, doing: str, sql: str, *args: Any) -> list[Any]: ...


async def fetch_whole(line: Fetcher, doing: str, sql: str, *args: Any) -> list[Any]:
    """Run a statement; when it meets another transaction (40001, 40P01) repeat it whole, a bounded number of times.

    Raises:
        Conflict: It met others again and again.
        StoreError: As the line raises.
    """
    for tries in range(1, _MOST_TRIES + 1):
        try:
            return await line.fetch(doing, sql, *args)
        except Conflict:
            if tries == _MOST_TRIES:
                raise
            await asyncio.sleep(random.uniform(0, _CONFLICT_PAUSE * tries))  # noqa: S311  # jitter

    raise AssertionError
