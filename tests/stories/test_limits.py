"""Limits: never one over, nobody starves, no slot is lost, and jobs over the limit are in nobody's way."""

import asyncio
import itertools
import secrets
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from uuid import uuid4

import asyncpg
import pytest
from faces.serving import environment
from invariants import in_order  # noqa: F401  # the fixture works by being there
from msgspec import structs
from support import eventually

from aiopgq import App, Backoff, Limit, Retry, Snooze, current_job
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import EARLIEST, Jobs
from aiopgq._store.limits import Limits
from aiopgq._store.workers import Workers
from aiopgq._words.clock import uuid7
from aiopgq._words.job import NewJob, Settlement, WorkerIdentity
from aiopgq._words.limit import Rule
from aiopgq.errors import ArgumentError, ConfigError

# Polling shall not be what helps.
NEVER = 300
STANDING = """
    SELECT coalesce(held, CASE WHEN place IS NULL THEN 'waits' ELSE status END) AS at, count(*)
    FROM aiopgq.jobs GROUP BY 1"""


@pytest.fixture
def jobs(dsn):
    return App(dsn)


class Room:
    """Counts who is in it at once, by key."""

    def __init__(self):
        self.inside = Counter()
        self.most = Counter()
        self.entered = []

    @contextmanager
    def enter(self, key):
        self.inside[key] += 1
        self.most[key] = max(self.most[key], self.inside[key])
        self.entered.append(key)
        try:
            yield
        finally:
            self.inside[key] -= 1


async def asleep(worker):
    await eventually(lambda: worker._incarnation.sleeper.asleep, within=30, what="the worker sleeps")


async def standing(sql):
    return {row["at"]: row["count"] for row in await sql.fetch(STANDING)}


# how many run at once


@pytest.mark.parametrize("running", [1, 3])
async def test_no_more_jobs_of_a_key_run_than_its_limit_says_and_all_run(jobs, running):
    room = Room()

    @jobs.task(name="t", limit=Limit(key="account", running=running))
    async def task(account: int) -> None:
        with room.enter(account):
            await asyncio.sleep(0.002)

    async with jobs:
        await jobs.enqueue_many([task.call(n % 5) for n in range(150)])
        async with jobs.worker(concurrency=40), jobs.worker(concurrency=40):
            await eventually(lambda: len(room.entered) == 150, within=30, what="all jobs have run")

    assert room.most == dict.fromkeys(range(5), running)
    assert Counter(room.entered) == dict.fromkeys(range(5), 30)


async def test_a_limit_without_a_key_is_one_for_the_whole_task_and_leaves_others_alone(jobs):
    room = Room()

    @jobs.task(name="limited", limit=Limit(running=2))
    async def limited(n: int) -> None:
        with room.enter("limited"):
            await asyncio.sleep(0.01)

    @jobs.task(name="free")
    async def free(n: int) -> None:
        with room.enter("free"):
            await asyncio.sleep(0.01)

    async with jobs:
        await jobs.enqueue_many([*(limited.call(n) for n in range(20)), *(free.call(n) for n in range(20))])
        await jobs.worker(burst=True, concurrency=30).run()

    assert room.most["limited"] == 2
    assert room.most["free"] == 20
    assert len(room.entered) == 40


async def test_tasks_that_name_the_same_limit_share_it(jobs):
    room = Room()
    api = Limit(running=2, name="api")

    @jobs.task(name="one", limit=api)
    async def one() -> None:
        with room.enter("api"):
            await asyncio.sleep(0.005)

    @jobs.task(name="two", limit=api)
    async def two() -> None:
        with room.enter("api"):
            await asyncio.sleep(0.005)

    async with jobs:
        await jobs.enqueue_many([task.call() for task in (one, two) * 15])
        await jobs.worker(burst=True, concurrency=30).run()

    assert room.most == {"api": 2}
    assert len(room.entered) == 30


async def test_a_key_may_come_from_a_function_or_from_the_call_and_none_means_no_limit(jobs, sql):
    @jobs.task(name="t", limit=Limit(key=lambda user, admin=False: None if admin else user % 2, running=1))
    async def task(user: int, admin: bool = False) -> None: ...

    async with jobs:
        await jobs.enqueue_many(
            [task.call(3), task.call(4), task.call(5, admin=True), task.options(limit="a/b").call(6)]
        )
        keys = await sql.fetch("SELECT limit_key FROM aiopgq.jobs ORDER BY place")

    assert [row[0] for row in keys] == ["t/1", "t/0", None, "t/a/b"]


