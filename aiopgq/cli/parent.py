"""The parent of the worker processes: starts them, passes signals on, starts another when one dies.

It imports no App, and opens no connection while all is well, so what takes a worker down does not take it down. Its
children are spawned, never forked, each in a process group of its own: Ctrl-C in a terminal reaches the parent only,
and the parent decides. A child that dies is declared dead at once, so that its jobs run again.

If the parent dies here, however it does, the pipes to its children end, and they stop by themselves.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import structs

from aiopgq.cli.orders import AFTER_GRACE, DONE, DRAINED, HURRY, LAST_CALL, STOP, Brief, Whereabouts
from aiopgq.cli.undertaker import declare_dead

__all__ = ["Parent"]

log = logging.getLogger("aiopgq.cli")

# What cannot get better by itself: wrong use, a schema that does not fit, a PostgreSQL that refuses.
_HOPELESS: Final = (2, 3, 4)
_FAILED: Final = 1
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_LONG_LIFE: Final = 60.0
# A hurried child ends by itself in this time, unless even its threads are stuck.
_PATIENCE: Final = LAST_CALL + 0.7
_LONGEST_REPORT: Final = 65_536
_ORDERED: Final = (signal.SIGINT, signal.SIGTERM)
_MOST_DEAD: Final = 100
_FUNERAL: Final = 2.0
_NEVER: Final = float("inf")


class _Signals:
    """Signals as things to read, one after the other."""

    def __init__(self) -> None:
        self._arrived: deque[int] = deque()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (*_ORDERED, signal.SIGCHLD):
            # Whoever started us may not want Ctrl-C to reach us, as a shell with `&` does not.
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)

        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"!")

    def wait(self, seconds: float) -> int:
        """Wait for a signal or for so long; return how often somebody asked for the end."""
        select.select([self._woken], [], [], None if seconds == _NEVER else seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        asked = 0
        while self._arrived:
            asked += self._arrived.popleft() in _ORDERED

        return asked


class _Child:
    """A worker process, and the pipes to and from it."""

    def __init__(self, target: str, brief: bytes) -> None:
        self.began = time.monotonic()
        theirs, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        # A signal that comes before the child can take it waits for it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERED)
        try:
            self.process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", "-m", "aiopgq.cli.child", target, str(theirs), str(reports)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs, reports),
                process_group=0,
            )
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(theirs)
            os.close(reports)
        self.order(brief)

    def order(self, line: bytes) -> None:
        """Tell it something."""
        with contextlib.suppress(BrokenPipeError):  # it is dead already
            os.write(self._orders, line)

    def report(self) -> tuple[Whereabouts | None, str]:
        """Return where its jobs are, and why it says it ended; it is dead."""
        os.set_blocking(self._reports, False)
        try:
            lines = os.read(self._reports, _LONGEST_REPORT)
        except BlockingIOError:  # a process of its own holds the pipe open
            return None, ""
        whereabouts = None
        while lines.startswith(b"{"):
            line, _, lines = lines.partition(b"\n")
            whereabouts = msgspec.json.decode(line, type=Whereabouts)

        return whereabouts, lines.decode(errors="replace")

    def close(self) -> None:
        """Close the pipes."""
        os.close(self._orders)
        os.close(self._reports)


class _Seat:
    """The place of one worker process, taken by one after the other."""

    def __init__(self) -> None:
        self.child: _Child | None = None
        self.start_at = 0.0
        self.pause = _FIRST_PAUSE


class Parent:
    """Keeps worker processes running until told to stop.

    Args:
        target: The App, as `module[:attr]`.
        brief: What the worker processes are told.
        processes: How many there are.

    Attributes:
        trouble: Why the run ended, as a child reported it, if it could not work at all.
    """

    def __init__(self, target: str, brief: Brief, processes: int) -> None:
        self._target = target
        self._burst = brief.burst
        self._brief = brief
        # The next child declares them dead as well: it reaches the database whatever way the App has.
        self._dead: deque[int] = deque(maxlen=_MOST_DEAD)
        self._undertakers: list[threading.Thread] = []
        self._seats = [_Seat() for _ in range(processes)]
        self._asked = 0
        self._kill_at = _NEVER
        self._code = 0
        self.trouble = ""

    def run(self) -> int:
        """Run until told to stop, or with burst until all are done; return the exit code."""
        with _Signals() as signals, self:
            while True:
                self._start_due()
                if not any(seat.child or seat.start_at < _NEVER for seat in self._seats):
                    return self._code
                for _ in range(signals.wait(self._until())):
                    self._asked_to_end()
                self._reap()
                if time.monotonic() >= self._kill_at:
                    self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for seat in self._seats:
            if seat.child is not None:
                seat.child.close()
        for undertaker in self._undertakers:
            undertaker.join(_FUNERAL)

    def _until(self) -> float:
        """Return the seconds until something is to be done."""
        next_at = min(self._kill_at, *(seat.start_at for seat in self._seats))
        return _NEVER if next_at == _NEVER else max(0.0, next_at - time.monotonic())

    def _start_due(self) -> None:
        for seat in self._seats:
            if seat.start_at <= time.monotonic():
                try:
                    brief = structs.replace(self._brief, predecessors=tuple(self._dead))
                    seat.child = _Child(self._target, msgspec.json.encode(brief) + b"\n")
                except OSError as error:
                    self._start_later(seat, f"cannot start a worker process ({error})")
                else:
                    seat.start_at = _NEVER
                    # The pid of a dead one may be that of a living one now.
                    with contextlib.suppress(ValueError):
                        self._dead.remove(seat.child.process.pid)
                    log.info("started worker process %d", seat.child.process.pid)

    def _start_later(self, seat: _Seat, reason: str) -> None:
        log.error("%s; starting another in %g s", reason, seat.pause)
        seat.start_at = time.monotonic() + seat.pause
        seat.pause = min(2 * seat.pause, _LONGEST_PAUSE)

    def _asked_to_end(self) -> None:
        self._asked += 1
        if self._asked == 1:
            log.info("stopping; running jobs may finish, a second signal cuts them short")
            # They end by themselves long before, unless somebody has frozen them.
            self._kill_at = time.monotonic() + self._brief.shutdown_grace + AFTER_GRACE + _PATIENCE
            self._stop()
        elif self._asked == 2:  # noqa: PLR2004  # the second signal
            log.warning("stopping now; a third signal kills")
            self._kill_at = time.monotonic() + _PATIENCE
            self._tell(HURRY)
        else:
            self._kill()

    def _stop(self) -> None:
        for seat in self._seats:
            seat.start_at = _NEVER
        self._tell(STOP)

    def _tell(self, order: bytes) -> None:
        for seat in self._seats:
            if seat.child is not None:
                seat.child.order(order)

    def _kill(self) -> None:
        self._kill_at = _NEVER
        for seat in self._seats:
            if seat.child is not None:
                log.warning("worker process %d is killed", seat.child.process.pid)
                seat.child.process.kill()

    def _reap(self) -> None:
        for seat in self._seats:
            child = seat.child
            if child is None or (code := child.process.poll()) is None:
                continue
            whereabouts, report = child.report()
            drained = report.endswith(DRAINED)
            died = bool(code) or report not in (DONE, DRAINED)
            report = report.removesuffix(DONE).removesuffix(DRAINED)
            if died:
                self._declare_dead(child.process.pid, whereabouts)
            child.close()
            seat.child = None
            obituary = _obituary(child, code, report)
            # One that said nothing was ended by a handler, whatever the number means to us.
            if code in _HOPELESS and report:
                self._give_up(code, report or obituary)
            elif not (self._asked or self._burst or self._code or drained):
                self._bury(seat, child, obituary)
            elif died:
                log.error("%s", obituary)
                self._code = self._code or _FAILED
            elif drained:
                log.info("worker process %d was drained; no other takes its place", child.process.pid)

    def _declare_dead(self, pid: int, whereabouts: Whereabouts | None) -> None:
        """A child has ended, so its incarnations are dead: what they still own is run again, at once."""
        self._dead.append(pid)
        if whereabouts is not None and whereabouts.dsn:
            declare = partial(declare_dead, whereabouts, self._brief.parent, pid)
            undertaker = threading.Thread(target=declare, name="aiopgq undertaker", daemon=True)
            undertaker.start()
            self._undertakers = [one for one in self._undertakers if one.is_alive()] + [undertaker]

    def _give_up(self, code: int, report: str) -> None:
        """No worker can work: end the run."""
        if not self.trouble:
            self._code = code
            self.trouble = report
        self._stop()

    def _bury(self, seat: _Seat, child: _Child, obituary: str) -> None:
        """A child died though nobody asked it to."""
        if time.monotonic() - child.began >= _LONG_LIFE:
            seat.pause = _FIRST_PAUSE
        self._start_later(seat, obituary)


def _obituary(child: _Child, code: int, report: str) -> str:
    if code >= 0:
        how = f"ended with exit code {code}"
    else:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"

    return f"worker process {child.process.pid} {how}{': ' + report if report else ''}"
