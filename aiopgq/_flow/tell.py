"""Tell, beside the path: what happens to jobs, to those who have subscribed.

Takes events in the order they happen, gives them to handlers one after the other, away from the path of jobs: a slow
handler delays other handlers only, and one that fails is logged. What waits is bounded; beyond, events are dropped and
that is said.

If the process dies here, events are not told; no job is affected. An event is told once at most.
"""

import asyncio
import inspect
import logging
from collections import deque
from typing import Final

from aiopgq._store.patience import comes
from aiopgq._words.clock import monotonic
from aiopgq._words.counted import counted
from aiopgq._words.event import EventHandler, Handlers, JobEvent, ended, started
from aiopgq._words.job import ClaimedJob, Settlement

__all__ = ["Teller"]

log = logging.getLogger("aiopgq.events")

_MOST_WAITING: Final = 10_000
_LONGEST: Final = 30.0
_WARN_INTERVAL: Final = 60.0


class Teller:
    """Tells the events of one worker.

    Args:
        handlers: Who wants to hear what.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = {kind: tuple(some) for kind, some in handlers.items() if some}
        self._waiting: deque[JobEvent] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._warned_at = float("-inf")

    @property
    def listened_to(self) -> bool:
        """Whether anybody wants to hear anything; else nothing need be told here."""
        return bool(self._handlers)

    def started(self, job: ClaimedJob) -> None:
        """A run begins."""
        if "started" in self._handlers:
            self._add(started(job))

    def ended(self, settlement: Settlement) -> None:
        """What became of a run is written."""
        event = ended(settlement)
        if event.kind in self._handlers:
            self._add(event)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._arrived.wait()
            while self._waiting:
                event = self._waiting.popleft()
                for handler in self._handlers[event.kind]:
                    # A task of its own: what a handler makes of being cancelled, or raises, stays there.
                    telling = asyncio.ensure_future(_told(handler, event))
                    try:
                        await asyncio.wait([telling])
                    finally:
                        telling.cancel()
            self._arrived.clear()
            self._idle.set()

    async def told(self, within: float) -> bool:
        """Wait until everything is told, so many seconds at most; tell whether that came true."""
        told = await comes(self._idle, within)
        if not told:
            log.warning("not told: %s, whose handlers took too long", counted(len(self._waiting) + 1, "event"))

        return told

    def _add(self, event: JobEvent) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            if monotonic() - self._warned_at > _WARN_INTERVAL:
                self._warned_at = monotonic()
                log.warning("events are dropped: %d wait for handlers that are too slow", len(self._waiting))
            return
        self._waiting.append(event)
        self._arrived.set()
        self._idle.clear()


async def _told(handler: EventHandler, event: JobEvent) -> None:
    try:
        async with asyncio.timeout(_LONGEST):
            answer = handler(event)
            if inspect.isawaitable(answer):
                await answer
    except BaseException:  # SystemExit of a handler must not end the worker
        log.exception("a handler of the event %r of job %s failed", event.kind, event.job_id)
