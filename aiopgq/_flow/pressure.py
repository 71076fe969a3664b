"""Pressure, beside the path: a queue that has as many ready jobs as it may takes no more.

Takes a queue and a number of calls; gives how many of them may be enqueued. The number of ready jobs is an estimate:
counted by one caller of a process every tenth of a second at most, and what this process has let in since is added.
So a queue overshoots by what the other processes let in during that time, and by what is on its way.

If the process dies here, nothing is lost but the estimate.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiopgq._words.clock import monotonic
from aiopgq._words.pending import MaxPending
from aiopgq.errors import QueueFull, StoreError

__all__ = ["PATIENCE", "Count", "Pressure"]

PATIENCE: Final = 10.0
_INTERVAL: Final = 0.1
# Counting a long line takes its time; this share of it at most is spent on counting.
_SHARE: Final = 20

Count = Callable[[str, int], Awaitable[int]]


class Pressure:
    """The queues of one App that may not grow without end.

    Args:
        bounds: What each may have.
    """

    def __init__(self, bounds: Mapping[str, MaxPending]) -> None:
        self._gauges = {queue: _Gauge(queue, bound) for queue, bound in bounds.items()}

    def on(self, queue: str) -> bool:
        """Tell whether a queue has a bound."""
        return queue in self._gauges

    async def admit(self, queue: str, wanted: int, count: Count, *, may_wait: bool) -> int:
        """Let calls in, all or, if the queue drops, as many as there is room for; return how many.

        Args:
            queue: The queue.
            wanted: How many calls there are.
            count: Counts the ready jobs of a queue, up to a limit.
            may_wait: Whether there is time to wait for room.

        Raises:
            QueueFull: There is no room.
        """
        gauge = self._gauges.get(queue)
        if gauge is None:
            return wanted
        most, on_full = gauge.bound.jobs, gauge.bound.on_full
        deadline = monotonic() + PATIENCE
        while True:
            pending = await gauge.read(count)
            if wanted <= most - pending:
                gauge.added += wanted
                return wanted
            if on_full == "drop":
                room = max(0, most - pending)
                gauge.added += room
                return room
            if on_full == "raise" or not may_wait or wanted > most or monotonic() > deadline:
                raise QueueFull(queue, pending, most, wanted)
            await asyncio.sleep(gauge.interval)


class _Gauge:
    """About how many ready jobs one queue has."""

    def __init__(self, queue: str, bound: MaxPending) -> None:
        self.bound = bound
        self.interval = _INTERVAL
        self.added = 0
        self._queue = queue
        self._counted: int | None = None
        self._counted_at = 0.0

    async def read(self, count: Count) -> int:
        """Return the estimate; the first to find it too old counts, the others go on with what is known."""
        began = monotonic()
        if self._counted is None or began - self._counted_at >= self.interval:
            self._counted_at = began
            before = self.added
            try:
                self._counted = await count(self._queue, self.bound.jobs + 1)
            except (StoreError, TimeoutError):
                # Whoever enqueues now will hear of it from the insert.
                return (self._counted or 0) + self.added
            self.added -= before
            self._counted_at = monotonic()
            self.interval = max(_INTERVAL, _SHARE * (self._counted_at - began))

        return self._counted + self.added
