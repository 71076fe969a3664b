"""Whether another incarnation is silent: what one observer has itself seen, on its own monotonic clock.

No wall clock and no clock of the database takes part, so an outage, a slow query or a clock step makes nobody
look dead.
"""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

__all__ = ["Observation", "SeenBeat"]


class SeenBeat(NamedTuple):
    """One reading: an incarnation, its name, its beat, and its lease in seconds."""

    id: UUID
    name: str
    beat: int
    lease: float


class Observation:
    """Watches beats and tells whose stood still for a whole lease.

    Args:
        longest_gap: Seconds between two readings after which the observer no longer trusts what it saw before:
            it may have been asleep itself, together with those it watches.
    """

    def __init__(self, longest_gap: float) -> None:
        self._longest_gap = longest_gap
        self._since: dict[UUID, tuple[int, float]] = {}
        self._read_at: float | None = None

    def start_anew(self) -> None:
        """Forget what was seen: a reading failed."""
        self._since.clear()
        self._read_at = None

    def silent(self, reading: Iterable[SeenBeat], began: float, ended: float) -> list[SeenBeat]:
        """Take a reading; return those that were seen at the same beat for a whole lease.

        Args:
            reading: The beats as read.
            began: Monotonic seconds before the statement was sent: the reading is not older than that.
            ended: Monotonic seconds when the answer was there.
        """
        # Until the answer, not until the question: while a reading hangs, so may the beats.
        if self._read_at is None or ended - self._read_at > self._longest_gap:
            self._since.clear()
        self._read_at = ended
        before, self._since = self._since, {}
        silent = []
        for seen in reading:
            beat, since = before.get(seen.id, (None, 0.0))
            if beat != seen.beat:
                since = ended
            self._since[seen.id] = (seen.beat, since)
            if began - since >= seen.lease:
                silent.append(seen)

        return silent
