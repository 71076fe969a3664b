"""Claim, step 3: free slots take rows.

Takes the free slots of a process, gives claimed jobs. One claimer a process and a batch a claim: many claimers
on one line get in each other's way. Each lane (queue and priority) is read from a lower bound, because dead index
entries pile up at its head while a long transaction elsewhere holds back vacuum; the bound is only a hint, and
regular sweeps from the start find what it would hide.

If the process dies here, a claim that was committed belongs to its incarnation until it is rescued.
"""

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final
from uuid import UUID, uuid4

from aiopgq._store.jobs import EARLIEST, Jobs
from aiopgq._store.trouble import NotSent
from aiopgq._words.clock import monotonic
from aiopgq._words.counted import counted
from aiopgq._words.job import ClaimedJob, Lane
from aiopgq._words.slots import Group
from aiopgq.errors import StoreUnavailable

__all__ = ["Claimer"]

log = logging.getLogger("aiopgq.claim")

# Places are drawn before the commit: the last few may still appear below the highest one seen.
_SLACK: Final = 256
_LANE: Final = attrgetter("queue", "priority")
_PLACE: Final = attrgetter("place")
_PRIORITY: Final = attrgetter("priority")
_SWEEP_INTERVAL: Final = 0.25
_SWEEP_SHARE: Final = 20
# A sweep this quick is worth a try whenever a claim comes back empty.
_QUICK_SWEEP: Final = 0.005
_FORGET_LANE: Final = 60.0
_DUE_INTERVAL: Final = 1.0
_PROMOTE_BATCH: Final = 1000
_LOCKED_PAUSE: Final = 0.1
# A claim whose answer was lost may be committed even later than the next look at it.
_REREAD_INTERVAL: Final = 1.0
_REREAD_FOR: Final = 60.0


class _LaneState:
    __slots__ = ("bound", "seen_at")

    def __init__(self, bound: int, seen_at: float) -> None:
        self.bound = bound
        self.seen_at = seen_at