async def test_a_waiting_job_is_woken_by_the_end_of_the_one_before_it(jobs):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t", limit=Limit(running=1))
    async def task(n: int) -> None:
        if n == 0:
            going.set()
            await may_end.wait()

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await task.enqueue(0)
        await going.wait()
        second = await task.enqueue(1)
        await asleep(worker)
        assert (await second.info()).status == "pending"
        may_end.set()
        await second.result(timeout=10)


async def test_the_jobs_of_one_key_do_not_keep_those_of_another_waiting(jobs, sql):
    order = []

    @jobs.task(name="t", limit=Limit(key="account", running=1))
    async def task(account: str) -> None:
        order.append(account)

    async with jobs:
        await jobs.enqueue_many([task.call("large") for _ in range(300)])
        await jobs.enqueue_many([task.call("small") for _ in range(3)])
        await jobs.worker(burst=True, concurrency=1).run()

    # Keys take turns: the small one waits for no more than a handful of the large one's.
    assert order.index("small") < 5
    assert len(order) == 303
    assert max(at for at, account in enumerate(order) if account == "small") < 12


async def test_higher_priorities_of_a_key_go_first(jobs):
    order = []

    @jobs.task(name="t", limit=Limit(running=1))
    async def task(n: int) -> None:
        order.append(n)

    async with jobs:
        await jobs.enqueue_many([task.options(priority=p).call(p) for p in (30, 100, 150, 30, 150)])
        await jobs.worker(burst=True).run()

    assert order == [150, 150, 100, 30, 30]


# what takes a slot, and what does not


async def test_a_job_that_waits_for_its_next_attempt_leaves_its_slot_to_others(jobs):
    ran = []

    @jobs.task(name="t", limit=Limit(running=1), backoff=Backoff(base=3600))
    async def task(how: str) -> Retry | Snooze | None:
        ran.append(how)
        match how:
            case "fails":
                raise ValueError
            case "retries":
                return Retry(after=3600)
            case "snoozes":
                return Snooze(3600)
        return None

    async with jobs, jobs.worker(poll_interval=NEVER):
        for how in ("fails", "retries", "snoozes"):
            await task.enqueue(how)
        last = await task.enqueue("works")
        await last.result(timeout=20)

    assert ran == ["fails", "retries", "snoozes", "works"]


async def test_a_failed_and_a_cancelled_job_leave_their_slots(jobs):
    may_end = asyncio.Event()

    @jobs.task(name="t", limit=Limit(running=1), max_attempts=1)
    async def task(how: str) -> None:
        if how == "fails":
            raise ValueError
        if how == "stays":
            await may_end.wait()

    async with jobs, jobs.worker(poll_interval=NEVER):
        fails = await task.enqueue("fails")
        await eventually(lambda: is_at(fails, "failed"), what="the job has failed")
        stays = await task.enqueue("stays")
        await eventually(lambda: is_at(stays, "claimed", "running"), what="the job runs")
        held = [await task.enqueue("works") for _ in range(3)]
        await held[0].cancel()
        assert (await held[0].info()).status == "cancelled"
        await stays.cancel()
        await held[1].result(timeout=10)
        await held[2].result(timeout=10)


async def is_at(handle, *statuses):
    return (await handle.info()).status in statuses


async def test_a_delayed_job_takes_no_slot_before_it_is_due_and_keeps_the_limit_then(jobs, sql):
    room = Room()

    @jobs.task(name="t", limit=Limit(running=1))
    async def task() -> None:
        with room.enter("t"):
            await asyncio.sleep(0.01)

    async with jobs:
        later = await jobs.enqueue_many([task.options(delay=3600).call() for _ in range(5)])
        await jobs.enqueue_many([task.call() for _ in range(5)])
        await jobs.worker(burst=True).run()
        assert await standing(sql) == {"waits": 5}
        await sql.execute("UPDATE aiopgq.jobs SET run_at = now()")
        await jobs.worker(burst=True).run()
        assert [await is_at(one, "completed") for one in later] == [True] * 5

    assert room.most == {"t": 1}


