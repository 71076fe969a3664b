"""Cancel: whoever wins a race with it, a job ends once, and as everybody was told."""

import asyncio
from collections import Counter

import pytest
from invariants import Journal
from support import eventually

from aiopgq import App, Retry
from aiopgq.errors import JobCancelled, JobFailed

EVERY_END = """
    SELECT id, array_agg(status) AS ends FROM aiopgq.all_jobs GROUP BY id
"""


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def ends_of(handles, sql):
    """Return the only end of each job, when all have ended."""

    async def ended():
        return await sql.fetchval("SELECT count(*) = 0 FROM aiopgq.jobs")

    await eventually(ended, within=30, what="all jobs have ended")
    found = {row["id"]: row["ends"] for row in await sql.fetch(EVERY_END)}
    assert {len(ends) for ends in found.values()} == {1}
    return [found[job.id][0] for job in handles]


async def test_a_notification_alone_brings_a_cancel_request_to_the_run(jobs, monkeypatch):
    monkeypatch.setattr("aiopgq.app._BEAT_INTERVAL", 300)
    monkeypatch.setattr("aiopgq._flow.report._TICK", 300)
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        going.set()
        await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        assert await job.cancel() == "requested"
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)


async def test_a_cancel_that_races_with_the_claim_is_true_either_way(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    async with jobs:
        handles = await jobs.enqueue_many([task.call() for _ in range(60)])
        async with jobs.worker(concurrency=20):
            answers = await asyncio.gather(*(job.cancel() for job in handles))
            ends = await ends_of(handles, sql)

    assert set(answers) <= {"cancelled", "requested"}
    assert ends == ["cancelled"] * 60
    # What was cancelled at once never ran.
    at_once = {job.id for job, answer in zip(handles, answers, strict=True) if answer == "cancelled"}
    assert at_once.isdisjoint(journal.jobs)


async def test_a_cancel_that_races_with_completion_leaves_one_end(jobs, sql):
    async def cancel_soon(job, turns):
        for _ in range(turns % 40):
            await asyncio.sleep(0)
        return await job.cancel()

    @jobs.task(name="t")
    async def task(turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return "done"

    async with jobs, jobs.worker(concurrency=10):
        handles = await jobs.enqueue_many([task.call(n % 7) for n in range(300)])
        answers = []
        for at in range(0, 300, 10):
            some = handles[at : at + 10]
            answers += await asyncio.gather(*(cancel_soon(job, at + n) for n, job in enumerate(some)))
        ends = await ends_of(handles, sql)

    told = Counter(zip(answers, ends, strict=True))
    assert set(told) <= {
        ("cancelled", "cancelled"),
        ("finished", "completed"),
        ("requested", "completed"),
        ("requested", "cancelled"),
    }
    assert len({answer for answer, _ in told}) > 1, "nothing raced"


@pytest.mark.parametrize("way", ["Retry", "error"])
async def test_a_job_whose_cancel_was_requested_does_not_come_back_by_a_retry(jobs, journal, sql, way):
    """The request arrives when the handler has ended and its outcome is on the way."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t", backoff=lambda _: 0)
    async def task() -> Retry | None:
        with journal.run():
            begun.set()
            await go_on.wait()
            if way == "Retry":
                return Retry(after=0)
            raise ValueError

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await begun.wait()
        # Nobody tells the worker: only the row knows.
        await sql.execute("UPDATE aiopgq.jobs SET cancel_requested = true")
        go_on.set()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)

    assert journal.attempts == [1]


@pytest.mark.parametrize("how", ["timeout", "cancel", "shutdown"])
async def test_timeout_cancel_and_shutdown_are_three_ends_of_the_same_run(jobs, journal, sql, how):
    going = asyncio.Event()

    @jobs.task(name="t", max_attempts=1 if how == "timeout" else 2)
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs:
        async with jobs.worker(shutdown_grace=0):
            job = await task.options(timeout=0.2 if how == "timeout" else 60).enqueue()
            await going.wait()
            if how == "timeout":
                with pytest.raises(JobFailed, match="TimeoutError"):
                    await job.result(timeout=10)
            elif how == "cancel":
                await job.cancel()
                with pytest.raises(JobCancelled, match="while it ran"):
                    await job.result(timeout=10)
        info = await job.info()

    assert (info.status, info.attempts, len(info.errors)) == {
        "timeout": ("failed", 1, 1),
        "cancel": ("cancelled", 1, 0),
        "shutdown": ("pending", 0, 0),
    }[how]
