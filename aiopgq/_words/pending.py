"""How many ready jobs a queue may have, and what becomes of a call when it has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aiopgq._words import options
from aiopgq.errors import ConfigError

__all__ = ["MaxPending", "bounds"]

_WAYS: Final = ("raise", "wait", "drop")


@dataclass(frozen=True, slots=True)
class MaxPending:
    """The most ready jobs a queue may have: pending, due, and not yet claimed.

    Args:
        jobs: How many. Jobs that wait for a later moment are not counted.
        on_full: `raise`: QueueFull. `wait`: until there is room, ten seconds at most, then QueueFull; a call in the
            caller's transaction raises at once, since waiting would keep that open. `drop`: the call enqueues
            nothing, and its handle says `dropped`.

    Raises:
        ConfigError: One of them cannot be used.

    Example:
        >>> jobs = App(max_pending={"mail": 10_000, "import": MaxPending(500, on_full="wait")})
    """

    jobs: int
    on_full: Literal["raise", "wait", "drop"] = "raise"

    def __post_init__(self) -> None:
        options.count("max_pending", self.jobs)
        if self.on_full not in _WAYS:
            raise ConfigError("max_pending, on_full", f"takes raise, wait or drop, not {self.on_full!r}.")


def bounds(given: Mapping[str, int | MaxPending]) -> dict[str, MaxPending]:
    """Read what an App was told about its queues.

    Raises:
        ConfigError: It cannot be used.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("max_pending", f'takes a mapping such as {{"mail": 10_000}}, not {type(given).__name__}.')
    return {
        options.name("max_pending", queue): bound if isinstance(bound, MaxPending) else MaxPending(bound)
        for queue, bound in given.items()
    }
