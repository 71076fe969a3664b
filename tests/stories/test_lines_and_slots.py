"""Claim: jobs are taken in their turn, once, by those who know them, and never more than there are slots."""

import asyncio
import random
from collections import Counter

import asyncpg
import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Backoff
from aiopgq._flow.upkeep import Upkeep
from aiopgq._store.jobs import Jobs

# Polling shall not be what helps.
NEVER = 300


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def asleep(worker):
    """Wait until a worker sleeps, which old transactions anywhere on the server may hold up."""
    await eventually(lambda: worker._incarnation.sleeper.asleep, within=30, what="the worker sleeps")


# order


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_higher_priorities_run_first_and_equal_ones_in_their_order(jobs, journal, concurrency):
    numbers = []

    @jobs.task(name="t")
    async def task(n: int) -> None:
        with journal.run():
            numbers.append(n)

    dice = random.Random(3)
    priorities = [dice.choice([-5, 0, 30, 100, 150, 32767]) for _ in range(60)]
    async with jobs:
        for n, priority in enumerate(priorities):
            await task.options(priority=priority).enqueue(n)
        await jobs.worker(burst=True, concurrency=concurrency).run()

    assert numbers == sorted(range(60), key=lambda n: (-priorities[n], n))


async def test_a_job_of_higher_priority_overtakes_those_that_wait(jobs, journal):
    going, may_end, order = asyncio.Event(), asyncio.Event(), []

    @jobs.task(name="t")
    async def task(name: str) -> None:
        with journal.run():
            order.append(name)
            if name == "holds the slot":
                going.set()
                await may_end.wait()

    async with jobs, jobs.worker(concurrency=1, poll_interval=NEVER):
        # From it the worker knows that there are urgent ones at all.
        await (await task.options(priority=150).enqueue("urgent once")).result(timeout=10)
        await task.enqueue("holds the slot")
        await going.wait()
        for name in ("waits", "waits too"):
            await task.enqueue(name)
        last = await task.options(priority=30).enqueue("can wait")
        await task.options(priority=150).enqueue("urgent")
        may_end.set()
        await last.result(timeout=10)

    assert order == ["urgent once", "holds the slot", "urgent", "waits", "waits too", "can wait"]


async def test_a_priority_never_seen_before_is_discovered_while_others_keep_coming(jobs, journal):
    order = []

    @jobs.task(name="t")
    async def task(name: str) -> None:
        with journal.run():
            order.append(name)
            await asyncio.sleep(0.002)

    async with jobs, jobs.worker(concurrency=1, poll_interval=NEVER):
        await jobs.enqueue_many([task.call("waits") for _ in range(2000)])
        await eventually(lambda: len(order) > 10)
        await task.options(priority=101).enqueue("urgent")
        await eventually(lambda: "urgent" in order, within=10)

        assert len(order) < 2000


async def test_two_hundred_priorities_are_two_hundred_lanes(jobs, journal):
    order = []

    @jobs.task(name="t")
    async def task(priority: int) -> None:
        with journal.run():
            order.append(priority)

    priorities = list(range(-100, 100))
    random.Random(1).shuffle(priorities)
    async with jobs:
        await jobs.enqueue_many([task.options(priority=one).call(one) for one in priorities])
        async with jobs.worker(concurrency=1, poll_interval=NEVER):
            await eventually(lambda: len(order) == 200, within=20)

    assert order == sorted(priorities, reverse=True)


async def test_a_retried_job_stands_in_line_again_behind_those_that_came_meanwhile(jobs, journal):
    @jobs.task(name="fails", backoff=Backoff(base=0), max_attempts=1000)
    async def fails() -> None:
        raise ValueError

    @jobs.task(name="good")
    async def good() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(concurrency=5, shutdown_grace=0):
        await jobs.enqueue_many([fails.call() for _ in range(50)])
        handles = await jobs.enqueue_many([good.call() for _ in range(20)])
        for job in handles:
            await job.result(timeout=5)

    assert len(journal.jobs) == 20


