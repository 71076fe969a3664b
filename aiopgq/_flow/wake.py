"""Wake, step 2: a row becomes a nudge.

Takes notifications from the listener and decides how long the claimer may sleep; gives it back control when
there may be jobs. Producers notify only while a flag says that somebody sleeps, so falling asleep is a protocol:
raise the flag, wait until no transaction is left that may have missed it, look again, sleep.

If the process dies here, its flag expires by itself; nothing is lost, jobs stay in their line.
"""

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from aiopgq._store.jobs import Asleep
from aiopgq._store.patience import comes
from aiopgq._words.clock import monotonic

__all__ = ["Flags", "Look", "Sleeper", "slot"]

# Woken this often within so many seconds: the next jobs are as near, stay up for a while.
_BUSY_WAKES: Final = 10
_BUSY_SPAN: Final = 0.1
_LINGER: Final = 0.05
_LINGER_PAUSE: Final = 0.004
# The ladder: pauses between looks until the horizon has passed.
_FIRST_PAUSE: Final = 0.002
_PAUSE_FACTOR: Final = 1.5
_LONG_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_PATIENT_AFTER: Final = 1.0
# The flag outlives the sleep. A producer says nothing of a delayed job that is due beyond the flag, so whoever
# only extends it must have read the due list, again and again, long before the old flag's moment comes.
_FLAG_MARGIN: Final = 60.0
_FLAG_INTERVALS: Final = 2
_DEAF_POLL: Final = 1.0


class Look(Protocol):
    """Sweep the line once; True if it gave work or no slot is free."""

    def __call__(self) -> Awaitable[bool]: ...


class Flags(Protocol):
    """The statements about flags: those of queues are in `Jobs`, that of relays is in `Events`."""

    async def fall_asleep(
        self, slots: Sequence[int], seen: Sequence[int], seconds: float, lowered: Sequence[int] | None, /
    ) -> Asleep: ...

    async def horizon_passed(self, horizon: int, /) -> bool: ...

    async def wake_up(self, slots: Sequence[int], flags: Sequence[int], /) -> None: ...

    async def leave_sleepers(self, slots: Sequence[int], flags: Sequence[int], queues: Sequence[str], /) -> None: ...


def slot(queue: str) -> int:
    """Return the slot of sleepers a queue belongs to; SQL computes the same in `aiopgq.slot`."""
    return hashlib.sha256(queue.encode()).digest()[0] & 15


