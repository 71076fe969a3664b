"""Progress: what a long run reports is seen while it runs, and a short run costs no write in between."""

import asyncio
import itertools
import threading
from uuid import uuid4

import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from proxy import Proxy
from support import eventually

from aiopgq import App, current_job
from aiopgq._store.jobs import Jobs
from aiopgq.errors import JobCancelled, JobFailed, StoreUnavailable

STEAL = "UPDATE aiopgq.jobs SET claim_id = $2, progress = 1, current_stage = 'of another' WHERE id = $1"
GIVE_BACK = """
    UPDATE aiopgq.jobs SET status = 'pending', claim_id = NULL, worker_id = NULL, claimed_at = NULL,
        started_at = NULL, progress = NULL, current_stage = NULL, attempts = 0, place = nextval('aiopgq.places')"""


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def info_when(handle, condition, what):
    """Return what there is to know about a job as soon as a condition holds for it."""

    async def looked_up():
        info = await handle.info()
        return info if condition(info) else None

    return await eventually(looked_up, what=what)


async def test_progress_is_seen_while_the_job_runs_and_after(jobs):
    go_on = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        run = current_job()
        run.progress(10, stage="reading")
        run.progress(50, stage="writing")
        await go_on.wait()
        run.progress(99.5)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        seen = await info_when(job, lambda info: info.progress, what="the progress is written")
        assert (seen.status, seen.progress, seen.current_stage, seen.events_count) == ("running", 50, "writing", 2)
        assert seen.claimed_at <= seen.started_at
        go_on.set()
        await job.result(timeout=10)
        info = await job.info()

    assert (info.status, info.progress, info.current_stage, info.events_count) == ("completed", 99.5, "writing", 3)
    assert info.started_at == seen.started_at


async def test_a_short_job_is_never_marked(jobs):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs, jobs.worker():
        handles = await jobs.enqueue_many([task.call() for _ in range(50)])
        for job in handles:
            await job.result(timeout=10)
        infos = [await job.info() for job in handles]

    assert {(info.started_at, info.progress, info.events_count) for info in infos} == {(None, None, 0)}
    assert all(info.created_at <= info.claimed_at <= info.finished_at for info in infos)


async def test_a_long_job_is_marked_running_since_it_began(jobs):
    go_on = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        await go_on.wait()

    async with jobs, jobs.worker():
        job = await task.enqueue()
        claimed = await info_when(job, lambda info: info.status != "pending", what="it is claimed")
        running = await info_when(job, lambda info: info.status == "running", what="it is marked")
        go_on.set()
        await job.result(timeout=10)
        info = await job.info()

    assert (claimed.status, claimed.started_at) == ("claimed", None)
    # The run began with the claim; the mark came a second later.
    assert (running.started_at - running.claimed_at).total_seconds() < 0.9
    assert info.started_at == running.started_at
    assert (info.finished_at - info.started_at).total_seconds() > 1


async def test_a_thread_reports_as_well(jobs):
    @jobs.task(name="t")
    def task() -> None:
        for percent in range(101):
            current_job().progress(percent, stage=f"step {percent}")
            threading.Event().wait(0.002)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=10)
        info = await job.info()

    assert (info.progress, info.current_stage) == (100, "step 100")
    assert info.events_count > 0


async def test_the_next_run_of_a_job_begins_without_the_progress_of_the_last(jobs):
    @jobs.task(name="t", max_attempts=2, backoff=lambda _: 0)
    async def task() -> None:
        run = current_job()
        if run.attempt == 1:
            run.progress(70, stage="almost there")
            raise ValueError

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=10)
        info = await job.info()

    assert (info.progress, info.current_stage) == (None, None)


async def test_a_stage_that_cannot_be_stored_is_stored_as_far_as_it_can(jobs):
    @jobs.task(name="t")
    async def task() -> None:
        current_job().progress(1, stage="a\x00b\ud800" + "c" * 10_000)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=10)
        stage = (await job.info()).current_stage

    assert stage.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}ccc")
    assert len(stage) < 300


async def test_a_percentage_that_is_none_is_refused_where_it_is_reported(jobs):
    wrong = [-1, 100.001, float("nan"), float("inf"), True, "50", None]

    @jobs.task(name="t", max_attempts=1)
    async def task(n: int) -> None:
        current_job().progress(wrong[n])

    async with jobs, jobs.worker():
        for n, value in enumerate(wrong):
            job = await task.enqueue(n)
            with pytest.raises(JobFailed) as caught:
                await job.result(timeout=10)
            assert f"takes 0 to 100, not {value!r}" in caught.value.last_error


