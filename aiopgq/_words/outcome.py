"""What a run can say: completed with a value, or one of four outcomes, returned or raised.

Returned, the handler's own writes commit (it matters for transactional tasks); raised, they roll back.
"""

from datetime import timedelta
from typing import Final, final

from aiopgq._words.options import seconds

__all__ = ["OUTCOMES", "Cancel", "Fail", "Outcome", "Retry", "Snooze"]


@final
class Retry(Exception):
    """Run the job again later; this attempt is spent.

    Args:
        after: Seconds (or a timedelta) until it is due; None asks the task's backoff.

    Example:
        >>> async def fetch(url: str) -> str | Retry:
        ...     return Retry(after=30)
    """

    def __init__(self, after: float | timedelta | None = None) -> None:
        self.after = None if after is None else seconds("Retry(after=…)", after)
        super().__init__(after)


@final
class Snooze(Exception):
    """Run the job again later; no attempt is spent.

    Args:
        delay: Seconds (or a timedelta) until it is due.
    """

    def __init__(self, delay: float | timedelta) -> None:
        self.delay = seconds("Snooze(…)", delay)
        super().__init__(delay)


@final
class Cancel(Exception):
    """End the job as cancelled.

    Args:
        reason: Kept with the job as its last error.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(reason)


@final
class Fail(Exception):
    """Make the job a dead letter now, whatever attempts remain.

    Args:
        reason: Kept with the dead letter as its last error.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(reason)


Outcome = Retry | Snooze | Cancel | Fail
OUTCOMES: Final = (Retry, Snooze, Cancel, Fail)
