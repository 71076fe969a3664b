"""Laws of the slots: never negative, never more than there are, and nobody who shares is passed over."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiopgq._words.slots import Slots

QUEUES = ["a", "b", "c", "d"]


class SlotsInUse(RuleBasedStateMachine):
    """Takes and gives back in any order, also for jobs that come when all is full."""

    @initialize(
        own=st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 3)),
        shared=st.lists(st.sampled_from(QUEUES), unique=True),
        concurrency=st.integers(1, 4),
    )
    def begin(self, own, shared, concurrency):
        self.own, self.shared, self.concurrency = own, [queue for queue in shared if queue not in own], concurrency
        self.slots = Slots(concurrency, own, self.shared)
        self.running = []

    def free(self, queue):
        if queue in self.own:
            return self.own[queue] - self.running.count(queue)
        return self.concurrency - sum(one not in self.own for one in self.running)

    @rule(number=st.integers(0, 3))
    def take(self, number):
        if not self.slots.queues:
            return
        queue = self.slots.queues[number % len(self.slots.queues)]
        there_was_one = self.free(queue) > 0

        assert self.slots.take(queue) == there_was_one
        if there_was_one:
            self.running.append(queue)

    @rule(number=st.integers(0, 20))
    def give_back(self, number):
        if self.running:
            queue = self.running.pop(number % len(self.running))
            none_was_free = self.free(queue) == 1

            assert self.slots.give_back(queue) == none_was_free

    @invariant()
    def what_is_offered_is_what_is_free(self):
        groups = self.slots.groups()
        offered = {queue: free for group in groups for queue, free in group.queues.items()}

        assert offered == {queue: self.free(queue) for queue in self.slots.queues if self.free(queue) > 0}
        for group in groups:
            own = [queue for queue in group.queues if queue in self.own]
            assert group.limit == (sum(group.queues[queue] for queue in own) if own else self.free(self.shared[0]))

    @invariant()
    def no_more_runs_than_slots_are_there(self):
        assert len(self.running) <= self.slots.total


SlotsInUse.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSlotsInUse = SlotsInUse.TestCase


@given(st.lists(st.sampled_from(QUEUES), unique=True, min_size=1), st.integers(1, 5), st.integers(1, 30))
def test_queues_that_share_come_first_in_turn(shared, concurrency, rounds):
    slots = Slots(concurrency, {}, shared)
    first = Counter(next(iter(slots.groups()[0].queues)) for _ in range(rounds * len(shared)))

    assert first == dict.fromkeys(shared, rounds)


def test_shared_slots_count_only_where_a_queue_shares_them():
    assert Slots(10, {"mail": 2}, []).total == 2
    assert Slots(10, {"mail": 2}, ["web"]).total == 12
    assert Slots(10, {"mail": 2}, ["web", "mail"]).queues == ["mail", "web"]
