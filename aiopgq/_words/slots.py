"""Who may run how much at once: slots of one process, shared by queues or a queue's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiopgq._words import options
from aiopgq.errors import ConfigError

__all__ = ["Group", "Slots", "choose", "make"]

# A batch this small costs as much as a larger one: it is not halved.
_SMALL: Final = 100
# The pool of the queues that share; no queue has an empty name.
_SHARED: Final = ""


class Group(NamedTuple):
    """Queues that are claimed for together: how many jobs there is room for in each, and in all."""

    queues: dict[str, int]
    limit: int


class Slots:
    """The slots of one worker process.

    Args:
        concurrency: How many jobs the queues without slots of their own run together.
        own: Queues with slots of their own.
        shared: Queues that share `concurrency`.
    """

    def __init__(self, concurrency: int, own: Mapping[str, int], shared: Sequence[str]) -> None:
        self.total = sum(own.values()) + (concurrency if shared else 0)
        self._own = dict(own)
        self._shared = [queue for queue in shared if queue not in own]
        self._concurrency = self._shared_free = concurrency
        self._own_free = dict(own)
        self._turn = 0

    @property
    def queues(self) -> list[str]:
        """All queues served."""
        return [*self._own, *self._shared]

    def pool(self, queue: str) -> str:
        """Return the name of the slots a queue uses: its own, or those that are shared."""
        return queue if queue in self._own else _SHARED

    def size(self, pool: str) -> int:
        """Return how many slots a pool has."""
        return self._own.get(pool, self._concurrency)

    def groups(self, room: Callable[[str], int] = lambda _: 0) -> list[Group]:
        """Return the queues with room for more jobs; those that share take turns in coming first.

        Args:
            room: Gives how many more than the free slots a pool has room for. They are not claimed together with as
                many that find slots: a claim of both is followed by a small one, and each costs about the same.
        """
        groups = []
        more = room(_SHARED) if self._shared else 0
        if self._shared and self._shared_free + more > 0:
            self._turn = (self._turn + 1) % len(self._shared)
            order = self._shared[self._turn :] + self._shared[: self._turn]
            share = max(_share(self._shared_free, self._concurrency), more)
            groups.append(Group(dict.fromkeys(order, share), share))
        own = {queue: both for queue, free in self._own_free.items() if (both := free + room(queue)) > 0}
        if own:
            free = sum(self._own_free.values())
            groups.append(Group(own, max(_share(free, sum(self._own.values())), sum(own.values()) - free)))

        return groups

    def take(self, queue: str) -> bool:
        """Use a slot; tell whether there was one."""
        if queue in self._own_free:
            if self._own_free[queue] <= 0:
                return False
            self._own_free[queue] -= 1
            return True
        if self._shared_free <= 0:
            return False
        self._shared_free -= 1

        return True

    def give_back(self, queue: str) -> bool:
        """Free a slot; tell whether there was none free before, so that jobs may be waiting for it."""
        if queue in self._own_free:
            self._own_free[queue] += 1
            return self._own_free[queue] == 1
        self._shared_free += 1

        return self._shared_free == 1


def _share(free: int, total: int) -> int:
    """Return how many to claim at once: of many slots half, so that one half runs while the other is claimed."""
    return min(free, max(_SMALL, total // 2))


def choose(queues: Mapping[str, int | None] | Iterable[str] | None) -> dict[str, int | None] | None:
    """Check which queues a worker shall serve, and with how many slots of their own; None for all.

    Raises:
        ConfigError: Not several names, or one that cannot be a queue's, or a number of slots that cannot be one.
    """
    if isinstance(queues, str):
        raise ConfigError("queues", f'takes several names or a mapping; write ["{queues}"].')
    if queues is not None and not isinstance(queues, Iterable):
        raise ConfigError("queues", f"takes several names or a mapping, not {type(queues).__name__}.")
    chosen = None if queues is None else dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
    for queue, slots in (chosen or {}).items():
        options.name("queue", queue)
        if slots is not None:
            options.count(f"slots of queue {queue!r}", slots)

    return chosen


def make(concurrency: int, chosen: Mapping[str, int | None] | None, known: Iterable[str]) -> Slots:
    """Make the slots of a worker for the queues chosen, else for all that are known.

    Raises:
        ConfigError: There is none.
    """
    served = chosen or dict.fromkeys(sorted(set(known)))
    own = {queue: slots for queue, slots in served.items() if slots is not None}
    if not served:
        raise ConfigError("queues", "the App knows no task, so there is nothing to serve; see `imports=`.")

    return Slots(concurrency, own, [queue for queue in served if queue not in own])