async def test_jobs_from_sql_take_room_of_the_same_limit_and_stand_in_the_same_order(jobs, sql):
    room = Room()

    @jobs.task(name="a/b", limit=Limit(key="account", running=1), ordered_by="account")
    async def task(account: int, n: int) -> None:
        with room.enter(account):
            room.entered.append(n)
            await asyncio.sleep(0.001)

    async with jobs:
        for n in range(0, 6, 2):
            await task.enqueue(1, n)
            await sql.execute(
                "SELECT aiopgq.enqueue('a/b', $1, p_limit_key => 'a%2Fb/1', p_order_key => 'a%2Fb/1',"
                " p_unique_key => CASE WHEN $2 THEN 'k' END)", f'{{"account": 1, "n": {n + 1}}}', n == 2,
            )  # fmt: skip
        assert await standing(sql) == {"new order": 6}
        await jobs.worker(burst=True).run()

    assert room.entered == [one for n in range(6) for one in (1, n)]
    assert room.most == {1: 1}


async def test_a_replayed_dead_letter_obeys_its_limit(jobs, sql):
    room, broken = Room(), True

    @jobs.task(name="t", limit=Limit(running=2), max_attempts=1)
    async def task() -> None:
        if broken:
            raise ValueError
        with room.enter("t"):
            await asyncio.sleep(0.01)

    async with jobs:
        handles = await jobs.enqueue_many([task.call() for _ in range(10)])
        await jobs.worker(burst=True).run()
        broken = False
        assert await jobs.inspector.replay([one.id for one in handles]) == (10, {})
        assert await standing(sql) == {"new limit": 10}
        await jobs.worker(burst=True).run()

    assert len(room.entered) == 10
    assert room.most == {"t": 2}


async def test_a_job_that_settles_in_its_own_transaction_frees_its_slot_after_the_commit(jobs, dsn):
    ran = []

    @jobs.task(name="t", limit=Limit(running=1))
    async def task(n: int) -> None:
        ran.append(n)
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await current_job().settle_with(connection)
        finally:
            await connection.close()

    @jobs.task(name="u", limit=Limit(running=1), transactional=True)
    async def within(n: int) -> None:
        ran.append(n)

    async with jobs, jobs.worker(poll_interval=NEVER):
        await jobs.enqueue_many([*(task.call(n) for n in range(4)), *(within.call(n) for n in range(4, 8))])
        await eventually(lambda: len(ran) == 8, within=20, what="all have run")

    assert sorted(ran) == list(range(8))


# deploys


async def test_a_wider_limit_frees_jobs_at_once_and_a_narrower_one_takes_those_back_that_have_not_begun(dsn, sql):
    def app(running):
        jobs = App(dsn)

        @jobs.task(name="t", limit=None if running is None else Limit(running=running))
        async def task() -> None: ...

        return jobs

    async def deployed(running):
        jobs = app(running)
        # A worker that serves another queue declares, and claims nothing.
        async with jobs, jobs.worker(["elsewhere"]) as worker:
            await worker._incarnation._claimer.promote()

    first = app(2)
    async with first:
        await first.enqueue_many([first.task_named("t").call() for _ in range(20)])
    await deployed(2)
    assert await standing(sql) == {"pending": 2, "limit": 18}
    await deployed(5)
    assert await standing(sql) == {"pending": 5, "limit": 15}
    await deployed(1)
    assert await standing(sql) == {"pending": 1, "limit": 19}
    await deployed(None)
    assert await standing(sql) == {"pending": 20}


async def test_jobs_of_a_task_that_no_worker_knows_yet_wait_for_its_limit(dsn, sql):
    new, old = App(dsn), App(dsn)
    room = Room()

    @new.task(name="new", limit=Limit(running=2))
    async def task() -> None:
        with room.enter("new"):
            await asyncio.sleep(0.005)

    @old.task(name="old")
    async def unlimited() -> None: ...

    async with new, old:
        await new.enqueue_many([task.call() for _ in range(10)])
        await old.worker(burst=True).run()
        assert await standing(sql) == {"new limit": 10}
        await new.worker(burst=True).run()

    assert room.most == {"new": 2}
    assert len(room.entered) == 10


async def test_a_limit_that_two_tasks_describe_differently_is_refused_at_the_start(jobs):
    @jobs.task(name="one", limit=Limit(running=1, name="api"))
    async def one() -> None: ...

    @jobs.task(name="two", limit=Limit(running=2, name="api"))
    async def two() -> None: ...

    async with jobs:
        with pytest.raises(ConfigError, match="'api'"):
            await jobs.worker(burst=True).run()


