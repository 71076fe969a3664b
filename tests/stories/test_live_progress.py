"""Progress, live: who watches a job sees how far it is until it ends, and no report touches a job that has ended."""

import asyncio
import itertools
from uuid import uuid4

import pytest
from support import eventually

from aiopgq import App, Progress, Retry, current_job
from aiopgq._store.jobs import Jobs
from aiopgq.errors import AppNotOpen, JobNotFound, NotYetCommitted, StoreUnavailable

REPORT = """
    SELECT m.id FROM aiopgq.mark_jobs(ARRAY[$1::uuid], ARRAY[$2::uuid], ARRAY[0.0::float8], ARRAY[99::real],
        ARRAY['late'], ARRAY[1]) m
"""


@pytest.fixture
def jobs(dsn):
    return App(dsn)


def short(updates):
    return [(update.status, update.percent, update.stage) for update in updates]


async def watched(job, seen):
    async for update in job.progress():
        seen.append(update)
    return seen


async def seen_so_far(seen, condition, what):
    await eventually(lambda: any(condition(update) for update in seen), what=what)


async def test_who_watches_sees_the_job_from_pending_to_its_end(jobs):
    steps = [asyncio.Event() for _ in range(2)]

    @jobs.task(name="t")
    async def task() -> None:
        current_job().progress(40, stage="resizing")
        await steps[0].wait()
        current_job().progress(80, stage="storing")
        await steps[1].wait()

    async with jobs:
        job = await task.enqueue()
        seen = []
        watching = asyncio.create_task(watched(job, seen))
        await seen_so_far(seen, lambda update: update.status == "pending", "it is seen pending")
        async with jobs.worker():
            await seen_so_far(seen, lambda update: update.percent == 40, "the first report is seen")
            steps[0].set()
            await seen_so_far(seen, lambda update: update.percent == 80, "the second report is seen")
            steps[1].set()
            async with asyncio.timeout(10):
                await watching
        # Who comes late sees the end only.
        assert await watched(job, []) == seen[-1:]

    assert [one for one in short(seen) if one[0] != "claimed"] == [
        ("pending", None, None),
        ("running", 40, "resizing"),
        ("running", 80, "storing"),
        ("completed", 80, "storing"),
    ]
    assert seen[-1] == Progress("completed", 80, "storing", 2, 1)
    assert seen[-1].final


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_the_watch_ends_however_the_job_does(jobs, ending):
    go_on = asyncio.Event()

    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        await go_on.wait()
        raise ValueError

    async with jobs, jobs.worker():
        job = await task.enqueue()
        seen = []
        watching = asyncio.create_task(watched(job, seen))
        await seen_so_far(seen, lambda update: update.status == "running", "it is seen running")
        if ending == "cancelled":
            await job.cancel()
        else:
            go_on.set()
        async with asyncio.timeout(10):
            await watching

    assert seen[-1].status == ending


async def test_a_job_that_runs_again_begins_anew(jobs):
    @jobs.task(name="t")
    async def task() -> Retry | None:
        current_job().progress(70, stage="almost")
        if current_job().attempt == 1:
            return Retry(after=1.2)
        return None

    async with jobs, jobs.worker():
        seen = await watched(await task.enqueue(), [])

    assert ("pending", None, None, 1) in [(*one, update.attempt) for one, update in zip(short(seen), seen, strict=True)]
    assert seen[-1] == Progress("completed", 70, "almost", 2, 2)


async def test_many_watchers_share_one_statement_and_an_idle_app_asks_nothing(jobs, monkeypatch):
    asked, progress = [], Jobs.progress

    async def counted(self, ids):
        asked.append(len(ids))
        return await progress(self, ids)

    monkeypatch.setattr(Jobs, "progress", counted)

    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        handles = await jobs.enqueue_many([task.call() for _ in range(200)])
        seen = [[] for _ in handles]
        watching = [asyncio.create_task(watched(*pair)) for pair in zip(handles, seen, strict=True)]
        await eventually(lambda: all(seen), what="all have seen something")
        assert max(asked) == 200
        assert len(asked) <= 3
        async with jobs.worker(concurrency=50), asyncio.timeout(20):
            await asyncio.gather(*watching)
        assert {updates[-1].status for updates in seen} == {"completed"}
        asked.clear()
        await (await task.options(delay=3600).enqueue()).cancel()
        looking = jobs._openings.now.watch._looking
        await asyncio.wait([looking], timeout=10)
        assert looking.done()
        assert asked == []


