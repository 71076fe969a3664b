"""Jobs that wait in a worker for a slot: how many may, for how long, and who is next.

More jobs than there are slots are claimed while runs are so short that the claims would bound the throughput.
What waits should start within some 20 ms by what runs took lately; whatever has not after 100 ms, because a slow job
came between, is given to other workers. A job that waits may start before one of higher priority that came later, by
as much.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from aiopgq._words.clock import monotonic
from aiopgq._words.job import ClaimedJob
from aiopgq._words.slots import Group, Slots

__all__ = ["TICK", "Prefetch"]

# Seconds between two ticks. A job may see two: ticks and not the clock are counted, so that a process that was
# stopped for a while does not give away what it could run at once.
TICK: Final = 0.05
_PATIENCE: Final = 2
_SOON: Final = 0.02
# Or as many as there are slots, if those are more: they run while the next are claimed.
_MOST: Final = 100
# Characters of arguments that wait, by what jobs brought lately.
_LARGEST: Final = 1_000_000
_ENOUGH_RUNS: Final = 10
_WEIGHT: Final = 0.1
# Where one job was claimed ahead for nothing there are more like it, for so many seconds.
_BARRED: Final = 10.0


class _Pool:
    """The jobs that wait for the same slots, and how long runs in them take."""

    __slots__ = ("barred_until", "characters", "mark", "runs", "seconds", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        # Each with the tick at which it came.
        self.waiting: deque[tuple[ClaimedJob, int]] = deque()
        # With so many left, more may be claimed.
        self.mark = 0
        self.barred_until = 0.0
        self.forget()

    def forget(self) -> None:
        """Know nothing about runs."""
        self.runs = 0
        self.seconds = self.characters = 0.0

    def measure(self, seconds: float, characters: int) -> None:
        """Take a run into the means; the first ones weigh the same."""
        weight = _WEIGHT
        if self.runs < _ENOUGH_RUNS:
            self.runs += 1
            weight = 1 / self.runs
        self.seconds += weight * (seconds - self.seconds)
        self.characters += weight * (characters - self.characters)

    def bar(self) -> None:
        """Let none wait for a while."""
        self.barred_until = monotonic() + _BARRED

    @property
    def most(self) -> int:
        """How many may wait."""
        if self.runs < _ENOUGH_RUNS or self.seconds > _SOON or monotonic() < self.barred_until:
            return 0
        soon = _SOON * self.size / max(self.seconds, 1e-9)
        return int(min(max(_MOST, self.size), soon, _LARGEST / max(self.characters, 1.0)))


class Prefetch:
    """The jobs of one worker process that wait for a slot.

    Args:
        slots: Its slots; jobs wait only where none is free.
        off: Queues of whose jobs none may wait.
        may_wait: Tells of a job that is claimed already whether it may.
    """

    def __init__(self, slots: Slots, off: Collection[str], may_wait: Callable[[ClaimedJob], bool]) -> None:
        self._slots = slots
        self._may_wait = may_wait
        closed = {slots.pool(queue) for queue in off}
        pools = {pool: slots.size(pool) for pool in map(slots.pool, slots.queues) if pool not in closed}
        self._pools = {pool: _Pool(size) for pool, size in pools.items()}
        self._of_queue = {queue: pool for queue in slots.queues if (pool := self._pools.get(slots.pool(queue)))}
        self._ticks = 0

    def __len__(self) -> int:
        return sum(len(pool.waiting) for pool in self._pools.values())

    def groups(self) -> list[Group]:
        """Return the queues for which jobs may be claimed, and how many: to run, and to wait."""
        return self._slots.groups(self._room)

    def _room(self, name: str) -> int:
        pool = self._pools.get(name)
        if pool is None:
            return 0
        most, waiting = pool.most, len(pool.waiting)
        # Not each job that starts is replaced by one claimed alone.
        return most - waiting if waiting <= most // 2 else 0

    def add(self, job: ClaimedJob) -> bool:
        """Let a job wait; False if it may not."""
        pool = self._of_queue.get(job.queue)
        if pool is None:
            return False
        if not self._may_wait(job):
            pool.bar()
            return False
        pool.waiting.append((job, self._ticks))
        pool.mark = len(pool.waiting) // 2

        return True

    def next(self, queue: str) -> ClaimedJob | None:
        """Take out the job that has waited longest for the slot of a queue."""
        pool = self._of_queue.get(queue)
        return pool.waiting.popleft()[0] if pool is not None and pool.waiting else None

    def is_low(self, queue: str) -> bool:
        """Tell, after `next`, whether more should be claimed now; True once for each time it was filled."""
        pool = self._of_queue.get(queue)
        return pool is not None and len(pool.waiting) == pool.mark

    def remove(self, job_id: UUID) -> ClaimedJob | None:
        """Take out one job; None if it does not wait here."""
        for pool in self._pools.values():
            for entry in pool.waiting:
                if entry[0].id == job_id:
                    pool.waiting.remove(entry)
                    return entry[0]

        return None

    def clear(self) -> list[ClaimedJob]:
        """Take out all."""
        jobs = [job for pool in self._pools.values() for job, _ in pool.waiting]
        for pool in self._pools.values():
            pool.waiting.clear()

        return jobs

    def tick(self) -> list[ClaimedJob]:
        """Let time pass; take out those that have waited too long."""
        self._ticks += 1
        late = []
        for pool in self._pools.values():
            if pool.waiting and self._ticks - pool.waiting[0][1] > _PATIENCE:
                # Runs take longer than was measured: one of them has not ended yet.
                pool.bar()
            while pool.waiting and self._ticks - pool.waiting[0][1] > _PATIENCE:
                late.append(pool.waiting.popleft()[0])

        return late

    def ran(self, job: ClaimedJob, seconds: float) -> None:
        """Take note of how long a run took."""
        pool = self._of_queue.get(job.queue)
        if pool is not None:
            pool.measure(seconds, len(job.args))

    def found(self, group: Group, jobs: Sequence[ClaimedJob]) -> None:
        """Take note of what a claim found: where it found nothing, nobody knows what comes after the idling."""
        if len(jobs) < group.limit:
            busy = {self._slots.pool(job.queue) for job in jobs}
            for name in {self._slots.pool(queue) for queue in group.queues} - busy:
                if name in self._pools:
                    self._pools[name].forget()