# rates


async def test_no_more_jobs_start_in_a_period_than_the_rate_says_and_the_worker_sleeps_till_the_next_token(jobs):
    loop, started = asyncio.get_running_loop(), []

    @jobs.task(name="t", limit=Limit(rate=4, per=2, burst=2))
    async def task() -> None:
        started.append(loop.time())

    async with jobs, jobs.worker(poll_interval=NEVER):
        handles = await jobs.enqueue_many([task.call() for _ in range(6)])
        for one in handles:
            await one.result(timeout=30)

    # Two at once, then one each half second; handlers may start late, never early.
    assert len(started) == 6
    assert all(
        later - earlier >= 0.5 * (at - 1) - 0.1
        for at, (earlier, later) in enumerate((started[0], one) for one in started)
        if at >= 2
    )


async def test_keys_have_buckets_of_their_own(jobs, sql):
    ran = []

    @jobs.task(name="t", limit=Limit(key="account", rate=2, per=3600))
    async def task(account: int) -> None:
        ran.append(account)

    async with jobs:
        await jobs.enqueue_many([task.call(n % 3) for n in range(15)])
        await jobs.worker(burst=True).run()

    assert Counter(ran) == dict.fromkeys(range(3), 2)
    assert await standing(sql) == {"limit": 9}


async def test_workers_busy_for_long_do_not_save_up_starts(jobs, sql):
    loop, started, done = asyncio.get_running_loop(), [], asyncio.Event()

    @jobs.task(name="t", limit=Limit(rate=20, per=1, burst=2))
    async def task() -> None:
        started.append(loop.time())

    @jobs.task(name="long")
    async def long() -> None:
        await done.wait()

    async def looked():
        # A look pushes the moment at which the bucket is full before itself.
        return await sql.fetchval("SELECT full_at FROM aiopgq.gates WHERE key = 'limit t' AND next_at IS NOT NULL")

    # One has no slot to spare; it is the other that looks for tokens.
    async with jobs, jobs.worker(concurrency=1, poll_interval=NEVER), jobs.worker(queues=["other"]):
        await long.enqueue()
        await jobs.enqueue_many([task.call() for _ in range(12)])
        for _ in range(8):
            before = await looked()
            await eventually(lambda before=before: changed(looked, before), what="a worker looks for tokens")
        # Tokens for a second and more have come by.
        assert await standing(sql) == {"pending": 2, "limit": 10, "running": 1}
        done.set()
        await eventually(lambda: len(started) == 12, within=30, what="all have run")

    # Two at once, then one each twentieth of a second; handlers may start late, never early.
    assert all(one - started[0] >= 0.05 * (at - 3) - 0.02 for at, one in enumerate(started) if at >= 3)


async def changed(look, before):
    return await look() != before


# queues


async def test_a_queue_may_be_limited_as_a_whole_beside_the_limits_of_its_tasks(jobs):
    room = Room()
    jobs.limit_queue("mail", Limit(running=3))

    @jobs.task(name="a", queue="mail", limit=Limit(running=2))
    async def a() -> None:
        with room.enter("mail"), room.enter("a"):
            await asyncio.sleep(0.005)

    @jobs.task(name="b", queue="mail")
    async def b() -> None:
        with room.enter("mail"):
            await asyncio.sleep(0.005)

    async with jobs:
        await jobs.enqueue_many([task.call() for task in (a, b) * 20])
        async with jobs.worker(poll_interval=NEVER), jobs.worker(poll_interval=NEVER):
            await eventually(lambda: room.entered.count("mail") == 40, within=30, what="all have run")
        [queue] = [one for one in await jobs.inspector.queues() if one.queue == "mail"]

    assert room.most["mail"] == 3
    assert room.most["a"] <= 2
    assert queue.most_running == 3


async def test_the_rate_of_a_queue_holds_and_wakes_the_sleeper_for_the_next_token(jobs):
    loop, started = asyncio.get_running_loop(), []
    jobs.limit_queue("mail", Limit(rate=2, per=1, burst=1))

    @jobs.task(name="t", queue="mail")
    async def task() -> None:
        started.append(loop.time())

    async with jobs, jobs.worker(poll_interval=NEVER):
        for one in await jobs.enqueue_many([task.call() for _ in range(4)]):
            await one.result(timeout=30)

    assert started[-1] - started[0] >= 1.4


