"""Results, beside the path: waits for the outcomes of jobs, in any process.

Workers announce finished jobs only while somebody waits; who waits looks at the table as well, so a lost
notification costs a second at most. One listening connection serves all waiters and is closed when idle.

If the process dies here, nothing is lost: waiting changes nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from aiopgq._store.jobs import Jobs, Outstanding
from aiopgq._store.patience import comes
from aiopgq._words.clock import monotonic
from aiopgq._words.job import FINAL
from aiopgq.errors import AppNotOpen, StoreUnavailable

__all__ = ["Results"]

_FIRST_LOOK: Final = 0.1
_LOOK_FACTOR: Final = 1.6
_LONGEST_LOOK: Final = 1.0
# PostgreSQL may be silent for so long, a restart for example, before a waiter is told.
_SILENCE: Final = 10.0
_IDLE: Final = 60.0
_FLAG: Final = 10.0

Listening = Callable[[Callable[[str, str], None], Callable[[bool], None], asyncio.Event], Awaitable[None]]


class Results:
    """The waiters of one App.

    Args:
        jobs: The store.
        listening: Listens to announcements of finished jobs, until its event is set.
    """

    def __init__(self, jobs: Jobs, listening: Listening) -> None:
        self._jobs = jobs
        self._listening = listening
        self._waiters: dict[UUID, set[asyncio.Event]] = {}
        self._waits: set[asyncio.Timeout] = set()
        self._stop = asyncio.Event()
        self._ear: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._flag_until = 0.0
        self._used_at = 0.0

    async def wait(self, job_id: UUID, timeout: float | None) -> Outstanding | None:  # noqa: ASYNC109  # a value is returned
        """Return where a job stands when it is final, or at the latest after `timeout` seconds.

        Raises:
            AppNotOpen: The App was closed meanwhile.
            StoreUnavailable: PostgreSQL did not answer for ten seconds, or not in time.
        """
        while_open = asyncio.timeout(None)
        self._waits.add(while_open)
        try:
            async with while_open:
                return await self._wait(job_id, None if timeout is None else monotonic() + timeout)
        except TimeoutError:
            raise AppNotOpen("wait for a result any longer") from None
        finally:
            self._waits.discard(while_open)

    async def _wait(self, job_id: UUID, until: float | None) -> Outstanding | None:
        announced = asyncio.Event()
        self._waiters.setdefault(job_id, set()).add(announced)
        pause = _FIRST_LOOK
        answered_at = monotonic()
        try:
            while True:
                try:
                    found = await self._look(job_id, announced)
                    answered_at = monotonic()
                except StoreUnavailable:
                    if monotonic() - answered_at >= _SILENCE or (until is not None and monotonic() >= until):
                        raise
                else:
                    if found is None or found.status in FINAL or (until is not None and answered_at >= until):
                        return found
                left = None if until is None else max(0.0, until - monotonic())
                await comes(announced, pause if left is None else min(pause, left))
                pause = min(pause * _LOOK_FACTOR, _LONGEST_LOOK)
        finally:
            self._used_at = monotonic()
            waiters = self._waiters[job_id]
            waiters.discard(announced)
            if not waiters:
                del self._waiters[job_id]

    async def close(self) -> None:
        """Send the waiters away and stop listening."""
        for while_open in self._waits:
            while_open.reschedule(asyncio.get_running_loop().time())
        self._stop.set()
        if self._ear is not None:
            await asyncio.wait([self._ear])

    async def _look(self, job_id: UUID, announced: asyncio.Event) -> Outstanding | None:
        """First ask to be told, then look: what ends after the look is announced."""
        try:
            async with asyncio.timeout(_SILENCE):
                await self._ask_to_be_told()
                announced.clear()
                return await self._jobs.status(job_id)
        except TimeoutError as error:
            raise StoreUnavailable("look at a job") from error

    async def _ask_to_be_told(self) -> None:
        self._used_at = monotonic()
        if self._ear is None or self._ear.done():
            self._stop = asyncio.Event()
            self._ear = asyncio.get_running_loop().create_task(self._listen())
        # One asks for all who wait.
        async with self._asking:
            now = monotonic()
            if self._flag_until - now < _FLAG / 2:
                await self._jobs.await_results(_FLAG)
                self._flag_until = now + _FLAG

    async def _listen(self) -> None:
        stop = self._stop
        listening = asyncio.ensure_future(self._listening(self._heard, self._look_again, stop))
        try:
            while not stop.is_set() and (self._waiters or monotonic() - self._used_at < _IDLE):
                await comes(stop, _IDLE)
        finally:
            # It may be connecting to a server that says nothing.
            listening.cancel()
            await asyncio.wait([listening])

    def _heard(self, _topic: str, payload: str) -> None:
        for job_id in payload.split(","):
            # Anybody may notify anything on this channel.
            with contextlib.suppress(ValueError):
                for announced in self._waiters.get(UUID(job_id), ()):
                    announced.set()

    def _look_again(self, hears: bool) -> None:
        """What was announced while nobody listened is in the table."""
        if not hears:
            return
        for waiters in self._waiters.values():
            for announced in waiters:
                announced.set()
