"""Unique jobs that a limit or an order keeps outside: each rule holds as if it were alone."""

import asyncio
import contextlib
import json
from collections import Counter

import asyncpg
import pytest
from invariants import in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Limit, Unique
from aiopgq._flow import gates
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.limits import Limits
from aiopgq._words.limit import Rule

# Polling shall not be what helps.
NEVER = 300


@pytest.fixture(autouse=True)
def no_net(monkeypatch):
    """Nor the pass that a worker does now and then."""
    monkeypatch.setattr(gates, "_PASS", float(NEVER))


@pytest.fixture
def jobs(dsn):
    """Tasks whose runs end when they are told to; `began` says which have begun, `most` how many ran at once."""
    jobs = App(dsn)
    jobs.began, jobs.inside, jobs.most = [], Counter(), Counter()
    jobs.may_end = asyncio.Semaphore(0)

    async def run(key, said):
        jobs.began.append(said)
        jobs.inside[key] += 1
        jobs.most[key] = max(jobs.most[key], jobs.inside[key])
        await jobs.may_end.acquire()
        jobs.inside[key] -= 1

    by_user = Unique(lambda user, **_: f"user:{user}", on_conflict="replace")

    @jobs.task(name="limited", unique=by_user, limit=Limit(key="account", running=1))
    async def limited(user: int, account: str, text: str = "") -> None:
        await run(account, (user, text))

    @jobs.task(name="ordered", unique=by_user, ordered_by="order", on_dead="block", max_attempts=1)
    async def ordered(user: int, order: str, text: str = "") -> None:
        await run(order, (user, text))
        if text == "bad":
            raise ValueError

    @jobs.task(name="once", unique=Unique("args", period=3600), limit=Limit(running=1))
    async def once(n: int) -> None:
        await run("once", n)

    return jobs


async def standing(sql):
    """Return where each unfinished job stands: what holds it, else whether it is in line, waits, or runs."""
    rows = await sql.fetch(
        "SELECT args, coalesce(held, CASE WHEN status <> 'pending' THEN 'runs' WHEN place IS NULL THEN 'waits'"
        " ELSE 'in line' END) AS at FROM aiopgq.jobs"
    )
    return {json.loads(row["args"]).get("user", json.loads(row["args"]).get("n")): row["at"] for row in rows}


async def stand(sql, expected):
    async def they_do():
        return await standing(sql) == expected

    await eventually(they_do, within=20, what=f"jobs stand as {expected}")


async def have_begun(jobs, count):
    await eventually(lambda: len(jobs.began) == count, within=20, what=f"{count} runs have begun")


def worker(jobs):
    return jobs.worker(concurrency=20, poll_interval=NEVER)


# a limit


async def test_a_unique_job_waits_for_its_limit_and_a_call_like_it_makes_no_second_one(jobs, sql):
    limited = jobs.task_named("limited")
    async with jobs, worker(jobs):
        await jobs.enqueue_many([limited.call(user, "a") for user in range(3)])
        await have_begun(jobs, 1)
        assert sorted((await standing(sql)).values()) == ["limit", "limit", "runs"]
        again = [await limited.options(unique=Unique(f"user:{user}")).enqueue(user, "a") for user in range(3)]
        assert [one.existing for one in again] == [True] * 3
        for _ in range(3):
            jobs.may_end.release()
        for one in again:
            await one.result(timeout=20)

    assert sorted(jobs.began) == [(0, ""), (1, ""), (2, "")]
    assert jobs.most == {"a": 1}


async def test_a_replaced_job_goes_on_waiting_for_its_limit(jobs, sql):
    limited = jobs.task_named("limited")
    async with jobs, worker(jobs):
        await limited.enqueue(1, "a", "runs")
        await have_begun(jobs, 1)
        waiting = await limited.enqueue(2, "a", "old")
        await stand(sql, {1: "runs", 2: "limit"})
        replaced = await limited.enqueue(2, "a", "new")
        assert (replaced.id, replaced.existing) == (waiting.id, True)
        await stand(sql, {1: "runs", 2: "limit"})
        jobs.may_end.release()
        jobs.may_end.release()
        await replaced.result(timeout=20)

    assert jobs.began == [(1, "runs"), (2, "new")]
    assert jobs.most == {"a": 1}


