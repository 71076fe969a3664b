"""Schedules: each fire time enqueues once, whoever ticks; what outages, deploys and operators do to them."""

import asyncio
import json
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Router, current_job
from aiopgq._flow.tick import Ticker
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.schedules import Schedules
from aiopgq.errors import ArgumentError, ConfigError, JobFailed, ScheduleNotFound

HOUR = timedelta(hours=1)


@pytest.fixture
async def tickers(dsn):
    """Makes tickers, each on a connection of its own."""
    lines = []

    def make(*apps):
        line = Line(ConnectSettings(dsn, "aiopgq"), "test")
        lines.append(line)
        return Ticker(Schedules(line), [one for app in apps for one in app.declared_schedules()])

    yield make
    for line in lines:
        await line.close()


@pytest.fixture
async def jobs(dsn):
    """An opened App with two tasks."""
    jobs = App(dsn)

    @jobs.task(name="greet")
    async def greet(name: str = "you", at: datetime | None = None) -> str:
        return f"{name} {current_job().headers['scheduled_at']}"

    @jobs.task(name="other", queue="slow", priority=7, max_attempts=3, timeout=5)
    async def other(number: int) -> int:
        return number

    jobs.greet, jobs.other = greet, other
    async with jobs:
        yield jobs


async def moments(sql, name="s"):
    """Return the fire times that jobs of a schedule were enqueued for."""
    rows = await sql.fetch("SELECT headers FROM aiopgq.jobs WHERE headers->>'schedule' = $1 ORDER BY place", name)
    return [datetime.fromisoformat(json.loads(row["headers"])["scheduled_at"]) for row in rows]


async def outage(sql, length, name="s"):
    """Let the next fire have been so long ago; return when it was due."""
    return await sql.fetchval(
        "UPDATE aiopgq.schedules SET next_at = clock_timestamp() - $2::interval WHERE name = $1 RETURNING next_at",
        name, length,
    )  # fmt: skip


# Exactly once


async def test_six_tickers_let_thirty_fire_times_fire_thirty_times(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    six = [tickers() for _ in range(6)]
    await asyncio.gather(*(ticker.work() for ticker in six))
    assert await moments(sql) == []

    due = []
    for _ in range(30):
        due.append(await outage(sql, timedelta()))
        await asyncio.gather(*(ticker.work() for ticker in six))

    assert await moments(sql) == due


async def test_six_workers_let_each_tenth_of_a_second_fire_once(jobs, sql, dsn):
    await jobs.schedules.set("s", jobs.other.call(1), every=0.1)
    apps = [App(dsn) for _ in range(6)]
    for app in apps:
        # They tick, and run none of these jobs.
        app.task(name="unrelated")(json.loads)

    async with apps[0], apps[1], apps[2], apps[3], apps[4], apps[5]:
        async with asyncio.TaskGroup() as group:
            workers = [app.worker() for app in apps]
            running = [group.create_task(worker.run()) for worker in workers]
            await eventually(lambda: fired(sql, 30), within=30, what="thirty fire times came")
            for worker in workers:
                worker.stop()
        assert [task.result() for task in running] == [None] * 6
    seen = await moments(sql)

    assert len(seen) >= 30
    assert Counter(seen).most_common(1)[0][1] == 1
    assert {later - one for one, later in pairwise(sorted(seen))} == {timedelta(seconds=0.1)}


async def fired(sql, number):
    return len(await moments(sql)) >= number


async def test_a_schedule_moves_on_only_together_with_its_job(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    await jobs.schedules.set("t", jobs.greet.call(), every=3600)
    await tickers().work()
    for name in ("s", "t"):
        due = await outage(sql, timedelta(), name)
    await sql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE check_violation USING CONSTRAINT = 'mine'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON aiopgq.jobs FOR EACH ROW WHEN (NEW.headers->>'schedule' = 't')"
        " EXECUTE FUNCTION refuse()"
    )

    # One that cannot fire keeps nobody from firing.
    await tickers().work()
    assert len(await moments(sql, "s")) == 1
    assert await moments(sql, "t") == []
    assert (await jobs.schedules.get("t")).next_at == due

    await sql.execute("DROP TRIGGER refuse ON aiopgq.jobs")
    await tickers().work()
    assert await moments(sql, "t") == [due]


async def test_an_uncommitted_edit_is_not_waited_for(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    ticker = tickers()
    await ticker.work()
    due = await outage(sql, timedelta())

    async with sql.transaction():
        await sql.execute("SELECT FROM aiopgq.schedules FOR UPDATE")
        await asyncio.wait_for(ticker.work(), 10)
    assert await moments(sql) == []

    await ticker.work()
    assert await moments(sql) == [due]


# What is enqueued


async def test_a_declared_schedule_runs_its_task_with_its_arguments(dsn, sql):
    jobs = App(dsn)

    @jobs.schedule(every=0.2, arguments={"name": "Ada"})
    @jobs.task(name="greet")
    async def greet(name: str) -> str:
        return f"{name} {current_job().headers['schedule']} {current_job().headers['scheduled_at']}"

    async with jobs, jobs.worker():
        found = await eventually(lambda: completed(jobs), within=30, what="the schedule's job has run")

    assert found.headers["schedule"] == "greet"
    at = datetime.fromisoformat(found.headers["scheduled_at"])
    assert found.result == f"Ada greet {found.headers['scheduled_at']}"
    assert at <= found.created_at < at + timedelta(seconds=30)


async def completed(jobs):
    return next(iter(await jobs.inspector.jobs(status="completed")), None)
