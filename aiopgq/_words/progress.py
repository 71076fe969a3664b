"""How far a job is, as somebody who watches it sees it."""

from typing import NamedTuple

from aiopgq._words.job import FINAL, Status

__all__ = ["Progress"]


class Progress(NamedTuple):
    """How far a job is.

    Attributes:
        status: pending, claimed, running, completed, failed or cancelled.
        percent: 0 to 100, as reported last by this run; None if nothing was.
        stage: As reported last by this run; None if nothing was.
        events: How many reports there were, in all runs.
        attempt: Runs begun so far.
    """

    status: Status
    percent: float | None
    stage: str | None
    events: int
    attempt: int

    @property
    def final(self) -> bool:
        """Whether it is completed, failed or cancelled."""
        return self.status in FINAL