@pytest.mark.parametrize("on_conflict", ["replace", "debounce"])
async def test_a_job_that_waits_for_its_limit_and_is_postponed_does_not_run_before_its_moment(jobs, sql, on_conflict):
    limited = jobs.task_named("limited")
    async with jobs, worker(jobs):
        await limited.enqueue(1, "a")
        await have_begun(jobs, 1)
        waiting = await limited.enqueue(2, "a")
        await stand(sql, {1: "runs", 2: "limit"})
        unique = Unique("user:2", on_conflict=on_conflict)
        assert (await limited.options(unique=unique, delay=3600).enqueue(2, "a")).id == waiting.id
        assert await standing(sql) == {1: "runs", 2: "waits"}
        jobs.may_end.release()
        await stand(sql, {2: "waits"})
        # And when its moment comes it obeys the limit.
        await limited.enqueue(3, "a")
        await have_begun(jobs, 2)
        await limited.options(unique=Unique("user:2", on_conflict="replace")).enqueue(2, "a", "now")
        await stand(sql, {2: "limit", 3: "runs"})
        jobs.may_end.release()
        jobs.may_end.release()
        await waiting.result(timeout=20)

    assert jobs.began == [(1, ""), (3, ""), (2, "now")]
    assert jobs.most == {"a": 1}


async def test_a_job_in_line_that_is_postponed_or_gets_another_account_lets_the_next_one_in(jobs, sql):
    limited = jobs.task_named("limited")
    async with jobs:
        await jobs.enqueue_many([limited.call(user, "a") for user in (1, 2, 3)])
        # The queue is paused, so that those that were let in stay in line.
        await jobs.pause(queue="default")
        async with worker(jobs):
            await eventually(lambda: is_one_in_line(sql), within=20, what="one is in line")
            first = next(user for user, at in (await standing(sql)).items() if at == "in line")
            await limited.options(delay=3600).enqueue(first, "a")
            await eventually(lambda: is_one_in_line(sql), within=20, what="another is in line")
            second = next(user for user, at in (await standing(sql)).items() if at == "in line")
            await limited.enqueue(second, "b")
            third = ({1, 2, 3} - {first, second}).pop()
            await stand(sql, {first: "waits", second: "in line", third: "in line"})
            await jobs.resume(queue="default")
            await have_begun(jobs, 2)
            jobs.may_end.release()
            jobs.may_end.release()
            await stand(sql, {first: "waits"})

    assert jobs.most == {"a": 1, "b": 1}


async def is_one_in_line(sql):
    return list((await standing(sql)).values()).count("in line") == 1


async def test_a_key_that_is_kept_after_completion_is_kept_and_the_next_job_is_let_in(jobs, sql):
    once = jobs.task_named("once")
    async with jobs, worker(jobs):
        await jobs.enqueue_many([once.call(n) for n in (1, 2)])
        await have_begun(jobs, 1)
        jobs.may_end.release()
        await have_begun(jobs, 2)
        [ended] = jobs.began[:1]
        assert (await once.enqueue(ended)).existing
        jobs.may_end.release()
        await stand(sql, {})
        assert [(await once.enqueue(n)).existing for n in (1, 2)] == [True, True]

    assert jobs.most == {"once": 1}


# an order


async def test_a_replaced_job_keeps_its_turn(jobs, sql):
    ordered = jobs.task_named("ordered")
    async with jobs, worker(jobs):
        await ordered.enqueue(1, "a")
        await have_begun(jobs, 1)
        for user in (2, 3):
            await ordered.enqueue(user, "a", "old")
        await stand(sql, {1: "runs", 2: "order", 3: "order"})
        # Neither what is new nor a higher priority brings it before others.
        assert (await ordered.options(priority=200).enqueue(3, "a", "new")).existing
        assert (await ordered.enqueue(2, "a", "new")).existing
        await stand(sql, {1: "runs", 2: "order", 3: "order"})
        for _ in range(3):
            jobs.may_end.release()
        await stand(sql, {})

    assert jobs.began == [(1, ""), (2, "new"), (3, "new")]
    assert jobs.most == {"a": 1}


