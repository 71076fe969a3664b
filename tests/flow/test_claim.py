"""The claimer's bounds and sweeps, on a real line."""

from uuid import uuid4

import asyncpg
import pytest

from aiopgq._flow.claim import Claimer
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._words.slots import Group

ONE = Group({"default": 1}, 1)


@pytest.fixture
async def sql(dsn):
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def claimer(dsn):
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    yield Claimer(Jobs(line), uuid4(), ["t"], lambda: 1)
    await line.close()


async def add(sql, *places):
    for place in places:
        await sql.execute("INSERT INTO aiopgq.jobs (id, task, place) VALUES ($1, 't', $2)", uuid4(), place)


async def places(claimer):
    return [job.place for job in await claimer.claim(ONE, sweep=True)]


async def test_where_sweeps_are_slow_whoever_is_woken_looks_behind_the_bound_first_and_then_everywhere(
    claimer, sql, monkeypatch
):
    monkeypatch.setattr("aiopgq._flow.claim._QUICK_SWEEP", 0.0)
    await add(sql, 10_000)
    assert await places(claimer) == [10_000]

    await add(sql, 5, 10_001)

    assert await places(claimer) == [10_001]
    # Nothing there any more: it has to be sure before it falls asleep.
    assert await places(claimer) == [5]
    assert await places(claimer) == []


async def test_where_sweeps_are_quick_whoever_is_woken_looks_everywhere(claimer, sql, monkeypatch):
    monkeypatch.setattr("aiopgq._flow.claim._QUICK_SWEEP", 60.0)
    await add(sql, 10_000)
    assert await places(claimer) == [10_000]

    await add(sql, 5, 10_001)

    assert await places(claimer) == [5]
    assert await places(claimer) == [10_001]


async def test_a_slow_sweep_is_due_even_if_every_wake_finds_a_job_behind_the_bound(claimer, sql, monkeypatch):
    monkeypatch.setattr("aiopgq._flow.claim._QUICK_SWEEP", 0.0)
    await add(sql, 10_000)
    assert await places(claimer) == [10_000]
    await add(sql, 5, 10_001, 10_002)
    assert await places(claimer) == [10_001]

    # As a worker does that has just found something: no longer woken, and the interval is over.
    monkeypatch.setattr("aiopgq._flow.claim._SWEEP_INTERVAL", 0.0)
    monkeypatch.setattr("aiopgq._flow.claim._SWEEP_SHARE", 0)

    assert [job.place for job in await claimer.claim(ONE)] == [5]
