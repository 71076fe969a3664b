"""What a parent tells its worker processes, and what they tell it: lines on two pipes.

The first line a child reads is its `Brief`; each later one is an order. The end of the pipe means that the parent is
dead, however it died. On the other pipe a child says why it cannot work, so that the parent may say it once.
"""

import contextlib
import os
import select
import signal
import threading
import time
from typing import Final, Protocol
from uuid import UUID

import msgspec

__all__ = ["AFTER_GRACE", "DONE", "DRAINED", "HURRY", "LAST_CALL", "STOP", "Brief", "Orders", "Whereabouts"]

STOP: Final = b"stop\n"
HURRY: Final = b"hurry\n"
# The last word of a worker process that came to its end; a handler may call os._exit(0).
DONE: Final = "done"
# The same of one that somebody drained: no other takes its place.
DRAINED: Final = "drained"
# What a hurried worker needs at most; who does not end in this time is stuck.
LAST_CALL: Final = 4.0
# After the grace: handlers are cancelled, outcomes written, connections closed.
AFTER_GRACE: Final = 30.0
# What a child whose parent is dead gives its jobs at most: nobody can ask it to hurry.
_ORPHAN_GRACE: Final = 5.0
_CHUNK: Final = 65_536


class Brief(msgspec.Struct, frozen=True):
    """What a worker process is told at its start.

    Attributes:
        dsn: Replaces the one of the App.
        schema: Replaces the one of the App.
        queues: The queues to serve, with their slots; empty for all.
        concurrency: As of `App.worker`, like the next four.
        name: See there.
        burst: See there.
        poll_interval: See there.
        shutdown_grace: See there.
        job_log: See there.
        log_level: For logging, None if it was not said.
        log_format: Likewise.
        uvloop: Whether to use it.
        parent: The id of the parent.
        predecessors: Pids of its children that ended.
    """

    dsn: str | None
    schema: str | None
    queues: dict[str, int | None]
    concurrency: int
    name: str | None
    burst: bool
    poll_interval: float
    shutdown_grace: float
    job_log: bool
    log_level: str | None
    log_format: str | None
    uvloop: bool
    parent: UUID
    predecessors: tuple[int, ...] = ()


class Whereabouts(msgspec.Struct, frozen=True):
    """Where the jobs of a worker process are, for its parent to look after when it has died.

    Attributes:
        dsn: Where the database is; empty if the App makes its connections by a function of its own.
        schema: The schema of its tables.
        keep: Whether finished jobs are kept.
    """

    dsn: str
    schema: str
    keep: bool


class _Stop(Protocol):
    def __call__(self, *, now: bool) -> None: ...


class Orders:
    """Takes orders in a worker process, from its first moment on, whatever the main thread is doing.

    A thread reads them, so a handler that blocks the event loop does not keep the process: who does not end in time
    is ended, by `os._exit`.

    Args:
        orders: The pipe to read.
        reports: The pipe to write.
    """

    def __init__(self, orders: int, reports: int) -> None:
        self._orders = orders
        self._reports = reports
        self._woken, self._waker = os.pipe()
        for own in (self._waker, reports):
            os.set_blocking(own, False)
        for inherited in (orders, reports):
            os.set_inheritable(inherited, False)  # noqa: FBT003  # so it is defined
        self._obey: _Stop | None = None
        self._stopping = False
        self._hurried = False
        self._grace = 0.0
        self._hurry_at = float("inf")
        self._end_at = float("inf")
        self._unread = b""
        # Only the parent decides how the process ends; a signal sent to it alone is an order to stop.
        signal.signal(signal.SIGTERM, lambda *_: self._wake())
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def brief(self) -> Brief:
        """Wait for the first line, then take orders."""
        while b"\n" not in self._unread:
            chunk = os.read(self._orders, _CHUNK)
            if not chunk:
                self.end(1)
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        brief = msgspec.json.decode(line, type=Brief)
        self._grace = brief.shutdown_grace
        threading.Thread(target=self._take, name="aiopgq orders", daemon=True).start()

        return brief

    def follow(self, stop: _Stop) -> None:
        """Pass orders on to a worker, those that came before as well."""
        self._obey = stop
        if self._stopping:
            stop(now=self._hurried)

    def expect_end(self) -> None:
        """The worker has ended; so will the process, or it is ended."""
        self._grace = 0.0
        self._stopping = True
        self._end_at = min(self._end_at, time.monotonic() + AFTER_GRACE)
        self._wake()

    def report(self, text: str) -> None:
        """Tell the parent why this process ends."""
        with contextlib.suppress(OSError):
            os.write(self._reports, text.encode(errors="backslashreplace")[:_CHUNK])

    def announce(self, whereabouts: Whereabouts) -> None:
        """Tell the parent where the jobs of this process are."""
        with contextlib.suppress(OSError):
            os.write(self._reports, msgspec.json.encode(whereabouts) + b"\n")

    def end(self, code: int) -> None:
        """End the process at once: threads and handlers that do not stop are not waited for."""
        os._exit(code)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"!")

    def _take(self) -> None:
        sources = [self._orders, self._woken]
        self._read(self._unread)
        while True:
            now = time.monotonic()
            if now >= self._end_at:
                self.report("it did not end in time and was ended; what still ran is left behind")
                self.end(1)
            if now >= self._hurry_at:
                self._hurry()
            timeout = max(0.0, min(self._hurry_at, self._end_at) - time.monotonic())
            ready, _, _ = select.select(sources, [], [], None if timeout == float("inf") else timeout)
            if self._woken in ready:
                os.read(self._woken, _CHUNK)
                self._stop()
            if self._orders in ready:
                chunk = os.read(self._orders, _CHUNK)
                self._read(chunk)
                if not chunk:
                    sources.remove(self._orders)
                    self._stop()
                    self._hurry_at = min(self._hurry_at, time.monotonic() + min(self._grace, _ORPHAN_GRACE))

    def _read(self, orders: bytes) -> None:
        # A pipe keeps short writes whole.
        if STOP in orders:
            self._stop()
        if HURRY in orders:
            self._hurry()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._end_at = time.monotonic() + self._grace + AFTER_GRACE
        if self._obey is not None:
            with contextlib.suppress(RuntimeError):  # its event loop has just closed
                self._obey(now=self._hurried)

    def _hurry(self) -> None:
        self._hurried = True
        self._hurry_at = float("inf")
        self._end_at = min(self._end_at, time.monotonic() + LAST_CALL)
        self._stop()
