"""Laws of the jobs that wait for a slot: few, briefly, in their order, and none lost on the way."""

from itertools import count
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiopgq._words import prefetch
from aiopgq._words.job import ClaimedJob
from aiopgq._words.prefetch import Prefetch
from aiopgq._words.slots import Slots

numbers = count(1)


def job(queue="web", *, args="{}", attempts=1):
    number = next(numbers)
    return ClaimedJob(UUID(int=number), queue, "t", 100, number, args, None, attempts, 12, None, 0.0, uuid4())


def anything(_):
    return True


def measured(slots, seconds, *, runs=100, queue="web", args="{}", off=(), may_wait=anything):
    """A prefetch that has seen runs that took so many seconds."""
    waiting = Prefetch(slots, off, may_wait)
    for _ in range(runs):
        waiting.ran(job(queue, args=args), seconds)
    return waiting


def all_taken(number):
    """Slots of which none is free."""
    slots = Slots(number, {}, ["web"])
    while slots.take("web"):
        pass
    return slots


def room(waiting):
    """How many may be claimed at once."""
    return sum(group.limit for group in waiting.groups())


# how many


@pytest.mark.parametrize(
    ("slots", "seconds", "most"),
    [
        (10, 0.0001, 100),
        (10, 0.01, 20),
        (10, 0.019, 10),
        (1, 0.01, 2),
        (1, 0.019, 1),
        (10, 0.021, 0),
        (10, 60, 0),
        (100, 0.0001, 100),
        (500, 0.0001, 500),
        (500, 0.019, 500),
        (500, 0.021, 0),
    ],
)
def test_as_many_may_wait_as_start_within_twenty_milliseconds(slots, seconds, most):
    assert room(measured(all_taken(slots), seconds)) == most


@pytest.mark.parametrize(("slots", "at_once"), [(10, 100), (100, 100), (500, 500)])
def test_a_claim_for_free_slots_leaves_what_may_wait_to_the_next_one(slots, at_once):
    assert room(measured(Slots(slots, {}, ["web"]), 0.0001)) == at_once


@given(st.integers(1, 500), st.floats(0, 1), st.integers(0, 2_000_000))
def test_what_waits_starts_soon_and_is_never_much(slots, seconds, characters):
    extra = room(measured(all_taken(slots), seconds, args="x" * characters))

    assert 0 <= extra <= max(100, slots)
    assert extra * seconds / slots <= 0.0201
    assert extra * characters <= 1_010_000


def test_nothing_waits_before_ten_runs_were_measured():
    slots = Slots(10, {}, ["web"])

    assert room(measured(slots, 0.0001, runs=9)) == 10
    assert room(measured(slots, 0.0001, runs=10)) == 100


def test_a_slow_run_among_quick_ones_counts_at_once_and_is_forgiven_by_and_by():
    waiting = measured(Slots(10, {}, ["web"]), 0.0001)
    waiting.ran(job(), 1.0)
    assert room(waiting) == 10
    for _ in range(50):
        waiting.ran(job(), 0.0001)

    assert room(waiting) > 50


def test_nothing_waits_after_the_line_was_found_empty():
    waiting = measured(Slots(10, {}, ["web"]), 0.0001)
    [group] = waiting.groups()
    waiting.found(group, [job() for _ in range(3)])
    assert room(waiting) == 100
    waiting.found(group, [])

    assert room(waiting) == 10


def test_a_queue_that_idles_beside_a_busy_one_is_not_foreseen():
    waiting = measured(Slots(1, {"mail": 10, "bulk": 10}, []), 0.0001, queue="mail")
    for _ in range(100):
        waiting.ran(job("bulk"), 0.0001)
    [group] = waiting.groups()
    assert group.queues == {"mail": 110, "bulk": 110}
    waiting.found(group, [job("bulk") for _ in range(100)])

    assert waiting.groups()[0].queues == {"mail": 10, "bulk": 110}


