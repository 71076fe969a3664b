"""Up to which id a shard is complete, against a simulation of writers that draw ids and end when they like."""

from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words.horizon import Horizon

READ, ADD, END = "read", "add", "end"
STEPS = st.lists(st.tuples(st.sampled_from([READ, ADD, END]), st.integers(0, 4)), max_size=60)


@given(STEPS)
def test_no_event_comes_at_or_below_what_was_said_to_be_complete(steps):
    horizon, newest, session = Horizon(), 0, [0] * 5
    open_ids, said = {}, 0
    for step, writer in steps:
        name = f"{writer}/{session[writer]}"
        if step == ADD:
            newest += 1
            open_ids.setdefault(name, []).append(newest)
        elif step == END:
            open_ids.pop(name, None)
            session[writer] += 1
        else:
            said = horizon.read(newest, {7: set(open_ids)}, [7])[7]
        assert all(one > said for ids in open_ids.values() for one in ids)


def test_a_shard_without_writers_is_complete_and_one_not_asked_for_is_not_told():
    told = Horizon().read(9, {3: ["1/1"]}, [3, 4])

    assert (told[3], told[4], told[5], len(told)) == (0, 9, -1, 256)


def test_a_shard_that_always_has_a_writer_is_complete_up_to_where_those_have_ended_who_wrote_then():
    horizon = Horizon()

    seen = [horizon.read(newest, {0: [f"1/{newest}"]}, [0])[0] for newest in range(1, 6)]

    assert seen == [0, 1, 2, 3, 4]


def test_a_prepared_transaction_may_be_any_of_those_that_seem_to_have_ended():
    horizon = Horizon()
    horizon.read(1, {0: ["1/1"]}, [0])

    assert horizon.read(2, {0: ["-1/700"]}, [0])[0] == 0
    assert horizon.read(3, {}, [0])[0] == 3
