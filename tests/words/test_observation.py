"""Who is silent: nobody before a whole lease was seen unchanged, on one clock and without a gap."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words.observation import Observation, SeenBeat

LEASE = 10.0
GAP = 7.5
NAMES = [UUID(int=number) for number in range(3)]
# A reading: how long after the last answer it was asked, how long the answer took, the beats seen, whether it failed.
READINGS = st.lists(
    st.tuples(
        st.floats(0, 12, allow_nan=False),
        st.floats(0, 12, allow_nan=False),
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)),
        st.booleans(),
    ),
    max_size=40,
)


def seen(beats, lease=LEASE):
    return [SeenBeat(one, str(one), beat, lease) for one, beat in beats.items()]


def silent(observation, beats, began, ended=None):
    return {one.id for one in observation.silent(seen(beats), began, began if ended is None else ended)}


@given(READINGS)
def test_whoever_is_silent_was_seen_unchanged_for_a_whole_lease_without_a_gap_or_a_failure(readings):
    observation, clock, history = Observation(GAP), 0.0, []
    for pause, took, beats, fails in readings:
        began, ended = clock + pause, clock + pause + took
        clock = ended
        if fails:
            observation.start_anew()
            history = []
            continue
        if history and ended - history[-1][1] > GAP:
            history = []
        for one in silent(observation, beats, began, ended):
            unchanged = []
            for _, answered, shown in reversed(history):
                if shown.get(one) != beats[one]:
                    break
                unchanged.append(answered)
            # What an answer showed was so when it came; what this one shows was so when it was asked for.
            assert unchanged
            assert began - unchanged[-1] >= LEASE
        history.append((began, ended, beats))


@given(st.floats(0.1, GAP), st.integers(0, 5))
def test_a_worker_that_stands_still_is_silent_once_the_lease_is_over_and_not_before(interval, beat):
    observation, clock = Observation(GAP), 100.0
    while clock - 100.0 < LEASE:
        assert silent(observation, {NAMES[0]: beat}, clock) == set()
        clock += interval

    assert silent(observation, {NAMES[0]: beat}, clock) == {NAMES[0]}


@given(st.lists(st.tuples(st.floats(0.1, GAP), st.booleans()), min_size=1, max_size=60))
def test_a_worker_that_beats_within_its_lease_is_never_silent(steps):
    observation, clock, beat, changed_at = Observation(GAP), 0.0, 0, 0.0
    for pause, beats in steps:
        clock += pause
        if beats or clock - changed_at >= LEASE:
            beat, changed_at = beat + 1, clock
        assert silent(observation, {NAMES[0]: beat}, clock) == set()


def watched(observation, until, step=5.0):
    """See the same beat again and again, from 0 on."""
    clock = 0.0
    while clock <= until:
        assert silent(observation, {NAMES[0]: 1}, clock) == set()
        clock += step


def test_a_changed_beat_starts_the_lease_anew():
    observation = Observation(GAP)
    watched(observation, 5)

    assert silent(observation, {NAMES[0]: 2}, 10) == set()
    assert silent(observation, {NAMES[0]: 2}, 17) == set()
    assert silent(observation, {NAMES[0]: 2}, 20) == {NAMES[0]}


def test_a_failed_reading_starts_everything_anew():
    observation = Observation(GAP)
    watched(observation, 5)
    observation.start_anew()

    assert silent(observation, {NAMES[0]: 1}, 10) == set()
    assert silent(observation, {NAMES[0]: 1}, 17) == set()
    assert silent(observation, {NAMES[0]: 1}, 20) == {NAMES[0]}


@pytest.mark.parametrize(("began", "ended"), [(13.0, 13.0), (6.0, 13.0)], ids=["asleep between", "slow to answer"])
def test_a_gap_between_two_answers_starts_everything_anew(began, ended):
    observation = Observation(GAP)
    watched(observation, 5)

    assert silent(observation, {NAMES[0]: 1}, began, ended) == set()
    assert silent(observation, {NAMES[0]: 1}, 20) == set()
    assert silent(observation, {NAMES[0]: 1}, 23) == {NAMES[0]}


def test_a_worker_that_was_out_of_sight_is_watched_anew():
    observation = Observation(GAP)
    watched(observation, 5)
    assert silent(observation, {}, 9) == set()

    assert silent(observation, {NAMES[0]: 1}, 14) == set()
    assert silent(observation, {NAMES[0]: 1}, 20) == set()
    assert silent(observation, {NAMES[0]: 1}, 24) == {NAMES[0]}


def test_each_worker_has_the_lease_that_it_names():
    observation = Observation(GAP)
    both = [SeenBeat(NAMES[0], "short", 1, 4.0), SeenBeat(NAMES[1], "long", 1, 60.0)]
    assert observation.silent(both, 0, 0) == []

    assert [one.name for one in observation.silent(both, 5, 5)] == ["short"]