def test_no_job_waits_for_slots_that_a_queue_without_foresight_shares():
    slots = Slots(10, {"mail": 5}, ["web", "orders"])
    waiting = measured(slots, 0.0001, off={"orders"})
    for _ in range(100):
        waiting.ran(job("mail"), 0.0001)

    assert [group.queues for group in waiting.groups()] == [{"orders": 10, "web": 10}, {"mail": 105}]
    assert not waiting.add(job("web"))
    assert waiting.add(job("mail"))


def test_a_job_that_may_not_wait_shows_that_there_are_such_jobs(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(prefetch, "monotonic", lambda: now[0])
    waiting = measured(Slots(10, {}, ["web"]), 0.0001, may_wait=lambda job: job.attempts < 12)

    assert not waiting.add(job(attempts=12))
    assert room(waiting) == 10
    now[0] += 10.1
    assert room(waiting) == 100


def test_more_are_claimed_when_half_of_those_that_waited_are_gone():
    slots = Slots(1, {}, ["web"])
    waiting = measured(slots, 0.0001)
    assert slots.take("web")
    for _ in range(100):
        assert waiting.add(job())
    low = []
    for left in range(99, -1, -1):
        waiting.next("web")
        assert bool(waiting.groups()) == (left <= 50)
        if waiting.is_low("web"):
            low.append(left)

    assert low == [50]


# how long


def test_what_has_seen_two_ticks_is_given_away_at_the_third():
    waiting = measured(Slots(10, {}, ["web"]), 0.0001)
    early, late = job(), job()
    waiting.add(early)
    assert waiting.tick() == []
    waiting.add(late)
    assert waiting.tick() == []
    assert room(waiting) > 10
    assert waiting.tick() == [early]
    # A run that has not ended yet takes longer than those that were measured.
    assert room(waiting) == 10
    assert waiting.tick() == [late]
    assert len(waiting) == 0


class JobsWaiting(RuleBasedStateMachine):
    """Jobs come and leave by every way there is; each queue's slots have a line of their own."""

    @initialize()
    def begin(self):
        self.slots = Slots(2, {"mail": 1}, ["web", "rest"])
        self.prefetch = Prefetch(self.slots, (), anything)
        self.lines = {"mail": [], "": []}
        self.ticks = 0

    @rule(queue=st.sampled_from(["mail", "web", "rest"]))
    def add(self, queue):
        came = job(queue)

        assert self.prefetch.add(came)
        self.lines[self.slots.pool(queue)].append((came, self.ticks))

    @rule(queue=st.sampled_from(["mail", "web", "rest"]))
    def next(self, queue):
        line = self.lines[self.slots.pool(queue)]

        assert self.prefetch.next(queue) == (line.pop(0)[0] if line else None)

    @rule(number=st.integers(0, 50))
    def remove(self, number):
        everybody = [entry for line in self.lines.values() for entry in line]
        if not everybody:
            assert self.prefetch.remove(uuid4()) is None
            return
        entry = everybody[number % len(everybody)]

        assert self.prefetch.remove(entry[0].id) == entry[0]
        self.lines[self.slots.pool(entry[0].queue)].remove(entry)

    @rule()
    def tick(self):
        self.ticks += 1
        late = [job for line in self.lines.values() for job, came in line if self.ticks - came > 2]

        assert sorted(self.prefetch.tick()) == sorted(late)
        for name, line in self.lines.items():
            self.lines[name] = [entry for entry in line if entry[0] not in late]

    @rule()
    def clear(self):
        everybody = [job for line in self.lines.values() for job, _ in line]

        assert sorted(self.prefetch.clear()) == sorted(everybody)
        self.lines = {"mail": [], "": []}

    @invariant()
    def all_are_counted(self):
        assert len(self.prefetch) == sum(map(len, self.lines.values()))


JobsWaiting.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestJobsWaiting = JobsWaiting.TestCase