@pytest.mark.parametrize("of", ["task", "queue"])
async def test_a_rate_that_is_raised_does_not_let_jobs_wait_for_the_period_it_had_before(dsn, sql, of):
    def app(rate, per):
        jobs = App(dsn)
        limit = Limit(rate=rate, per=per)

        @jobs.task(name="t", queue="q", limit=limit if of == "task" else None)
        async def task() -> None: ...

        if of == "queue":
            jobs.limit_queue("q", limit)
        return jobs

    slow = app(1, 86400)
    async with slow:
        await slow.enqueue_many([slow.task_named("t").call() for _ in range(4)])
        await slow.worker(burst=True).run()
    assert sum((await standing(sql)).values()) == 3

    quick = app(20, 1)
    async with quick, quick.worker():
        await eventually(lambda: sql.fetchval("SELECT NOT EXISTS (SELECT FROM aiopgq.jobs)"), what="all have run")


@pytest.mark.parametrize("of", ["task", "queue"])
async def test_a_clock_that_was_set_back_does_not_stop_a_rate_for_as_long(jobs, sql, of):
    limit = Limit(rate=2, per=1, burst=1)

    @jobs.task(name="t", queue="q", limit=limit if of == "task" else None)
    async def task() -> None: ...

    if of == "queue":
        jobs.limit_queue("q", limit)
    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(4)])
        await jobs.worker(burst=True).run()
        # What PostgreSQL has noted lies as far ahead as its clock went back.
        await sql.execute(
            "UPDATE aiopgq.gates SET full_at = full_at + interval '1 day', next_at = next_at + interval '1 day'"
        )
        await sql.execute("UPDATE aiopgq.queues SET full_at = full_at + interval '1 day'")
        async with jobs.worker():
            await eventually(lambda: sql.fetchval("SELECT NOT EXISTS (SELECT FROM aiopgq.jobs)"), what="all have run")


# declarations that cannot be


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"running": 0},
        {"rate": 0},
        {"rate": 1, "per": 0},
        {"running": 1, "burst": 2},
        {"rate": 1, "per": 86400, "burst": 100_000_000},
        {"running": 1, "key": 3},
        {"running": True},
        {"running": 1, "name": ""},
    ],
)
def test_a_limit_that_says_nothing_or_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError):
        Limit(**wrong)


async def test_a_key_that_is_no_parameter_is_refused_at_the_declaration(jobs):
    with pytest.raises(ConfigError, match="no parameter 'acount'; there are: account"):

        @jobs.task(limit=Limit(key="acount", running=1))
        async def task(account: int) -> None: ...


async def test_a_key_that_makes_no_text_is_refused_at_the_call(jobs):
    @jobs.task(name="t", limit=Limit(key="account", running=1))
    async def task(account: object) -> None: ...

    @jobs.task(name="free")
    async def free() -> None: ...

    for wrong in ([1], 1.5, "x" * 501, ("x" * 300, "y" * 300), "\x00"):
        with pytest.raises(ArgumentError):
            task.options(limit=wrong).call("a")
    with pytest.raises(ArgumentError, match="has no limit"):
        free.options(limit="a").call()


# crashes and races, over the real statements


@pytest.fixture
async def line(dsn):
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    yield line
    await line.close()


def limited(key, **more):
    fields = {"queue": "q", "task": "t", "args": "{}", "priority": 100, "delay": None, "run_at": None}
    return NewJob(id=uuid7(), **fields, max_attempts=3, timeout=None, headers=None, limit_key=f"t/{key}", **more)


async def registered(line):
    worker = uuid4()
    await Workers(line).register(WorkerIdentity(worker, "w", "h", 1, "0"), ["q"], ["t"], 5, 60.0, [])
    return worker


async def test_the_jobs_of_a_dead_worker_leave_their_slots_to_others_in_the_rescue_itself(line, sql):
    jobs, workers = Jobs(line), Workers(line)
    await Limits(line).declare({"t": Rule(2, None, None, None)}, [])
    worker, other = await registered(line), await registered(line)
    await jobs.enqueue([limited(1) for _ in range(6)])
    await jobs.promote(EARLIEST, 100, ["t"])
    first = await jobs.claim(worker, uuid4(), 10, ["t"], {"q": 10}, None)
    assert len(first) == 2
    assert await jobs.claim(other, uuid4(), 10, ["t"], {"q": 10}, None) == []

    assert await workers.rescue(worker, 0, keep=True) == 2

    assert len(await jobs.claim(other, uuid4(), 10, ["t"], {"q": 10}, None)) == 2
    assert await standing(sql) == {"claimed": 2, "limit": 2, "waits": 2}


