"""The calls that `enqueue_many` was given, read part by part: the next are made while those before are written."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from aiopgq._words.clock import monotonic
from aiopgq.call import Call, check_calls, several

__all__ = ["PART", "Inflow", "Unpourable"]

# Parts of 200 to 330 calls were equally fast: smaller ones are more statements, larger ones more to wait for.
PART: Final = 250
# No transaction stays open for calls that come slower than this, in seconds a part; making them takes a hundredth.
_SLOW: Final = 0.1


class Unpourable(Exception):
    """These calls cannot go part by part."""


class Inflow:
    """Calls on their way in.

    Args:
        home: The App they have to belong to.
        calls: What the caller gave.

    Attributes:
        taken: Those read so far, all checked.
        failure: What reading them raised.

    Raises:
        TypeError: It is nothing that can be read.
    """

    def __init__(self, home: object, calls: Iterable[Call[Any]]) -> None:
        self.taken: list[Call[Any]] = []
        self.failure: Exception | None = None
        self._home = home
        self._coming = several(calls)

    def take(self, most: int | None = PART) -> Sequence[Call[Any]]:
        """Read more of them; all that are left if there is no bound.

        Raises:
            TypeError: Something was not made by `task.call(…)`.
            UsageError: A call is one of another App's task.
        """
        part = list(islice(self._coming, most))
        check_calls(self._home, part)
        self.taken += part

        return part

    @property
    def is_pourable(self) -> bool:
        """Whether the first part is full, and none of its calls has an id, a key or a connection."""
        return len(self.taken) == PART and all(map(_is_plain, self.taken))

    def parts(self) -> Iterator[Sequence[Call[Any]]]:
        """Give the first part, and all that come.

        Raises:
            Unpourable: A call has an id, a key or a connection, or comes slowly; or `failure` happened.
        """
        part: Sequence[Call[Any]] = list(self.taken)
        while part:
            yield part
            part = self._next()

    def _next(self) -> Sequence[Call[Any]]:
        began = monotonic()
        try:
            part = self.take()
        except Exception as error:
            # The caller's own, so nobody below may take it for PostgreSQL's.
            self.failure = error
            raise Unpourable from error
        if monotonic() - began > _SLOW or not all(map(_is_plain, part)):
            raise Unpourable

        return part


def _is_plain(call: Call[Any]) -> bool:
    job = call.job
    keyed = job.unique is not None or job.limit_key is not None or job.order_key is not None
    return not (keyed or call.once or call.connection is not None)
