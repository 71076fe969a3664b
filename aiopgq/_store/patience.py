"""Waiting: for an event and no longer; before another try, ever longer, with jitter, and quiet about it."""

import asyncio
import logging
import random
from typing import Final

__all__ = ["Patience", "comes"]

_FIRST: Final = 0.1
_FACTOR: Final = 2.0
_LONGEST: Final = 5.0


class Patience:
    """The waits of one loop that depends on the database.

    Args:
        log: Where trouble is reported.
        doing: What the loop does, as a log line would say it.
        longest: Seconds it waits at most.
    """

    def __init__(self, log: logging.Logger, doing: str, longest: float = _LONGEST) -> None:
        self._longest = longest
        self._log = log
        self._doing = doing
        self._tries = 0

    @property
    def troubled(self) -> bool:
        """Whether the last try failed."""
        return self._tries > 0

    def failed(self, error: BaseException) -> float:
        """Note a failure; return the seconds to wait. The first one is a WARNING, repeats are DEBUG."""
        wait = min(self._longest, _FIRST * _FACTOR ** min(self._tries, 30)) * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
        self._log.log(
            logging.WARNING if self._tries == 0 else logging.DEBUG,
            "cannot %s, trying again until it works: %s",
            self._doing,
            error,
        )
        self._tries += 1

        return wait

    def worked(self) -> None:
        """Note a success; after trouble it is told once."""
        if self._tries:
            self._log.info("can %s again, after %d tries", self._doing, self._tries)
            self._tries = 0


async def comes(event: asyncio.Event, within: float | None) -> bool:
    """Wait for an event, so many seconds at most, None for ever; tell whether it came."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False

    return True