async def test_a_slot_that_a_crash_left_unused_is_found_by_the_net(line, sql):
    jobs = Jobs(line)
    await Limits(line).declare({"t": Rule(1, None, None, None)}, [])
    await jobs.enqueue([limited(1) for _ in range(3)])
    await jobs.promote(EARLIEST, 100, ["t"])
    # As a process does that ends between two transactions.
    await sql.execute("DELETE FROM aiopgq.jobs WHERE held IS NULL")
    assert await standing(sql) == {"limit": 2}

    assert await Limits(line).let_in_stranded() == 1

    assert await standing(sql) == {"limit": 1, "pending": 1}
    assert await Limits(line).let_in_stranded() == 0


@pytest.mark.parametrize("kind", ["p_limit_key", "p_order_key"])
@pytest.mark.parametrize("key", ["", "x" * 2001])
async def test_a_key_that_no_gate_can_have_is_refused_where_it_is_enqueued_from_sql(sql, kind, key):
    with pytest.raises(asyncpg.CheckViolationError, match="has_1_to_2000_bytes"):
        await sql.execute(f"SELECT aiopgq.enqueue('t', {kind} => $1)", key)


async def test_the_longest_key_there_is_goes_through_its_gate(line, sql):
    jobs = Jobs(line)
    # Random, since PostgreSQL compresses what repeats.
    keys = {kind: "t/" + secrets.token_hex(999) for kind in ("p_limit_key", "p_order_key")}
    for kind, key in keys.items():
        for _ in range(2):
            await sql.execute(f"SELECT aiopgq.enqueue('t', p_queue => 'q', {kind} => $1)", key)
    await Limits(line).declare({"t": Rule(1, None, None, None)}, [])

    await jobs.promote(EARLIEST, 100, ["t"])

    assert await standing(sql) == {"pending": 2, "limit": 1, "order": 1}


async def test_a_producer_whose_transaction_stays_open_stops_nobody(line, sql, dsn):
    jobs = Jobs(line)
    await Limits(line).declare({"t": Rule(2, None, None, None)}, [])
    app = App(dsn)

    @app.task(name="t", queue="q", limit=Limit(key="account", running=2))
    async def task(account: int) -> None: ...

    first, second = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        one, two = first.transaction(), second.transaction()
        await one.start()
        await two.start()
        async with asyncio.timeout(10):
            await task.options(connection=first).enqueue(1)
            await task.options(connection=second).enqueue(1)
            await jobs.enqueue([limited(1) for _ in range(3)])
            await jobs.promote(EARLIEST, 100, ["t"])
            taken = await jobs.claim(await registered(line), uuid4(), 10, ["t"], {"q": 10}, None)
            assert await jobs.settle("completed", [Settlement(job, "completed") for job in taken], keep=True)
        await one.rollback()
        await two.commit()
    finally:
        await first.close()
        await second.close()
    await jobs.promote(EARLIEST, 100, ["t"])

    assert sum((await standing(sql)).values()) == 2


async def test_two_who_look_at_arrivals_at_once_do_so_one_after_the_other(line, sql, dsn):
    promote = "SELECT * FROM aiopgq.promote_jobs('2000-01-01', 100, ARRAY['t'])"
    await Limits(line).declare({"t": Rule(1, None, None, None)}, [])
    # The gate is there from an earlier job: making one would keep them apart as well.
    await Jobs(line).enqueue([limited(1)])
    await Jobs(line).promote(EARLIEST, 100, ["t"])
    await sql.execute("DELETE FROM aiopgq.jobs")
    await Jobs(line).enqueue([limited(1)])
    other = await asyncpg.connect(dsn)
    try:
        open_transaction = other.transaction()
        await open_transaction.start()
        await other.execute(promote)
        await Jobs(line).enqueue([limited(1)])
        second = asyncio.ensure_future(Jobs(line).promote(EARLIEST, 100, ["t"]))
        blocked = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        await eventually(lambda: sql.fetchval(blocked, other.get_server_pid()), what="the second waits for the first")
        await open_transaction.commit()
        await second
    finally:
        await other.close()

    assert await standing(sql) == {"pending": 1, "limit": 1}


