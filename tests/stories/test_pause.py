"""Pauses: of a queue or a task, on all workers, through restarts, until resumed."""

import asyncio
from collections import Counter

import pytest
from invariants import in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Limit
from aiopgq.errors import AppNotOpen, ConfigError, UsageError

# Polling shall not be what helps.
NEVER = 300


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def begun(jobs):
    """Two tasks on queues of their own, and what has begun of them."""
    begun = []

    @jobs.task(name="mail", queue="mail")
    async def mail(n: int) -> None:
        begun.append(("mail", n))

    @jobs.task(name="other", queue="other")
    async def other(n: int) -> None:
        begun.append(("other", n))

    return begun


async def asleep(worker):
    await eventually(lambda: worker._incarnation.sleeper.asleep, within=30, what="the worker sleeps")


async def passed(jobs, task, n):
    """Enqueue to a queue that is open and wait for the end: the worker has looked at all its queues meanwhile."""
    await (await jobs.task_named(task).enqueue(n)).result(timeout=20)


async def test_a_paused_queue_begins_no_job_and_a_resume_wakes_the_sleeping_worker(jobs, begun):
    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        assert await jobs.pause(queue="mail")
        assert not await jobs.pause(queue="mail")
        waiting = await jobs.task_named("mail").enqueue(1)
        await passed(jobs, "other", 1)
        await passed(jobs, "other", 2)
        await asleep(worker)
        assert begun == [("other", 1), ("other", 2)]

        assert await jobs.resume(queue="mail")
        assert not await jobs.resume(queue="mail")
        await waiting.result(timeout=10)

    assert begun[-1] == ("mail", 1)


async def test_a_pause_outlives_the_workers(jobs, begun, sql):
    async with jobs:
        await jobs.pause(queue="mail")
        for n in range(5):
            await jobs.task_named("mail").enqueue(n)
        await jobs.worker(burst=True).run()
        await jobs.worker(burst=True).run()
        assert begun == []
        assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE held IS NULL AND place IS NOT NULL") == 5

        await jobs.resume(queue="mail")
        await jobs.worker(burst=True).run()

    assert sorted(begun) == [("mail", n) for n in range(5)]


async def test_jobs_that_run_when_their_queue_is_paused_go_on(jobs):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t")
    async def task() -> int:
        going.set()
        await may_end.wait()
        return 7

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        await jobs.pause(queue="default")
        may_end.set()
        assert await job.result(timeout=10) == 7


async def test_a_pause_holds_for_every_worker_from_its_next_claim_on(jobs, dsn, begun):
    others = App(dsn)
    ran = []

    @others.task(name="mail", queue="mail")
    async def mail(n: int) -> None:
        ran.append(n)

    async with jobs, others, jobs.worker(poll_interval=0.02), others.worker(poll_interval=0.02):
        await passed(jobs, "mail", 0)
        await jobs.pause(queue="mail")
        before = len(begun) + len(ran)
        await jobs.enqueue_many([jobs.task_named("mail").call(n) for n in range(1, 30)])
        await passed(jobs, "other", 1)
        counts = Counter({(one.queue, one.status): one.jobs for one in await jobs.inspector.counts()})
        assert counts["mail", "pending"] == 29
        assert len([one for one in begun if one[0] == "mail"]) + len(ran) == before
        await jobs.resume(queue="mail")
        await eventually(lambda: len(begun) + len(ran) == 31, what="all jobs of the queue have run")


async def test_jobs_of_a_paused_task_leave_the_line_and_come_back_in_their_order(jobs, begun, sql):
    async with jobs:
        early = await jobs.enqueue_many([jobs.task_named("mail").call(n) for n in range(3)])
        await jobs.pause(task="mail")
        late = await jobs.task_named("mail").enqueue(3)
        assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE held = 'paused'") == 4
        await jobs.worker(burst=True).run()
        assert begun == []

        await jobs.resume(task="mail")
        await jobs.worker(burst=True, concurrency=1).run()
        assert [(await job.info()).status for job in [*early, late]] == ["completed"] * 4

    assert begun == [("mail", n) for n in range(4)]


async def test_a_paused_task_does_not_stop_the_others_of_its_queue(jobs):
    begun = []

    @jobs.task(name="stops")
    async def stops() -> None:
        begun.append("stops")

    @jobs.task(name="goes")
    async def goes() -> None:
        begun.append("goes")

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await jobs.pause(task="stops")
        waits = await stops.enqueue()
        await (await goes.enqueue()).result(timeout=10)
        await asleep(worker)
        assert begun == ["goes"]
        await jobs.resume(task="stops")
        await waits.result(timeout=10)


async def test_a_delayed_job_and_a_limited_one_wait_for_the_end_of_a_pause_too(jobs, sql):
    begun = []

    @jobs.task(name="t", limit=Limit(running=1))
    async def task(n: int) -> None:
        begun.append(n)

    async with jobs, jobs.worker(poll_interval=0.05):
        await jobs.pause(task="t")
        delayed = await task.options(delay=0.1).enqueue(1)
        at_once = await task.enqueue(2)
        due = "SELECT count(*) FROM aiopgq.jobs WHERE place IS NOT NULL"
        await eventually(lambda: sql.fetchval(due), what="the delayed job is due")
        assert begun == []
        await jobs.resume(task="t")
        await delayed.result(timeout=10)
        await at_once.result(timeout=10)


async def test_a_paused_task_leaves_the_limit_that_it_shares_to_others(jobs, sql):
    begun = []

    @jobs.task(name="stops", limit=Limit(name="partner", running=1))
    async def stops(n: int) -> None:
        begun.append("stops")

    @jobs.task(name="goes", limit=Limit(name="partner", running=1))
    async def goes() -> None:
        begun.append("goes")

    async with jobs:
        await jobs.enqueue_many([stops.call(n) for n in range(3)])
        # One of them is in line, the others have been looked at.
        await sql.execute(
            "SELECT aiopgq.declare_limits(ARRAY['partner'], ARRAY[1], ARRAY[NULL::int], ARRAY[NULL::int],"
            " ARRAY[NULL::float], '{}'), aiopgq.promote_jobs('1900-01-01', 100, ARRAY['stops'])"
        )
        await jobs.pause(task="stops")
        late = [await stops.options(priority=200).enqueue(3), await stops.options(delay=0.01).enqueue(4)]
        async with jobs.worker(poll_interval=0.05):
            await (await goes.enqueue()).result(timeout=3)
            assert begun == ["goes"]
            await jobs.resume(task="stops")
            for job in late:
                await job.result(timeout=10)
            await eventually(lambda: len(begun) == 6, what="the others have run")


async def test_a_queue_says_that_it_is_paused(jobs):
    async with jobs:
        await jobs.pause(queue="mail")
        [one] = await jobs.inspector.queues()
        assert one.queue == "mail"
        assert one.paused_at is not None
        await jobs.pause(task="send")
        assert list(await jobs.inspector.paused_tasks()) == ["send"]
        await jobs.resume(queue="mail")
        assert await jobs.inspector.queues() == []


async def test_a_pause_names_one_thing_in_an_open_app(jobs):
    with pytest.raises(AppNotOpen):
        await jobs.pause(queue="mail")
    async with jobs:
        for wrong in ({}, {"queue": "a", "task": "b"}):
            with pytest.raises(UsageError):
                await jobs.pause(**wrong)
            with pytest.raises(UsageError):
                await jobs.resume(**wrong)
        with pytest.raises(ConfigError):
            await jobs.pause(queue="")