async def test_a_busy_worker_reads_its_line_from_a_bound_and_seldom_from_the_start(jobs, journal, monkeypatch):
    bounds, claim = [], Jobs.claim

    async def recorded(self, worker, claim_id, limit, tasks, queues, lanes):
        bounds.append(None if lanes is None else max(lanes.values()))
        return await claim(self, worker, claim_id, limit, tasks, queues, lanes)

    monkeypatch.setattr(Jobs, "claim", recorded)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(2000)])
        async with jobs.worker(concurrency=10):
            await eventually(lambda: len(journal.jobs) == 2000, within=20)
            claims = list(bounds)

    bounded = [bound for bound in claims if bound is not None]
    assert bounded == sorted(bounded)
    # Some places behind the last one it has seen.
    assert 2000 - 300 < bounded[-1] < 2000
    assert claims.count(None) < len(claims) / 4


async def test_a_job_of_a_long_transaction_is_found_below_the_bound(jobs, journal, sql):
    """Its place is far below those that were claimed since; only a sweep finds it, and the worker is busy."""
    order = []

    @jobs.task(name="t")
    async def task(n: int) -> None:
        with journal.run():
            order.append(n)
            await asyncio.sleep(0.001)

    async with jobs, jobs.worker(concurrency=2, poll_interval=NEVER):
        async with sql.transaction():
            await task.options(connection=sql).enqueue(-1)
            await jobs.enqueue_many([task.call(n) for n in range(1500)])
            await eventually(lambda: len(order) > 500, within=60)
        await eventually(lambda: -1 in order, within=60)
        assert order.index(-1) > 500
        await eventually(lambda: len(order) == 1501, within=60)

    # Found by a sweep while there was other work, not when the line was empty at last.
    assert order.index(-1) < 1450


# slots


@pytest.fixture
def crowd(jobs):
    """Tasks in three queues, each with a journal of its own."""
    journals = {}
    for queue in ("mail", "web", "rest"):
        journals[queue] = Journal()

        @jobs.task(name=queue, queue=queue)
        async def task(queue: str) -> None:
            with journals[queue].run():
                await asyncio.sleep(0.003)

    yield journals
    for journal in journals.values():
        journal.check()


async def test_slots_are_never_exceeded(jobs, crowd, journal):
    for queue in ("web", "rest"):
        # Both write into one book: they share their slots.
        crowd[queue] = journal
    calls = [jobs.task_named(queue).call(queue) for queue in ("mail", "web", "rest") for _ in range(40)]
    async with jobs:
        await jobs.enqueue_many(calls)
        async with jobs.worker({"mail": 2, "web": None, "rest": None}, concurrency=3):
            await eventually(lambda: len(journal.jobs) == 80 and len(crowd["mail"].jobs) == 40, within=20)

    assert crowd["mail"].most_at_once == 2
    assert journal.most_at_once == 3


async def test_a_worker_serves_only_the_queues_it_is_told(jobs, crowd):
    async with jobs, jobs.worker(["mail"], poll_interval=NEVER):
        served = await jobs.task_named("mail").enqueue("mail")
        passed = await jobs.task_named("web").enqueue("web")
        await served.result(timeout=10)
        await (await jobs.task_named("mail").enqueue("mail")).result(timeout=10)

        assert (await passed.info()).status == "pending"


@pytest.mark.parametrize(
    ("full", "free"), [("mail", "web"), ("web", "mail")], ids=["own slots are full", "shared slots are full"]
)
async def test_a_full_queue_does_not_keep_another_from_its_slots(jobs, journal, full, free):
    may_end = asyncio.Event()
    for queue in ("mail", "web"):

        @jobs.task(name=queue, queue=queue)
        async def task(stays: bool) -> None:
            with journal.run():
                if stays:
                    await may_end.wait()

    async with jobs, jobs.worker({"mail": 1, "web": None}, concurrency=1, poll_interval=NEVER):
        stays = [await jobs.task_named(full).enqueue(stays=True) for _ in range(5)]
        await eventually(lambda: journal.jobs)
        for _ in range(10):
            await (await jobs.task_named(free).enqueue(stays=False)).result(timeout=10)
        assert [(await job.info()).status for job in stays].count("pending") == 4
        may_end.set()
        for job in stays:
            await job.result(timeout=10)


async def test_queues_that_share_slots_take_turns(jobs, journal):
    order = []
    for queue in ("long", "short"):

        @jobs.task(name=queue, queue=queue)
        async def task(queue: str) -> None:
            with journal.run():
                order.append(queue)

    async with jobs:
        await jobs.enqueue_many([jobs.task_named("long").call("long") for _ in range(400)])
        await jobs.enqueue_many([jobs.task_named("short").call("short") for _ in range(20)])
        await jobs.worker(burst=True, concurrency=2).run()

    assert Counter(order) == {"long": 400, "short": 20}
    assert max(n for n, queue in enumerate(order) if queue == "short") < 150