async def test_a_limit_that_is_lowered_while_jobs_are_let_in_by_the_old_one_holds_for_them_too(line, sql, dsn):
    limits = Limits(line)
    await limits.declare({"t": Rule(3, None, None, None)}, [])
    await Jobs(line).enqueue([limited(1) for _ in range(4)])
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            # Behind a gate that is new, so that nobody else sees it.
            await other.execute("SELECT * FROM aiopgq.promote_jobs('2000-01-01', 100, ARRAY['t'])")
            lowered = asyncio.ensure_future(limits.declare({"t": Rule(1, None, None, None)}, []))
            blocked = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
            await eventually(lambda: sql.fetchval(blocked, other.get_server_pid()), what="the new limit waits")
        await lowered
    finally:
        await other.close()

    assert await standing(sql) == {"pending": 1, "limit": 3}


async def test_the_jobs_of_a_schedule_obey_limit_and_order(jobs, sql):
    @jobs.task(name="t", limit=Limit(key="account", running=1), ordered_by="account", on_dead="block")
    async def task(account: int) -> None: ...

    async with jobs:
        await jobs.schedules.set("often", task.call(7), "@daily")
        await jobs.inspector.run_schedule("often")
        [row] = await sql.fetch("SELECT held, limit_key, order_key, order_blocks FROM aiopgq.jobs")

    assert tuple(row) == ("new order", "t/7", "t/7", True)


async def test_unused_gates_are_forgotten_and_used_ones_are_not(line, sql):
    jobs, limits = Jobs(line), Limits(line)
    await limits.declare({"t": Rule(1, None, None, None)}, [])
    worker = await registered(line)
    await jobs.enqueue([limited(key) for key in (1, 2, 2)])
    await jobs.promote(EARLIEST, 100, ["t"])
    taken = await jobs.claim(worker, uuid4(), 10, ["t"], {"q": 10}, None)
    await jobs.settle("completed", [Settlement(job, "completed") for job in taken], keep=True)

    assert await limits.forget_gates(100) == 1

    assert await sql.fetchval("SELECT array_agg(key) FROM aiopgq.gates") == ["limit t/2"]


async def test_a_gate_that_is_forgotten_at_the_moment_it_is_needed_is_made_again(line, sql, dsn):
    jobs = Jobs(line)
    await Limits(line).declare({"t": Rule(1, None, None, None)}, [])
    new = limited(1)
    await jobs.enqueue([new])
    await sql.execute("INSERT INTO aiopgq.gates (key) VALUES ('limit t/1')")
    upkeep = await asyncpg.connect(dsn)
    try:
        async with upkeep.transaction():
            assert await upkeep.fetchval("SELECT aiopgq.forget_gates(100)") == 1
            # From SQL, where nobody repeats the statement.
            cancelled = asyncio.ensure_future(sql.fetchval("SELECT aiopgq.cancel_job($1)", new.id))
            blocked = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
            pid = upkeep.get_server_pid()
            await eventually(lambda: upkeep.fetchval(blocked, pid), what="the gate is waited for")
        assert await cancelled == "cancelled"
    finally:
        await upkeep.close()


async def test_the_limit_of_a_queue_holds_whatever_isolation_the_database_prefers(line, sql, dsn):
    name = await sql.fetchval("SELECT quote_ident(current_database())")
    await sql.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    await Limits(line).limit_queues({"q": Rule(1, None, None, None)}, [])
    # Of two tasks, so that the two claims meet at no job.
    await Jobs(line).enqueue([structs.replace(limited(1), limit_key=None, task=task) for task in ("t", "u")])
    worker = await registered(line)
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            claim = "SELECT * FROM aiopgq.claim_lanes($1, $2, 1, '{t}', '{q}', '{1}', NULL, NULL, NULL)"
            assert len(await other.fetch(claim, worker, uuid4())) == 1
            second = asyncio.ensure_future(Jobs(line).claim(worker, uuid4(), 1, ["u"], {"q": 1}, None))
            blocked = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
            await eventually(lambda: sql.fetchval(blocked, other.get_server_pid()), what="the second waits")
        assert await second == []
    finally:
        await other.close()


