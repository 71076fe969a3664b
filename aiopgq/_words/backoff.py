"""From the number of an attempt to the seconds before the next one."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from aiopgq._words.options import LONGEST, MOST, number, seconds

__all__ = ["Backoff", "BackoffPolicy", "Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What a backoff policy sees.

    Attributes:
        task: The task's name.
        attempt: The attempt that failed, from 1.
        max_attempts: How many there may be.
        error: The exception (a TimeoutError when the job ran out of time).
    """

    task: str
    attempt: int
    max_attempts: int
    error: BaseException


BackoffPolicy = Callable[[Failure], float | timedelta | None]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `min(cap, base * factor ** (attempt - 1))`, spread by jitter.

    The defaults give the twelve attempts of a task about five and a half hours in all.

    Args:
        base: Seconds before the second attempt.
        factor: How much longer each further wait is.
        cap: The longest wait, in seconds, before jitter.
        jitter: The share by which a wait is spread to both sides, 0 to 1. Without it, jobs that
            failed together come back together.

    Example:
        >>> Backoff(base=1, factor=4, cap=3600, jitter=0).delay(3)
        16.0
    """

    base: float | timedelta = 1.0
    factor: float = 4.0
    cap: float | timedelta = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", seconds("Backoff(base=…)", self.base))
        object.__setattr__(self, "cap", seconds("Backoff(cap=…)", self.cap))
        # A float overflows at once, where an integer would grow for minutes.
        object.__setattr__(self, "factor", number("Backoff(factor=…)", self.factor, 1, MOST))
        object.__setattr__(self, "jitter", number("Backoff(jitter=…)", self.jitter, 0, 1))

    def delay(self, attempt: int, spread: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after an attempt, safe at any attempt number.

        Args:
            attempt: The attempt that failed, from 1.
            spread: Gives a number from 0 to 1 for the jitter.
        """
        base, cap = float(self.base), float(self.cap)  # type: ignore[arg-type]  # seconds since __post_init__
        try:
            wait = min(cap, base * self.factor ** (max(attempt, 1) - 1))
        except OverflowError:
            wait = cap if base else 0.0

        return min(wait * (1 + self.jitter * (2 * spread() - 1)), LONGEST)

    def __call__(self, failure: Failure) -> float:
        """Be a backoff policy."""
        return self.delay(failure.attempt)