async def test_three_workers_run_each_job_once(dsn, journal, sql):
    apps = [App(dsn) for _ in range(3)]
    for app in apps:

        @app.task(name="t")
        async def task() -> None:
            with journal.run():
                await asyncio.sleep(0.001)

    async with apps[0], apps[1], apps[2]:
        async with apps[0].worker(concurrency=7), apps[1].worker(concurrency=7), apps[2].worker(concurrency=7):
            for _ in range(6):
                await apps[2].enqueue_many([task.call() for _ in range(100)])
            await eventually(lambda: len(journal.jobs) == 600, within=20)
        connections = await sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^aiopgq'"
        )

    assert len(set(journal.jobs)) == 600
    assert journal.most_at_once > 7
    assert connections <= 3 * 2


async def test_thousands_of_jobs_for_later_do_not_stand_in_the_way(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    await sql.execute("""
        INSERT INTO aiopgq.jobs (id, task, run_at)
        SELECT gen_random_uuid(), 't', now() + interval '1 day' FROM generate_series(1, 30000)""")
    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        async with asyncio.timeout(5):
            for _ in range(10):
                await (await task.enqueue()).result(timeout=5)

    assert len(journal.jobs) == 10


# tasks that nobody knows


@pytest.fixture
def passes(monkeypatch):
    """Upkeep several times a second; gives the passes so far."""
    done = []
    work = Upkeep.work

    async def counted(self):
        await work(self)
        done.append(self)

    monkeypatch.setattr(Upkeep, "work", counted)
    monkeypatch.setattr("aiopgq._flow.upkeep._PASS", 0.1)
    return done


def two_versions(dsn, journal):
    """An App before a deploy, which knows task a, and one after it, which knows a and b."""
    old, new = App(dsn), App(dsn)

    async def a() -> None:
        with journal.run():
            pass

    async def b() -> None:
        with journal.run():
            pass

    old.task(name="a")(a)
    new.task(name="a")(a)
    return old, new, new.task(name="b")(b)


@pytest.mark.parametrize("many", [20, 150], ids=["few", "more than a sweep should pass by"])
async def test_jobs_of_a_task_the_old_worker_does_not_know_wait_for_the_new_one(
    dsn, journal, sql, passes, caplog, many
):
    old, new, b = two_versions(dsn, journal)
    a = old.task_named("a")

    async with old, new:
        handles = await new.enqueue_many([b.call() for _ in range(many)])
        async with old.worker(poll_interval=NEVER):
            begun = len(passes)
            for _ in range(5):
                await (await a.enqueue()).result(timeout=5)
            await eventually(lambda: len(passes) > begun + 5)
            held = await sql.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE held = 'unknown task'")
            assert held == (many if many > 100 else 0)
            await (await a.enqueue()).result(timeout=5)
            async with new.worker(poll_interval=NEVER):
                for job in handles:
                    await job.result(timeout=10)
        infos = [await job.info() for job in handles]

    assert {info.attempts for info in infos} == {1}
    warnings = [record for record in caplog.records if "have no live worker" in record.getMessage()]
    assert [record.task for record in warnings] == ["b"]


async def test_held_jobs_are_freed_by_the_worker_that_knows_them(dsn, journal, sql, passes):
    _, new, _ = two_versions(dsn, journal)

    async with new, new.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        await sql.execute("""
            INSERT INTO aiopgq.jobs (id, task, held, place)
            SELECT gen_random_uuid(), 'b', 'unknown task', nextval('aiopgq.places') FROM generate_series(1, 5)""")
        await eventually(lambda: len(journal.jobs) == 5, within=5)


async def test_names_that_no_task_has_harm_nobody(jobs, journal, sql, passes):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    insert = "INSERT INTO aiopgq.jobs (id, task) VALUES (gen_random_uuid(), $1)"
    async with jobs, jobs.worker(poll_interval=NEVER):
        for refused in ("", None, "n" * 10_000):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError):
                await sql.execute(insert, refused)
        for unknown in ("no.such", "T", " t", "'; DROP TABLE jobs; --", "💥"):
            await sql.execute(insert, unknown)
        begun = len(passes)
        await eventually(lambda: len(passes) > begun + 2)
        await (await task.enqueue()).result(timeout=5)

        assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE status = 'pending'") == 5