async def test_many_who_settle_and_arrive_at_once_never_let_one_in_too_many(dsn, sql):
    keys, per_key = [str(n) for n in range(12)], 20
    lines = [Line(ConnectSettings(dsn, "aiopgq"), "test") for _ in range(8)]
    await Limits(lines[0]).declare({"t": Rule(2, None, None, None)}, [])
    workers = [await registered(line) for line in lines]
    done = Counter()
    over = []

    async def produce(line):
        for _ in range(per_key):
            await Jobs(line).enqueue([limited(key) for key in keys])

    async def work(line, worker):
        jobs = Jobs(line)
        while done.total() < len(keys) * per_key:
            taken = await jobs.claim(worker, uuid4(), 7, ["t"], {"q": 7}, None)
            if not taken:
                await jobs.promote(EARLIEST, 100, ["t"])
                await asyncio.sleep(0)
            half = [Settlement(job, "completed") for job in taken[::2]]
            again = [Settlement(job, "pending", refund=True) for job in taken[1::2]]
            if half:
                done.update(job.id for job in await settled(jobs, "completed", half))
            if again:
                await settled(jobs, "pending", again)

    async def settled(jobs, kind, batch):
        ours = await jobs.settle(kind, batch, keep=True)
        assert len(ours) == len(batch)
        return [one.job for one in batch]

    async def watch():
        while done.total() < len(keys) * per_key:
            over.extend(
                await sql.fetch(
                    "SELECT limit_key, count(*) FROM aiopgq.jobs WHERE held IS NULL AND place IS NOT NULL"
                    " GROUP BY limit_key HAVING count(*) > 2"
                )
            )
            await asyncio.sleep(0)

    try:
        async with asyncio.timeout(120):
            await asyncio.gather(
                produce(lines[0]),
                *(work(line, worker) for line, worker in zip(lines[1:], workers[1:], strict=True)),
                watch(),
            )
    finally:
        for line in lines:
            await line.close()

    assert over == []
    assert max(done.values()) == 1


# the whole, with real processes

PROGRAM = """
import asyncio, os, random
import asyncpg
from aiopgq import App, Limit

jobs = App()
pool = None
making = asyncio.Lock()

async def effects():
    global pool
    async with making:
        if pool is None:
            pool = await asyncpg.create_pool(os.environ["EFFECTS"], min_size=1, max_size=3)
    return pool

@jobs.task(limit=Limit(key="account", running=2))
async def work(account: int) -> None:
    connections = await effects()
    run = await connections.fetchval("INSERT INTO public.effects (account) VALUES ($1) RETURNING id", account)
    await asyncio.sleep(random.uniform(0, 0.02))
    await connections.execute("UPDATE public.effects SET ended = clock_timestamp() WHERE id = $1", run)
"""
EFFECTS = """CREATE TABLE public.effects (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int NOT NULL,
    began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)"""


@pytest.mark.slow
async def test_a_limit_is_exact_with_eight_worker_processes_and_fifty_keys(dsn, sql, tmp_path):
    (tmp_path / "limited.py").write_text(PROGRAM)
    await sql.execute(EFFECTS)
    jobs = App(dsn)

    @jobs.task(name="limited.work", limit=Limit(key="account", running=2))
    async def work(account: int) -> None: ...

    async with jobs:
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aiopgq", "run", "-A", "limited", "--concurrency", "10", "--no-job-log",
                cwd=tmp_path, env=environment(AIOPGQ_DSN=dsn, EFFECTS=dsn),
            )
            for _ in range(8)
        ]  # fmt: skip
        try:
            for start in range(20):
                await jobs.enqueue_many([work.call((start * 100 + n) % 50) for n in range(100)])
            left = "SELECT NOT EXISTS (SELECT FROM aiopgq.jobs)"
            await eventually(lambda: sql.fetchval(left), within=240, every=0.5, what="all jobs are done")
        finally:
            for process in processes:
                process.terminate()
            codes = [await process.wait() for process in processes]

    moments = defaultdict(list)
    for run in await sql.fetch("SELECT account, began, ended FROM public.effects"):
        moments[run["account"]] += [(run["began"], 1), (run["ended"], -1)]
    most = {account: max(itertools.accumulate(step for _, step in sorted(steps))) for account, steps in moments.items()}
    assert codes == [0] * 8
    assert {account: len(steps) for account, steps in moments.items()} == dict.fromkeys(range(50), 80)
    assert [account for account, count in most.items() if count > 2] == []
    # And it was used: with fewer than two at once nothing would have been proved.
    assert sum(count == 2 for count in most.values()) > 40