class Sleeper:
    """Sleeps for one worker, on the queues it serves.

    Args:
        jobs: The store.
        queues: The queues served.
        poll_interval: Seconds between looks while asleep; the net below the notifications.
        next_due: Gives the seconds until the next waiting job is due, None if none waits.
        fleet: Gives the number of live workers; idle ones share the work of looking.
    """

    def __init__(
        self,
        jobs: Flags,
        queues: Iterable[str],
        poll_interval: float,
        next_due: Callable[[], float | None],
        fleet: Callable[[], int],
    ) -> None:
        self._jobs = jobs
        self._names = {slot(queue): queue for queue in queues}
        self._slots = sorted(self._names)
        self._poll_interval = poll_interval
        self._flag_margin = max(_FLAG_MARGIN, _FLAG_INTERVALS * poll_interval)
        self._next_due = next_due
        self._fleet = fleet
        self._flags = [0] * len(self._slots)
        # How often the flags had been lowered when they were raised here: as long as that stays, they stand.
        self._lowered: list[int] | None = None
        # Whether nobody can have missed the flags as they stand, so that extending them is enough.
        self._trusted = False
        # Whether they still stand as this worker raised them: a notification that came late may have lowered them.
        self._standing = False
        self._nudge = asyncio.Event()
        self._notified: set[int] = set()
        self._wakes: deque[float] = deque(maxlen=_BUSY_WAKES)
        self._lowering: asyncio.Task[None] | None = None
        self.deaf = True
        self.asleep = False

    def heard(self, queue: str) -> None:
        """Take a notification about a queue."""
        number = slot(queue)
        if number in self._slots:
            self._notified.add(number)
            self._wakes.append(monotonic())
            self._nudge.set()

    def nudge(self) -> None:
        """Look again at once, whatever the reason: a slot came free, LISTEN came back, the worker stops."""
        self._nudge.set()

    def hearing(self, *, deaf: bool) -> None:
        """Take note of the listener's state; what was announced before may have been missed."""
        self.deaf = deaf
        self._trusted = False
        self._nudge.set()

    def looking(self) -> None:
        """Note that a look at the line begins: it covers every nudge so far."""
        self._nudge.clear()

    async def pause(self) -> None:
        """Wait for a nudge: no slot is free, or too many outcomes are unsettled."""
        await comes(self._nudge, _LONGEST_PAUSE)
        self._nudge.clear()

    async def rest(self, look: Look) -> None:
        """Return when there may be work: notified, nudged, due, or polling. The line was just found empty."""
        if self._busy() and await self._linger(look):
            return
        if self.deaf:
            await comes(self._nudge, min(_DEAF_POLL, self._poll_interval) * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            return

        seconds = self._poll_interval * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
        lowered = self._lowered if self._trusted else None
        raised_at = monotonic()
        asleep = await self._jobs.fall_asleep(self._slots, self._flags, seconds + self._flag_margin, lowered)
        self._flags, self._lowered = asleep.flags, asleep.lowered
        self._standing, self._trusted = True, False
        if asleep.horizon is not None and await self._climb_down(asleep.horizon, look):
            return
        if self.deaf or not self._standing:
            return
        self._trusted = True
        # A ladder may take long; nobody announces anything to a sleeper whose flag has lapsed.
        stands_for = raised_at + seconds + self._flag_margin - monotonic()
        due = self._next_due()
        self.asleep = True
        try:
            await comes(self._nudge, min(seconds, stands_for, seconds if due is None else due))
        finally:
            self.asleep = False

    def lower_flags(self, *, found: bool) -> None:
        """After a notification: tell producers that they need not notify, while the worker is at work.

        Of a fleet that one job woke, all but one find nothing. They leave the flags as they are and sleep on, unless
        jobs come so fast that they will be looking again and again.

        Args:
            found: Whether the look that the notification caused gave work.
        """
        if not found and not self._busy():
            return
        hit = [
            (number, flag) for number, flag in zip(self._slots, self._flags, strict=True) if number in self._notified
        ]
        self._notified.clear()
        if hit:
            self._standing = self._trusted = False
            self._lowering = lowering = asyncio.ensure_future(
                self._jobs.wake_up([number for number, _ in hit], [flag for _, flag in hit])
            )
            # A flag that stays up costs a few notifications, no more.
            lowering.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def leave(self) -> None:
        """Take the flags down for good: nobody sleeps here any more."""
        await self._jobs.leave_sleepers(self._slots, self._flags, [self._names[number] for number in self._slots])

    def _busy(self) -> bool:
        return len(self._wakes) == _BUSY_WAKES and monotonic() - self._wakes[0] < _BUSY_SPAN + _LINGER

    async def _linger(self, look: Look) -> bool:
        """Poll for a little while; idle processes share the polling."""
        until = monotonic() + _LINGER
        while monotonic() < until:
            await comes(self._nudge, _LINGER_PAUSE * max(1, self._fleet()))
            if await look():
                self._wakes.append(monotonic())
                return True

        return False

    async def _climb_down(self, horizon: int, look: Look) -> bool:
        """Look until no transaction is left that may have missed the flag; True if there was work meanwhile."""
        began = monotonic()
        pause = _FIRST_PAUSE
        while True:
            # First the horizon, then the look: what was committed before the first is seen by the second.
            passed = await self._jobs.horizon_passed(horizon)
            if await look() or self._nudge.is_set():
                return True
            if passed:
                return False
            await comes(self._nudge, pause)
            if self._nudge.is_set():
                return True
            ceiling = _LONG_PAUSE if monotonic() - began < _PATIENT_AFTER else _LONGEST_PAUSE
            pause = min(pause * _PAUSE_FACTOR, ceiling)
