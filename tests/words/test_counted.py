"""Numbers of things in messages."""

import pytest

from aiopgq._words.counted import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (10_000, "10,000 jobs")])
def test_one_thing_is_one_thing(number, said):
    assert counted(number, "job") == said
