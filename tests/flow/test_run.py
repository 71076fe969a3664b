"""Many jobs begin a hundred in each turn of the loop; what is told to stop before it began never does."""

import asyncio
from uuid import UUID, uuid4

import pytest

from aiopgq._flow.run import Runner
from aiopgq._words.job import ClaimedJob
from aiopgq._words.task import define

MANY = 250


@pytest.fixture
async def begun():
    return []


@pytest.fixture
async def settled():
    return {}


@pytest.fixture
async def runner(begun, settled):
    async def task(n: int) -> None:
        begun.append(n)

    def finished(settlement, _):
        # Settled twice would be run twice.
        assert settlement.job.place not in settled
        settled[settlement.job.place] = settlement

    tasks = {"t": define(task, name="t")}
    return Runner(tasks, "worker 1", 1, finished, max_result_bytes=1000, job_log=False)


def start(runner, numbers):
    for n in numbers:
        runner.start(ClaimedJob(UUID(int=n + 1), "web", "t", 100, n, f'{{"n":{n}}}', None, 1, 12, None, 0.0, uuid4()))


async def test_a_hundred_jobs_begin_in_a_turn_and_the_others_in_those_to_come(runner, begun):
    start(runner, range(MANY))
    turns = []
    while len(begun) < MANY:
        await asyncio.sleep(0)
        turns.append(len(begun))

    assert turns == [100, 200, 250]
    assert begun == list(range(MANY))
    assert await runner.done(5)


async def test_jobs_that_come_while_others_have_not_begun_wait_behind_them(runner, begun):
    start(runner, range(150))
    await asyncio.sleep(0)
    start(runner, range(150, MANY))

    assert await runner.done(5)
    assert begun == list(range(MANY))


async def test_few_jobs_begin_in_the_next_turn(runner, begun):
    start(runner, range(3))
    await asyncio.sleep(0)

    assert begun == [0, 1, 2]


async def test_what_has_not_begun_when_all_is_told_to_stop_never_begins(runner, begun, settled):
    start(runner, range(MANY))
    await asyncio.sleep(0)
    runner.stop_all("shutdown")
    assert await runner.done(5)

    assert begun == list(range(100))
    assert settled.keys() == set(range(MANY))
    # The attempt of those that have not begun is given back.
    assert [n for n in range(MANY) if settled[n].refund] == list(range(100, MANY))
