"""Up to which id a shard of the outbox is complete: no transaction can bring a lower one any more.

A transaction locks the shard before it draws an id, and holds the lock to its end. So what was drawn before a moment
in which nobody held the lock is either visible or will never be. A shard that always has some writer never has such a
moment; there it is enough that those have ended who wrote when an id was the highest, however many came after.
"""

from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["SHARDS", "Horizon"]

SHARDS: Final = 256
_NOT_MINE: Final = -1
# A prepared transaction goes by another name than the session had that began it.
_PREPARED: Final = ("-1/", "0/")


class Horizon:
    """What one relay has learned of its shards.

    Attributes:
        waiting: Whether the last reading left ids open that an unfinished transaction may still bring.
    """

    def __init__(self) -> None:
        self._complete: dict[int, int] = {}
        self._barriers: dict[int, tuple[int, frozenset[str]]] = {}
        self.waiting = False

    def read(self, newest: int, writers: Mapping[int, Collection[str]], shards: Collection[int]) -> list[int]:
        """Take a reading; return for each of the 256 shards up to which id it is complete, -1 for those not asked for.

        Args:
            newest: The last id drawn, read before the writers were.
            writers: The transactions that hold the lock of a shard.
            shards: Those of interest.
        """
        self.waiting = False
        for shard in shards:
            now = frozenset(writers.get(shard, ()))
            if not now:
                self._complete[shard] = newest
                self._barriers.pop(shard, None)
                continue
            barrier = self._barriers.get(shard)
            if barrier is None:
                self._barriers[shard] = newest, now
            elif not now & barrier[1] and not any(name.startswith(_PREPARED) for name in now):
                self._complete[shard] = barrier[0]
                self._barriers[shard] = newest, now
            self.waiting = self.waiting or self._complete.get(shard, 0) < newest
        mine = set(shards)

        return [self._complete.get(shard, 0) if shard in mine else _NOT_MINE for shard in range(SHARDS)]
