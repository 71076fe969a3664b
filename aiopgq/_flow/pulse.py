"""Pulse, beside the path: says that the incarnation lives, from a thread of its own.

A handler that blocks the event loop must not cost the lease, so the beats have their own thread, loop and connection:
one beat an interval, for the incarnation, never for a job. The answer brings what the worker should know: how many
workers live, and which of its jobs somebody wants cancelled. The thread also watches the main loop, and knows until
when the lease holds: nine tenths of it, counted from when the last acknowledged beat was *sent*.

If the process dies here, its beat stands still, and after a lease others take its jobs.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import anyio
import anyio.to_thread

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.patience import Patience, comes
from aiopgq._store.workers import Beat, Workers
from aiopgq._words.clock import monotonic
from aiopgq.errors import StoreError

__all__ = ["Heart", "Pulse"]

log = logging.getLogger("aiopgq.pulse")

# The lease ends for its owner a tenth before it ends for the others.
_OWN_SHARE: Final = 0.9
_LOOK: Final = 0.25
_HANG: Final = 1.0
# After the lease: so long the main loop has to notice before the thread ends the process, if it may.
_LAST_NOTICE: Final = 2.0
_EXIT_FENCED: Final = 1


@dataclass(frozen=True, slots=True)
class Heart:
    """How a worker beats.

    Attributes:
        lease: Seconds a silent worker keeps its jobs.
        interval: Seconds between beats.
        hang_limit: Seconds the event loop may be blocked before the worker gives itself up.
        exits: Whether the process may be ended when the loop does not notice that the lease is over.
    """

    lease: float
    interval: float
    hang_limit: float
    exits: bool


class Pulse:
    """The beats of one incarnation.

    Args:
        settings: Where to connect.
        worker: The incarnation.
        heart: How it beats.
        draining: Tells whether it has stopped claiming.
        heard: Called in the main loop with the answer to each beat.
        lost: Called in the main loop, once, with the reason, when the lease is over.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        worker: UUID,
        heart: Heart,
        *,
        draining: Callable[[], bool],
        heard: Callable[[Beat], None],
        lost: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._heart = heart
        self._draining = draining
        self._heard = heard
        self._lost = lost
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._live, name="aiopgq-pulse", daemon=True)
        self._stop = threading.Event()
        self._own: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._asked_at: float | None = None
        self._told_hang = False
        self._looked_at = monotonic()
        self._given_up = False
        self._over: str | None = None
        self._over_at = 0.0
        self._noticed = False
        self.fleet = 1
        self.beat_at: float | None = None
        self.holds_until = monotonic() + _OWN_SHARE * heart.lease

    @property
    def holds(self) -> bool:
        """Whether the lease still holds: others cannot have taken the jobs."""
        return self._over is None and monotonic() < self.holds_until

    def start(self, registered_at: float) -> None:
        """Begin to beat; the registration, sent at this moment, was the first beat."""
        self.holds_until = registered_at + _OWN_SHARE * self._heart.lease
        self._looked_at = monotonic()
        self._thread.start()

    async def stop(self, within: float) -> None:
        """Stop beating."""
        self._stop.set()
        if self._own is not None:
            loop, stopped = self._own
            with contextlib.suppress(RuntimeError):  # the thread has just ended
                loop.call_soon_threadsafe(stopped.set)
        if self._thread.is_alive():
            # A limiter of its own: the handlers' threads may have taken all of the common one, for good.
            await anyio.to_thread.run_sync(self._thread.join, within, limiter=anyio.CapacityLimiter(1))

    # in the thread

    def _live(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._beat_and_watch())

    async def _beat_and_watch(self) -> None:
        line = Line(self._settings, "pulse", timer=max(self._heart.interval, 2 * _HANG))
        beating = asyncio.ensure_future(self._beat(Workers(line)))
        stopped = asyncio.Event()
        self._own = (asyncio.get_running_loop(), stopped)
        try:
            while not self._stop.is_set():
                self._watch_loop()
                self._watch_lease()
                await comes(stopped, _LOOK)
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            await line.close()

    async def _beat(self, workers: Workers) -> None:
        patience = Patience(log, "beat")
        while not self._given_up:
            sent = monotonic()
            try:
                beat = await workers.heartbeat(self._worker, draining=self._draining())
            except StoreError as error:
                await asyncio.sleep(min(self._heart.interval, patience.failed(error)))
                continue
            patience.worked()
            if not beat.alive:
                self._end("it was declared dead by others")
                return
            self.beat_at, self.fleet = sent, max(1, beat.fleet)
            self.holds_until = sent + _OWN_SHARE * self._heart.lease
            self._tell(lambda beat=beat: self._heard(beat))  # type: ignore[misc]  # mypy has no type for the default
            await asyncio.sleep(max(0.0, sent + self._heart.interval - monotonic()))

    def _watch_lease(self) -> None:
        if self._over is None and monotonic() >= self.holds_until:
            self._end(f"no beat was acknowledged for {_OWN_SHARE * self._heart.lease:g} s")
        if self._over is not None and not self._noticed and monotonic() - self._over_at > _LAST_NOTICE:
            self._noticed = True
            log.critical("the lease is over and the event loop does not answer: its handlers cannot be stopped")
            if self._heart.exits:
                logging.shutdown()
                os._exit(_EXIT_FENCED)

    def _end(self, reason: str) -> None:
        self._over, self._over_at = reason, monotonic()
        self._tell(self._notice)

    def _watch_loop(self) -> None:
        """Ask the main loop for a sign; tell where it hangs when it gives none."""
        now = monotonic()
        slept, self._looked_at = now - self._looked_at, now
        if slept > _HANG + _LOOK:
            log.warning("this process stood still for %.1f s: it was stopped, or a call kept all its threads", slept)
            if self._asked_at is not None:
                # The main loop could not answer meanwhile, and what it does now has not blocked it.
                self._asked_at = now
            return
        if self._asked_at is None:
            self._asked_at = now
            self._tell(self._answer)
            return
        hangs_for = now - self._asked_at
        if hangs_for > _HANG and not self._told_hang:
            self._told_hang = True
            log.warning("the event loop has been blocked for %.1f s by:\n%s", hangs_for, self._stack(self._main_thread))
        if hangs_for > self._heart.hang_limit and not self._given_up:
            self._given_up = True
            stacks = "\n".join(self._stack(thread) for thread in sys._current_frames())  # noqa: SLF001  # documented
            log.critical("the event loop has been blocked for %g s: no more beats. All threads:\n%s", hangs_for, stacks)

    def _stack(self, thread: int) -> str:
        frame = sys._current_frames().get(thread)  # noqa: SLF001  # documented
        return "".join(traceback.format_stack(frame)) if frame is not None else "(gone)"

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            self._main.call_soon_threadsafe(what)
        except RuntimeError:  # the main loop is closed: nobody is left to be told
            self._stop.set()

    # in the main loop

    def _answer(self) -> None:
        if self._told_hang and self._asked_at is not None:
            log.warning("the event loop was blocked for %.1f s", monotonic() - self._asked_at)
        self._asked_at, self._told_hang = None, False

    def _notice(self) -> None:
        self._noticed = True
        self._lost(self._over or "")