async def test_a_job_that_is_put_under_another_order_goes_to_its_end_and_those_behind_it_go_on(jobs, sql):
    ordered = jobs.task_named("ordered")
    async with jobs:
        # The first of its order, and waits for its moment: nobody passes it.
        await ordered.options(delay=3600).enqueue(1, "a")
        await ordered.enqueue(2, "a")
        async with worker(jobs):
            await ordered.enqueue(3, "b")
            await have_begun(jobs, 1)
            await ordered.enqueue(4, "b")
            await stand(sql, {1: "waits", 2: "order", 3: "runs", 4: "order"})
            await ordered.enqueue(1, "b")
            await stand(sql, {1: "order", 2: "runs", 3: "runs", 4: "order"})
            for _ in range(4):
                jobs.may_end.release()
            await stand(sql, {})

    assert [user for user, _ in jobs.began] == [3, 2, 4, 1]
    assert jobs.most == {"a": 1, "b": 1}


async def test_a_dead_letter_takes_its_key_and_its_turn_again_unless_the_key_is_taken(jobs, sql):
    ordered = jobs.task_named("ordered")
    async with jobs, worker(jobs):
        bad = await ordered.enqueue(1, "a", "bad")
        await ordered.enqueue(2, "a")
        jobs.may_end.release()
        # It blocks its order, but not its key.
        await stand(sql, {2: "order"})
        newer = await ordered.enqueue(1, "a", "good")
        assert not newer.existing
        await stand(sql, {1: "order", 2: "order"})
        assert await jobs.inspector.replay([bad.id]) == (0, {bad.id: newer.id})
        assert len(jobs.began) == 1
        await newer.cancel()
        assert await jobs.inspector.replay([bad.id]) == (1, {})
        await have_begun(jobs, 2)
        await stand(sql, {1: "runs", 2: "order"})
        assert (await ordered.options(unique=Unique("user:1")).enqueue(1, "a")).id == bad.id
        jobs.may_end.release()
        await stand(sql, {2: "order"})

    assert jobs.began == [(1, "bad"), (1, "bad")]


# transactions


async def test_a_rolled_back_replacement_leaves_the_job_where_it_was(jobs, dsn, sql):
    limited = jobs.task_named("limited")
    async with jobs, worker(jobs):
        await limited.enqueue(1, "a")
        await have_begun(jobs, 1)
        await limited.enqueue(2, "a", "old")
        await stand(sql, {1: "runs", 2: "limit"})
        producer = await asyncpg.connect(dsn)
        try:
            transaction = producer.transaction()
            await transaction.start()
            await limited.options(connection=producer, delay=3600).enqueue(2, "b", "new")
            await transaction.rollback()
        finally:
            await producer.close()
        assert await standing(sql) == {1: "runs", 2: "limit"}
        jobs.may_end.release()
        jobs.may_end.release()
        await stand(sql, {})

    assert jobs.began == [(1, ""), (2, "old")]


# races, over the real statements

PROMOTE = "SELECT * FROM aiopgq.promote_jobs('1900-01-01', 100, ARRAY['t'])"
ENQUEUE = """
    SELECT aiopgq.enqueue('t', p_args => jsonb_build_object('user', $1::text), p_unique_key => $1,
        p_limit_key => $2, p_order_key => $3)"""
REPLACE = """
    SELECT aiopgq.replace_job('t', $1, false, jsonb_build_object('user', $1::text), NULL, 100::smallint,
        clock_timestamp() + make_interval(secs => $4), NULL, $2, $3, false)"""
CANCEL = "SELECT aiopgq.cancel_job(id) FROM aiopgq.jobs WHERE unique_key = $1"
BLOCKED = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
TURNS = "SELECT unique_key FROM aiopgq.jobs WHERE order_key = $1 AND coalesce(held, '') NOT LIKE '%order'"


@pytest.fixture
async def connected(dsn):
    """A function that connects; one limit is declared, one job of each key."""
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    await Limits(line).declare({"limit": Rule(1, None, None, None)}, [])
    await line.close()
    async with contextlib.AsyncExitStack() as stack:

        async def connect():
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            return connection

        yield connect