class Claimer:
    """Claims for one incarnation.

    Args:
        jobs: The store, on a line that settles nothing: claims and settlements overlap.
        worker: The incarnation.
        tasks: Names the worker knows, aliases included.
        fleet: Gives the number of live workers, which share the sweeping.
    """

    def __init__(self, jobs: Jobs, worker: UUID, tasks: Sequence[str], fleet: Callable[[], int]) -> None:
        self._jobs = jobs
        self.worker = worker
        self._tasks = list(tasks)
        self._fleet = fleet
        self._lanes: dict[Lane, _LaneState] = {}
        self._swept_at = 0.0
        self._sweep_took = 0.0
        self._found_nothing = True
        self._due_from = EARLIEST
        self._due_at: float | None = None
        self._asked_due_at = -_DUE_INTERVAL
        self._due_swept_at = 0.0
        # Claims whose answer was lost, and when a look at one first found nothing.
        self._unanswered: dict[UUID, float | None] = {}
        self._reread_at = 0.0

    async def claim(self, group: Group, *, sweep: bool = False) -> list[ClaimedJob]:
        """Claim what is ready for a group of queues, highest priority first.

        Raises:
            StoreUnavailable: No answer; what was taken, if anything, is found by a later call.
        """
        if self._unanswered and (taken := await self._reread()):
            return taken
        slow = self._sweep_took > _QUICK_SWEEP
        # Where sweeps are slow, a job that woke its worker is looked for behind the dead entries first; the sweep is
        # due all the same. Whoever then finds nothing, and may fall asleep, has swept.
        if slow if sweep else not self._time_to_sweep():
            lanes = {lane: state.bound for lane, state in self._lanes.items() if lane.queue in group.queues}
            if lanes and (taken := await self._take(group, lanes)):
                return taken
            if slow and not sweep:
                return []

        began = monotonic()
        taken = await self._take(group, None)
        self._swept_at = monotonic()
        self._sweep_took = self._swept_at - began
        self._forget_lanes()

        return taken

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next waiting job is due, as last heard; None if none waits.

        While the answer to a claim is missing, it is not long until the next look.
        """
        due = None if self._due_at is None else max(0.0, self._due_at - monotonic())
        if self._unanswered:
            return _REREAD_INTERVAL if due is None else min(due, _REREAD_INTERVAL)

        return due

    def time_to_promote(self) -> bool:
        """Tell whether jobs may have come due, or a delayed job may have come unseen while nobody slept."""
        now = monotonic()
        return now - self._asked_due_at > _DUE_INTERVAL or (self._due_at is not None and self._due_at <= now)

    async def promote(self) -> bool:
        """Give due jobs their place in line, and learn when the next is due; True if there were any."""
        now = monotonic()
        # The due list's bound is a hint as well: rows of long transactions appear below it. Whoever is about to
        # sleep must not miss them.
        if self._found_nothing or now - self._due_swept_at > _SWEEP_INTERVAL * _SWEEP_SHARE:
            self._due_from, self._due_swept_at = EARLIEST, now
        self._asked_due_at = now
        promotion = await self._jobs.promote(self._due_from, _PROMOTE_BATCH, self._tasks)
        self._due_from = promotion.reached or self._due_from
        next_in = promotion.next_in
        if next_in == 0 and not promotion.promoted:
            # Somebody else holds the row that is due.
            next_in = _LOCKED_PAUSE
        self._due_at = None if next_in is None else monotonic() + next_in

        return promotion.promoted > 0

    async def _take(self, group: Group, lanes: dict[Lane, int] | None) -> list[ClaimedJob]:
        claim_id = uuid4()
        try:
            taken = await self._jobs.claim(self.worker, claim_id, group.limit, self._tasks, group.queues, lanes)
        except NotSent:
            raise
        except StoreUnavailable:
            self._unanswered[claim_id] = None
            raise
        self._found_nothing = not taken
        # RETURNING has no order of its own.
        taken.sort(key=_PLACE)
        self._move_bounds(taken, swept=lanes is None)
        taken.sort(key=_PRIORITY, reverse=True)

        return taken

    async def leftovers(self) -> list[ClaimedJob]:
        """Return what claims took whose answer was lost; to be asked when no further claim will find it.

        Raises:
            StoreUnavailable: No answer; what is left is rescued with the incarnation.
        """
        taken: list[ClaimedJob] = []
        while self._unanswered:
            claim_id, _ = self._unanswered.popitem()
            taken += await self._jobs.reclaim(self.worker, claim_id)

        return taken

    async def _reread(self) -> list[ClaimedJob]:
        """Look whether claims whose answer was lost took jobs after all."""
        now = monotonic()
        if now - self._reread_at < _REREAD_INTERVAL:
            return []
        self._reread_at = now
        for claim_id in list(self._unanswered):
            taken = await self._jobs.reclaim(self.worker, claim_id)
            # It may wait for a lock on the server, however long ago it was sent.
            missed_at = self._unanswered[claim_id] = self._unanswered[claim_id] or now
            if taken or now - missed_at > _REREAD_FOR:
                del self._unanswered[claim_id]
            if taken:
                log.info("a claim that got no answer had taken what runs now: %s", counted(len(taken), "job"))
                return taken

        return []

    def _move_bounds(self, taken: Sequence[ClaimedJob], *, swept: bool) -> None:
        now = monotonic()
        # They come in the order of their places: the last of a lane stays.
        highest = dict(zip(map(_LANE, taken), map(_PLACE, taken), strict=True))
        for lane, place in highest.items():
            state = self._lanes.setdefault(Lane(*lane), _LaneState(0, now))
            state.seen_at = now
            # A sweep that finds rows rewinds: below the bound there may be more of them.
            state.bound = place - _SLACK if swept else max(state.bound, place - _SLACK)

    def _time_to_sweep(self) -> bool:
        interval = max(_SWEEP_INTERVAL, _SWEEP_SHARE * self._sweep_took) * max(1, self._fleet())
        return not self._lanes or monotonic() - self._swept_at > interval

    def _forget_lanes(self) -> None:
        before = monotonic() - _FORGET_LANE
        for lane in [lane for lane, state in self._lanes.items() if state.seen_at < before]:
            del self._lanes[lane]