async def test_who_leaves_early_is_forgotten(jobs):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        job = await task.enqueue()
        updates = job.progress()
        assert (await anext(updates)).status == "pending"
        await updates.aclose()
        assert jobs._openings.now.watch._watchers == {}


async def test_a_job_that_is_not_there_is_said(jobs, sql):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        with pytest.raises(JobNotFound):
            await anext(jobs.handle(uuid4()).progress())
        transaction = sql.transaction()
        await transaction.start()
        job = await task.options(connection=sql).enqueue()
        with pytest.raises(NotYetCommitted):
            await anext(job.progress())
        await transaction.commit()
        assert (await anext(job.progress())).status == "pending"
    with pytest.raises(AppNotOpen):
        await anext(job.progress())


async def test_a_job_that_leaves_no_trace_ends_the_watch(dsn):
    jobs = App(dsn, retention=0)

    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        job = await task.enqueue()
        seen = []
        watching = asyncio.create_task(watched(job, seen))
        await seen_so_far(seen, lambda update: update.status == "pending", "it is seen")
        async with jobs.worker(), asyncio.timeout(10):
            await watching

    assert seen[0].status == "pending"


async def test_closing_the_app_ends_the_watch(jobs):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        seen = []
        watching = asyncio.create_task(watched(await task.enqueue(), seen))
        await eventually(lambda: seen, what="it is seen")

    with pytest.raises(AppNotOpen):
        await asyncio.wait_for(watching, 10)


async def test_a_moment_without_a_database_is_waited_through(jobs, monkeypatch):
    tries, progress = itertools.count(1), Jobs.progress

    async def with_trouble(self, ids):
        if next(tries) in (2, 3):
            raise StoreUnavailable("look how far jobs are")
        return await progress(self, ids)

    monkeypatch.setattr(Jobs, "progress", with_trouble)

    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        seen = []
        watching = asyncio.create_task(watched(await task.enqueue(), seen))
        await eventually(lambda: seen, what="it is seen")
        await eventually(lambda: next(tries) > 3, what="there was trouble")
        async with jobs.worker(), asyncio.timeout(10):
            await watching

    assert seen[-1].status == "completed"


async def test_a_report_never_revives_or_changes_a_job_that_has_ended(jobs, sql):
    """Reports with the claim of the run race its end, again and again; whoever is first, the job stays ended."""
    racing, claims, stop = set(), {}, asyncio.Event()

    @jobs.task(name="t", max_attempts=1)
    async def task(how: str) -> str:
        run = current_job()
        claims[run.id] = run.job.claim_id
        racing.add(run.id)
        run.progress(50, stage="in time")
        if how == "failed":
            raise ValueError
        return "done"

    async def report():
        while not stop.is_set():
            for job_id in list(racing):
                await sql.fetch(REPORT, job_id, claims[job_id])
            await asyncio.sleep(0)

    async with jobs, jobs.worker():
        reporting = asyncio.create_task(report())
        handles = await jobs.enqueue_many([task.call(how) for _ in range(30) for how in ("completed", "failed")])
        ends = {}
        for job in handles:
            await eventually(lambda job=job: is_final(job), what="it has ended")
            ends[job.id] = await job.info()
        stop.set()
        await reporting
        for job_id in list(claims):
            assert await sql.fetch(REPORT, job_id, claims[job_id]) == []
        assert {job.id: await job.info() for job in handles} == ends

    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0
    assert sorted(info.status for info in ends.values()) == ["completed"] * 30 + ["failed"] * 30


async def is_final(job):
    return (await job.info()).status in ("completed", "failed", "cancelled")