async def replaced_between_look_and_lock(sql, connect, first, *replacement):
    """Cancel the first of an order; the next one is replaced after it was found, before it is let in."""
    # Between the two a look at the dead letters is taken.
    stopper, canceller = await connect(), await connect()
    async with stopper.transaction():
        await stopper.execute("LOCK TABLE aiopgq.dead_letters IN ACCESS EXCLUSIVE MODE")
        cancelled = asyncio.ensure_future(canceller.fetchval(CANCEL, first))
        await eventually(lambda: sql.fetchval(BLOCKED, stopper.get_server_pid()), what="the one in between stands")
        assert await sql.fetchval(REPLACE, *replacement) is not None
    assert await cancelled == "cancelled"


async def test_a_job_that_gets_a_limit_at_the_moment_of_its_turn_waits_for_the_limit(sql, connected):
    await sql.execute(ENQUEUE, "first", None, "order/1")
    await sql.execute(ENQUEUE, "next", None, "order/1")
    await sql.execute(ENQUEUE, "other", "limit/1", None)
    await sql.fetch(PROMOTE)
    assert await standing(sql) == {"first": "in line", "next": "order", "other": "in line"}

    await replaced_between_look_and_lock(sql, connected, "first", "next", "limit/1", "order/1", 0)

    await sql.fetch(PROMOTE)
    assert await standing(sql) == {"next": "limit", "other": "in line"}


async def test_a_job_that_is_postponed_at_the_moment_of_its_turn_does_not_run_before_its_moment(sql, connected):
    await sql.execute(ENQUEUE, "first", None, "order/1")
    await sql.execute(ENQUEUE, "next", None, "order/1")
    await sql.fetch(PROMOTE)

    await replaced_between_look_and_lock(sql, connected, "first", "next", None, "order/1", 3600)

    await sql.fetch(PROMOTE)
    assert await standing(sql) == {"next": "waits"}


async def test_a_job_that_changes_its_order_at_the_moment_of_its_turn_takes_it_from_nobody(sql, connected):
    for user, order in (("first", "order/1"), ("next", "order/1"), ("third", "order/1"), ("other", "order/2")):
        await sql.execute(ENQUEUE, user, None, order)
    await sql.fetch(PROMOTE)

    await replaced_between_look_and_lock(sql, connected, "first", "next", None, "order/2", 0)

    await sql.fetch(PROMOTE)
    assert [row[0] for row in await sql.fetch(TURNS, "order/1")] == ["third"]
    assert [row[0] for row in await sql.fetch(TURNS, "order/2")] == ["other"]


@pytest.mark.parametrize("keys", [("limit/1", None), (None, "order/1"), ("limit/1", "order/1")])
async def test_a_job_that_was_passed_by_because_it_was_being_replaced_is_looked_at_again(sql, connected, keys):
    await sql.execute(ENQUEUE, "first", *keys)
    await sql.execute(ENQUEUE, "next", *keys)
    await sql.fetch(PROMOTE)
    producer = await connected()

    async with producer.transaction():
        assert await producer.fetchval(REPLACE, "next", *keys, 0) is not None
        assert await sql.fetchval(CANCEL, "first") == "cancelled"

    await sql.fetch(PROMOTE)
    await sql.fetch(PROMOTE)
    assert await standing(sql) == {"next": "in line"}


async def test_a_replaced_job_keeps_its_number_in_its_order(sql, connected):
    for user in ("first", "next", "third"):
        await sql.execute(ENQUEUE, user, None, "order/1")
    numbers = "SELECT unique_key, order_no FROM aiopgq.jobs ORDER BY order_no"
    before = await sql.fetch(numbers)
    for delay in (0, 3600, 0):
        # Before anybody has looked, in its turn and waiting for it, ready and postponed.
        for user in ("third", "first", "next"):
            assert await sql.fetchval(REPLACE, user, "limit/1", "order/1", delay) is not None
            assert await sql.fetch(numbers) == before
        await sql.fetch(PROMOTE)

    assert await sql.fetch(numbers) == before
