"""Many calls at once: they are made while PostgreSQL writes those before, and are enqueued all or none, once."""

import asyncio
import itertools
import threading
from uuid import uuid4

import asyncpg
import pytest
from asyncpg.transaction import Transaction
from proxy import Proxy
from support import eventually

from aiopgq import App, Unique, inflow
from aiopgq._flow import enqueue as flow
from aiopgq.errors import ArgumentError, EnqueueUnknown, RowRefused, StoreUnavailable

PART = inflow.PART
MANY = 4 * PART + 30


class Ended(BaseException):
    """As SystemExit, which pytest takes for its own."""


def app_on(dsn, **settings):
    """An App with a task that takes a number."""
    jobs = App(dsn, **settings)

    @jobs.task(name="count")
    async def count(number: int) -> None: ...

    return jobs


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def jobs(dsn):
    async with app_on(dsn) as jobs:
        yield jobs


@pytest.fixture
def count(jobs):
    return jobs.task_named("count")


@pytest.fixture
async def proxy(dsn):
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
def poured(monkeypatch):
    """How many jobs went part by part, for each enqueue_many that began so."""
    seen = []
    pace = flow._paced

    def paced(parts, silence):
        seen.append(0)
        for part in pace(parts, silence):
            seen[-1] += len(part)
            yield part

    monkeypatch.setattr(flow, "_paced", paced)
    return seen


async def numbers(sql):
    """The arguments of the waiting jobs, in the order of their line."""
    rows = await sql.fetch("SELECT args->>'number' AS number FROM aiopgq.jobs ORDER BY place")
    return [int(row["number"]) for row in rows]


async def backends(sql):
    """The servers of the connections that an App enqueues many by, and whether they are in a transaction."""
    rows = await sql.fetch(
        "SELECT pid, state LIKE 'idle in%' AS inside FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'aiopgq app'"
    )
    return {row["pid"]: row["inside"] for row in rows}


# All of them.


async def test_calls_are_enqueued_in_their_order_and_each_has_its_handle(jobs, count, sql, poured):
    handles = await jobs.enqueue_many(count.call(number) for number in range(MANY))

    assert poured == [MANY]
    assert await numbers(sql) == list(range(MANY))
    assert [job.id for job in handles] == [
        row["id"] for row in await sql.fetch("SELECT id FROM aiopgq.jobs ORDER BY place")
    ]
    assert not any(job.existing for job in handles)


async def test_they_become_visible_together(jobs, count, sql):
    seen = []

    async def look():
        while True:
            seen.append(len(await numbers(sql)))

    looking = asyncio.create_task(look())
    await eventually(lambda: seen, what="somebody looks")
    await jobs.enqueue_many(count.call(number) for number in range(10 * MANY))
    await eventually(lambda: seen[-1], what="they are seen")
    looking.cancel()
    await asyncio.wait([looking])

    assert set(seen) == {0, 10 * MANY}


async def test_others_run_between_the_parts(jobs, count):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    at = []

    def calls():
        for number in range(MANY):
            if number % PART == 0:
                at.append(turns)
            yield count.call(number)

    task = asyncio.create_task(others())
    await jobs.enqueue_many(calls())
    task.cancel()

    assert at == sorted(set(at))


@pytest.mark.parametrize("many", [PART - 1, PART, PART + 1, 2 * PART])
async def test_no_call_is_lost_where_a_part_ends(jobs, count, sql, many):
    await jobs.enqueue_many([count.call(number) for number in range(many)])

    assert await numbers(sql) == list(range(many))


async def test_a_worker_that_sleeps_is_woken_for_them(dsn, count, jobs):
    done = []
    consumer = App(dsn)

    @consumer.task(name="count")
    async def task(number: int) -> None:
        done.append(number)

    async with consumer, consumer.worker(concurrency=50, poll_interval=300) as worker:
        for _ in range(3):
            await eventually(lambda: worker._incarnation.sleeper.asleep, what="the worker sleeps")
            done.clear()
            await jobs.enqueue_many(count.call(number) for number in range(MANY))
            await eventually(lambda: len(done) == MANY, what="all have run")

    assert sorted(done) == list(range(MANY))


# Calls that are not like the others.