async def test_a_report_survives_the_loss_of_its_connection(jobs, monkeypatch):
    go_on, may_end = asyncio.Event(), asyncio.Event()
    tries, mark = itertools.count(1), Jobs.mark

    async def mark_with_trouble(self, marks):
        if next(tries) in (2, 3):
            raise StoreUnavailable("mark running jobs")
        return await mark(self, marks)

    monkeypatch.setattr(Jobs, "mark", mark_with_trouble)

    @jobs.task(name="t")
    async def task() -> None:
        current_job().progress(10)
        await go_on.wait()
        current_job().progress(25, stage="a quarter")
        current_job().progress(50, stage="half")
        await may_end.wait()

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await info_when(job, lambda info: info.progress == 10, what="the first report is written")
        go_on.set()
        seen = await info_when(job, lambda info: info.progress == 50, what="the others are written after all")
        may_end.set()
        await job.result(timeout=10)

    assert (seen.current_stage, seen.events_count) == ("half", 3)
    assert next(tries) > 4


async def test_a_run_that_has_lost_its_job_writes_nothing_more_and_says_so(jobs, journal, sql, caplog):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @jobs.task(name="lost")
    async def lost() -> str:
        with journal.run() as run:
            if begun.is_set():
                return "run again"
            begun.set()
            while not go_on.is_set():
                run.progress(99, stage="of the loser")
                await asyncio.sleep(0.05)
            return "of the loser"

    @jobs.task(name="other")
    async def other() -> None:
        current_job().progress(5)
        await go_on.wait()

    async with jobs, jobs.worker():
        job = await lost.enqueue()
        await begun.wait()
        await sql.execute(STEAL, job.id, uuid4())
        # A tick that marks this one would have marked the lost one as well.
        await info_when(await other.enqueue(), lambda info: info.progress, what="a tick has passed")
        seen = await job.info()
        go_on.set()
        await eventually(lambda: f"job {job.id} is no longer ours" in caplog.text)
        left = await job.info()
        assert (left.status, left.result, left.progress) == (seen.status, None, 1)
        await sql.execute(GIVE_BACK)
        await (await other.enqueue()).result(timeout=10)
        assert await job.result(timeout=10) == "run again"

    assert (seen.progress, seen.current_stage) == (1, "of another")


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "retry"])
async def test_no_outcome_of_a_run_that_has_lost_its_job_is_written(jobs, journal, sql, caplog, ending):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t", max_attempts=1 if ending == "failed" else 12)
    async def task() -> str:
        with journal.run():
            if begun.is_set():
                return "run again"
            begun.set()
            await go_on.wait()
            if ending == "completed":
                return "of the loser"
            raise ValueError("of the loser")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await begun.wait()
        if ending == "cancelled":
            await job.cancel()
        await sql.execute(STEAL, job.id, uuid4())
        go_on.set()
        await eventually(lambda: f"job {job.id} is no longer ours" in caplog.text)
        info = await job.info()
        assert (info.attempts, info.result, info.last_error, info.errors) == (1, None, None, [])
        assert info.status in ("claimed", "running")
        await sql.execute(GIVE_BACK + ", cancel_requested = false")
        await task.enqueue()
        assert await job.result(timeout=10) == "run again"


async def test_a_mark_brings_a_cancel_request_that_nobody_heard(dsn, monkeypatch):
    monkeypatch.setattr("aiopgq.app._BEAT_INTERVAL", 300)
    async with Proxy(dsn) as proxy:
        proxy.refusing = True
        jobs = App(dsn, listen_dsn=proxy.dsn)
        going = asyncio.Event()

        @jobs.task(name="t")
        async def task() -> None:
            going.set()
            while True:
                current_job().progress(1)
                await asyncio.sleep(0.05)

        async with jobs, jobs.worker():
            job = await task.enqueue()
            await going.wait()
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result(timeout=10)


async def hear_nothing(*_):
    await asyncio.Event().wait()


async def test_a_beat_brings_a_cancel_request_that_nobody_heard(dsn, monkeypatch):
    monkeypatch.setattr("aiopgq.app._BEAT_INTERVAL", 0.2)
    monkeypatch.setattr("aiopgq._flow.report._TICK", 300)
    monkeypatch.setattr("aiopgq.incarnation.keep_listening", hear_nothing)
    jobs = App(dsn)
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        going.set()
        await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)