@pytest.mark.parametrize("position", [0, PART - 1, PART, 3 * PART + 7])
async def test_calls_with_keys_ids_or_delays_may_be_anywhere_among_them(jobs, count, sql, poured, position):
    known = uuid4()
    special = [
        count.options(id=known).call(MANY),
        count.options(unique="one").call(MANY + 1),
        count.options(unique=Unique("one")).call(MANY + 2),
    ]
    calls = [count.call(number) for number in range(MANY)]
    calls[position:position] = special

    handles = await jobs.enqueue_many(calls)

    assert poured == ([position // PART * PART] if position >= PART else [])
    assert sorted(await numbers(sql)) == [*range(MANY), MANY, MANY + 1]
    assert handles[position].id == known
    assert handles[position + 1].id == handles[position + 2].id
    assert [job.existing for job in handles] == [number == position + 2 for number in range(len(handles))]


async def test_one_call_given_twice_is_one_job(jobs, count, sql):
    calls = [count.call(number) for number in range(MANY)]
    handles = await jobs.enqueue_many([*calls, calls[0]])

    assert sorted(await numbers(sql)) == list(range(MANY))
    assert handles[0].id == handles[-1].id


async def test_calls_that_were_enqueued_before_are_known(jobs, count, sql):
    calls = [count.call(number) for number in range(MANY)]
    await jobs.enqueue_many(calls)
    again = await jobs.enqueue_many(calls)

    assert all(job.existing for job in again)
    assert len(await numbers(sql)) == MANY


async def test_calls_that_come_slowly_are_awaited_before_a_transaction_begins(jobs, count, sql, poured, monkeypatch):
    monkeypatch.setattr(inflow, "_SLOW", -1)
    await jobs.enqueue_many(count.call(number) for number in range(MANY))

    assert poured == [PART]
    assert await numbers(sql) == list(range(MANY))
    assert await sql.fetchval("SELECT count(DISTINCT created_at) FROM aiopgq.jobs") == 1


async def test_calls_made_with_a_connection_need_no_open_app(dsn, sql):
    jobs = app_on(dsn)
    count = jobs.task_named("count")
    async with sql.transaction():
        await jobs.enqueue_many(count.options(connection=sql).call(number) for number in range(MANY))
        assert await numbers(sql) == list(range(MANY))


# None of them.


@pytest.mark.parametrize("error", [ValueError, OSError, TimeoutError, asyncpg.DeadlockDetectedError, StoreUnavailable])
async def test_what_making_the_calls_raises_is_raised_as_it_is_and_nothing_is_enqueued(jobs, count, sql, error):
    def calls():
        for number in range(MANY):
            if number == 2 * PART + 3:
                raise error("mine")
            yield count.call(number)

    await jobs.enqueue_many([count.call(-1)])
    before = await backends(sql)
    with pytest.raises(error, match="mine"):
        await jobs.enqueue_many(calls())

    assert await numbers(sql) == [-1]
    assert await backends(sql) == before == dict.fromkeys(before, False)


async def test_even_the_end_of_the_program_among_them_leaves_no_transaction_open(jobs, count, sql):
    def calls():
        for number in range(MANY):
            if number == 2 * PART + 3:
                raise Ended
            yield count.call(number)

    with pytest.raises(Ended):
        await jobs.enqueue_many(calls())
    await jobs.enqueue_many([count.call(-1)])

    assert await numbers(sql) == [-1]


async def test_a_call_that_does_not_fit_its_task_late_among_them_undoes_the_rest(jobs, count, sql):
    with pytest.raises(ArgumentError, match="number"):
        await jobs.enqueue_many(count.call("x" if number == MANY - 1 else number) for number in range(MANY))

    assert await numbers(sql) == []


async def test_what_is_no_call_late_among_them_undoes_the_rest(jobs, count, sql):
    with pytest.raises(TypeError, match=r"task\.call"):
        await jobs.enqueue_many([*(count.call(number) for number in range(MANY)), 7])

    assert await numbers(sql) == []


@pytest.mark.parametrize("position", [3, 2 * PART, MANY - 1])
async def test_a_row_that_postgresql_refuses_undoes_the_rest(jobs, count, sql, position):
    calls = [count.call(number) for number in range(MANY)]
    calls[position].job.args = "{"
    with pytest.raises(RowRefused):
        await jobs.enqueue_many(calls)

    assert await numbers(sql) == []
    assert not any((await backends(sql)).values())


@pytest.mark.parametrize("at", [0, PART + 1, 2 * PART])
async def test_a_caller_that_is_cancelled_leaves_all_or_none(jobs, count, sql, at):
    def calls():
        for number in range(MANY):
            if number == at:
                calling.cancel()
            yield count.call(number)

    async def call():
        await jobs.enqueue_many(calls())

    calling = asyncio.create_task(call())
    await asyncio.wait([calling])

    assert calling.cancelled()
    await eventually(lambda: _none_inside(sql), what="no transaction is open")
    assert await numbers(sql) == []
    await jobs.enqueue_many(count.call(number) for number in range(MANY))
    assert len(await numbers(sql)) == MANY


async def _none_inside(sql):
    return not any((await backends(sql)).values())


# Trouble.


@pytest.mark.parametrize("at", [1, PART + 1, 3 * PART])
async def test_a_connection_that_breaks_among_them_is_made_anew_and_each_is_there_once(proxy, sql, at):
    def calls():
        for number in range(MANY):
            if number == at:
                proxy.cut()
            yield far.task_named("count").call(number)

    async with app_on(proxy.dsn) as far:
        await far.enqueue_many([far.task_named("count").call(-1)])
        handles = await far.enqueue_many(calls())

    assert await numbers(sql) == list(range(-1, MANY))
    assert not any(job.existing for job in handles)


@pytest.fixture
def lost_commits(proxy, monkeypatch):
    """The answer to each COMMIT is lost, as long as there is something in it."""
    commit = Transaction.commit
    lost = []

    async def commit_and_lose(self):
        lost.append(self)
        proxy.lose_answer = True
        await commit(self)

    monkeypatch.setattr(Transaction, "commit", commit_and_lose)
    return lost


async def test_jobs_whose_commit_was_not_answered_are_there_once_and_new(proxy, sql, lost_commits):
    async with app_on(proxy.dsn) as far:
        task = far.task_named("count")
        pouring = asyncio.create_task(far.enqueue_many(task.call(number) for number in range(MANY)))
        await eventually(lambda: proxy.refusing, what="the answer is lost")
        proxy.refusing = False
        handles = await pouring

    assert len(lost_commits) == 1
    assert await numbers(sql) == list(range(MANY))
    assert not any(job.existing for job in handles)


async def test_without_an_archive_a_commit_that_was_not_answered_is_told(proxy, sql, lost_commits):
    async with app_on(proxy.dsn, retention=0) as forgetful:
        task = forgetful.task_named("count")
        with pytest.raises(EnqueueUnknown):
            await forgetful.enqueue_many(task.call(number) for number in range(MANY))

    assert len(lost_commits) == 1
    assert len(await numbers(sql)) == MANY


async def test_a_server_that_falls_silent_among_them_is_told_and_nothing_is_enqueued(proxy, sql, monkeypatch):
    monkeypatch.setattr(flow, "DEADLINE", 1.0)

    def calls():
        for number in range(MANY):
            if number == 2 * PART:
                proxy.black_hole = True
            yield far.task_named("count").call(number)

    async with app_on(proxy.dsn) as far:
        async with asyncio.timeout(8):
            with pytest.raises(StoreUnavailable):
                await far.enqueue_many(calls())
        proxy.black_hole = False

    assert await numbers(sql) == []


async def test_whatever_happens_to_connections_many_are_there_whole_or_not_at_all(proxy, sql):
    acknowledged, refused = [], []
    calm = asyncio.Event()

    async def produce(first):
        for batch in itertools.count(first, 4):
            if calm.is_set():
                return
            try:
                await far.enqueue_many(far.task_named("count").call(batch) for _ in range(MANY))
            except StoreUnavailable:
                refused.append(batch)
            else:
                acknowledged.append(batch)

    async def lose_an_answer():
        proxy.lose_answer = True
        await eventually(lambda: proxy.refusing, what="an answer is lost")

    async def refuse():
        proxy.refusing = True
        proxy.cut()

    async def cut():
        proxy.cut()

    async def terminate():
        await sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'aiopgq app'"
        )

    async with app_on(proxy.dsn) as far:
        producers = [asyncio.create_task(produce(number)) for number in range(4)]
        for disturb in (lose_an_answer, cut, refuse, terminate) * 5:
            await disturb()
            proxy.refusing = False
            before = len(acknowledged)
            await eventually(lambda before=before: len(acknowledged) > before, what="work goes on")
        calm.set()
        await asyncio.gather(*producers)

    rows = await sql.fetch("SELECT (args->>'number')::int AS batch, count(*) AS jobs FROM aiopgq.jobs GROUP BY 1")
    there = {row["batch"]: row["jobs"] for row in rows}
    assert set(there.values()) == {MANY}
    assert set(acknowledged) <= set(there) <= {*acknowledged, *refused}


async def test_closing_the_app_waits_for_them(dsn, sql):
    jobs = app_on(dsn)
    task = jobs.task_named("count")
    async with jobs:
        begun = asyncio.Event()

        def calls():
            for number in range(MANY):
                if number == PART:
                    begun.set()
                yield task.call(number)

        pouring = asyncio.create_task(jobs.enqueue_many(calls()))
        await begun.wait()

    assert len(await pouring) == MANY
    assert len(await numbers(sql)) == MANY


# What somebody found who tried to break it.


@pytest.fixture
def slow_commits(monkeypatch):
    """Each COMMIT is done, and then its answer does not come."""
    commit = Transaction.commit
    done, never = asyncio.Event(), asyncio.Event()

    async def commit_and_hang(self):
        await commit(self)
        done.set()
        await never.wait()

    monkeypatch.setattr(Transaction, "commit", commit_and_hang)
    return done


async def test_whoever_was_cancelled_while_they_were_committed_repeats_them_safely(
    jobs, count, sql, slow_commits, monkeypatch
):
    calls = [count.call(number) for number in range(MANY)]
    enqueueing = asyncio.create_task(jobs.enqueue_many(calls))
    await slow_commits.wait()
    enqueueing.cancel()
    await asyncio.wait([enqueueing])
    monkeypatch.undo()
    again = await jobs.enqueue_many(calls)

    assert enqueueing.cancelled()
    assert all(job.existing for job in again)
    assert await numbers(sql) == list(range(MANY))


async def test_what_making_them_raises_is_raised_even_if_the_server_does_not_answer(proxy, sql, monkeypatch):
    monkeypatch.setattr(flow, "DEADLINE", 1.0)

    def calls():
        for number in range(20_000):
            yield far.task_named("count").call(number)
        proxy.black_hole = True
        raise ValueError("mine")

    async with app_on(proxy.dsn) as far:
        with pytest.raises(ValueError, match="mine"):
            await far.enqueue_many(calls())
        proxy.black_hole = False

    assert await numbers(sql) == []


@pytest.mark.parametrize("trouble", ["an id", "a slow call", "a cut", "a lost commit"])
async def test_closing_the_app_waits_for_them_whatever_way_they_go(proxy, sql, monkeypatch, request, trouble):
    if trouble == "a slow call":
        monkeypatch.setattr(inflow, "_SLOW", -1)
    if trouble == "a lost commit":
        request.getfixturevalue("lost_commits")
    jobs = app_on(proxy.dsn)
    task = jobs.task_named("count")
    async with jobs:
        begun = asyncio.Event()

        def calls():
            for number in range(MANY):
                if number == PART:
                    begun.set()
                if number == 3 * PART and trouble == "a cut":
                    proxy.cut()
                chosen = task.options(id=uuid4()) if number == MANY - 1 and trouble == "an id" else task
                yield chosen.call(number)

        pouring = asyncio.create_task(jobs.enqueue_many(calls()))
        await begun.wait()
        if trouble == "a lost commit":
            await eventually(lambda: proxy.refusing, what="the answer is lost")
            proxy.refusing = False

    handles = await pouring
    assert not any(job.existing for job in handles)
    assert sorted(await numbers(sql)) == list(range(MANY))


def work(seconds):
    """Keep the loop from all else, as somebody does who computes between two calls."""
    threading.Event().wait(seconds)


@pytest.mark.parametrize("cut", [False, True])
async def test_the_time_it_takes_to_make_them_is_not_the_time_postgresql_has(proxy, sql, monkeypatch, cut):
    monkeypatch.setattr(flow, "DEADLINE", 1.0)

    def calls():
        for number in range(MANY):
            if number == 2 * PART and cut:
                proxy.cut()
            if number == 2 * PART + 1:
                work(1.5)
            yield far.task_named("count").call(number)

    async with app_on(proxy.dsn) as far:
        await far.enqueue_many(calls())

    assert await numbers(sql) == list(range(MANY))


async def test_to_wait_for_others_who_pour_is_not_to_wait_for_postgresql(jobs, count, sql, monkeypatch):
    monkeypatch.setattr(flow, "DEADLINE", 1.0)

    def calls(first):
        for number in range(10 * PART):
            if number % PART == 0:
                work(0.05)
            yield count.call(first + number)

    async with asyncio.TaskGroup() as group:
        for first in range(0, 50 * PART, 10 * PART):
            group.create_task(jobs.enqueue_many(calls(first)))

    assert sorted(await numbers(sql)) == list(range(50 * PART))
