"""Shutdown: a worker told to stop claims nothing more, lets jobs finish for a while, and gives the rest back."""

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager

import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from proxy import Proxy
from support import eventually

from aiopgq import App, current_job
from aiopgq._store.jobs import Jobs
from aiopgq.errors import JobCancelled, StoreUnavailable

# On a busy machine; a stop that waits for a poll, a grace or a transaction takes far longer.
SOON = 5


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def statuses(sql):
    rows = await sql.fetch("SELECT status, attempts, count(*) AS jobs FROM aiopgq.all_jobs GROUP BY 1, 2")
    return {(row["status"], row["attempts"]): row["jobs"] for row in rows}


async def still_owned(sql):
    """Count the jobs of incarnations that are not retired: only a lapsed lease may give them to others."""
    return await sql.fetchval("""
        SELECT count(*) FROM aiopgq.jobs j JOIN aiopgq.workers w ON w.id = j.worker_id
        WHERE j.status <> 'pending' AND j.attempts = 1 AND w.dead_at IS NULL""")


@asynccontextmanager
async def at_work(worker):
    """A worker that runs as a program of its own, until it is told to stop in the block."""
    running = asyncio.create_task(worker.run())
    try:
        yield running
        async with asyncio.timeout(30):
            await running
    finally:
        running.cancel()


# what was claimed


async def test_jobs_that_have_not_started_are_left_in_line_untouched(jobs, journal, sql):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await may_end.wait()

    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(10)])
        worker = jobs.worker(concurrency=1)
        async with at_work(worker):
            await going.wait()
            worker.stop()
            may_end.set()

    assert len(journal.jobs) == 1
    assert await statuses(sql) == {("completed", 1): 1, ("pending", 0): 9}


async def test_a_claim_under_way_when_the_stop_comes_is_given_back(jobs, journal, sql, monkeypatch):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    worker = jobs.worker(concurrency=10)
    claim = Jobs.claim

    async def claim_while_stopping(self, *args):
        taken = await claim(self, *args)
        if taken:
            worker._stop(now=False)
        return taken

    monkeypatch.setattr(Jobs, "claim", claim_while_stopping)
    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(10)])
        async with at_work(worker):
            pass

    assert journal.jobs == []
    assert worker.left_behind == 0
    assert await statuses(sql) == {("pending", 0): 10}


async def test_a_claim_whose_answer_was_lost_is_given_back_at_the_stop(jobs, journal, sql, monkeypatch):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    worker = jobs.worker(concurrency=10)
    claim = Jobs.claim

    async def claim_and_lose_it(self, *args):
        if await claim(self, *args):
            worker._stop(now=False)
            raise StoreUnavailable("claim jobs")
        return []

    monkeypatch.setattr(Jobs, "claim", claim_and_lose_it)
    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(10)])
        async with at_work(worker):
            pass

    assert journal.jobs == []
    assert await statuses(sql) == {("pending", 0): 10}


async def test_nothing_starts_after_the_stop(jobs, journal, sql):
    worker = jobs.worker(concurrency=2)
    begun_after = []

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            if worker._stopping.is_set():
                begun_after.append(current_job().id)
            if len(journal.jobs) == 6:
                worker.stop()
            await asyncio.sleep(0.01)

    async with jobs:
        await jobs.enqueue_many([task.call() for _ in range(100)])
        async with at_work(worker):
            pass

    done = len(journal.jobs)
    assert done <= 8
    # One may have been created, not yet begun, when the stop was said.
    assert len(begun_after) <= 1
    assert await statuses(sql) == {("completed", 1): done, ("pending", 0): 100 - done}


# what runs


async def test_interruptions_spend_no_attempt(jobs, journal):
    going = asyncio.Event()

    @jobs.task(name="t", max_attempts=2)
    async def task() -> str:
        with journal.run() as run:
            going.set()
            if len(journal.jobs) <= 4:
                await asyncio.sleep(60)
            return f"attempt {run.attempt}"

    async with jobs:
        job = await task.enqueue()
        for _ in range(4):
            going.clear()
            async with jobs.worker(shutdown_grace=0):
                await going.wait()
        async with jobs.worker():
            assert await job.result(timeout=10) == "attempt 1"
        info = await job.info()

    assert len(journal.jobs) == 5
    assert (info.attempts, info.errors) == (1, [])


async def test_jobs_may_finish_within_the_grace_and_use_what_they_need(dsn, journal):
    going = asyncio.Event()
    closed = []

    @asynccontextmanager
    async def resources():
        yield "the pool"
        closed.append(len(journal.jobs))

    jobs = App(dsn, state=resources)

    @jobs.task(name="t")
    async def task() -> str:
        with journal.run():
            going.set()
            await asyncio.sleep(0.3)
            await later.enqueue()
            return jobs.state

    @jobs.task(name="later")
    async def later() -> None:
        with journal.run():
            pass

    async with jobs:
        async with jobs.worker(shutdown_grace=60):
            job = await task.enqueue()
            await going.wait()
        assert await job.result(timeout=0) == "the pool"
        assert [info.status for info in await jobs.inspector.jobs(task="later")] == ["pending"]

    assert closed == [1]


async def test_a_job_can_be_cancelled_while_the_worker_drains(jobs, journal):
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs:
        worker = jobs.worker(shutdown_grace=60)
        async with at_work(worker) as running:
            job = await task.enqueue()
            await going.wait()
            worker.stop()
            await eventually(worker._stopping.is_set)
            assert await job.cancel() == "requested"
            async with asyncio.timeout(SOON):
                await running
        with pytest.raises(JobCancelled):
            await job.result(timeout=0)


async def test_a_second_stop_skips_the_grace(jobs, journal, sql):
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs:
        worker = jobs.worker(shutdown_grace=300)
        async with at_work(worker) as running:
            await task.enqueue()
            await going.wait()
            worker.stop()
            worker.stop()
            await eventually(worker._stopping.is_set)
            assert not running.done()
            worker.stop(now=True)
            async with asyncio.timeout(SOON):
                await running

    assert await statuses(sql) == {("pending", 0): 1}


async def test_a_handler_that_ignores_its_cancellation_is_left_behind_and_said_so(jobs, sql, caplog):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        going.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    async with jobs:
        worker = jobs.worker(shutdown_grace=0.1)
        async with at_work(worker) as running:
            await task.enqueue()
            await going.wait()
            worker.stop()
            async with asyncio.timeout(SOON):
                await running
        may_end.set()

    assert worker.left_behind == 1
    assert "left behind: 1 job whose handlers ignored" in caplog.text
    assert await still_owned(sql) == 1


async def test_a_thread_is_asked_to_stop_and_may_say_how_it_ended(jobs, journal):
    going = threading.Event()

    @jobs.task(name="t")
    def task(gives_up: bool) -> str:
        with journal.run() as run:
            going.set()
            while not run.should_stop:
                threading.Event().wait(0.01)
            if gives_up:
                raise InterruptedError
            return run.stop_reason

    async with jobs:
        async with jobs.worker(shutdown_grace=0):
            completed, released = await task.enqueue(gives_up=False), await task.enqueue(gives_up=True)
            await eventually(lambda: len(journal.jobs) == 2)
        assert await completed.result(timeout=0) == "shutdown"
        info = await released.info()

    assert (info.status, info.attempts, info.errors) == ("pending", 0, [])


async def test_a_thread_that_ignores_the_shutdown_is_left_behind(jobs, sql):
    going, may_end = threading.Event(), threading.Event()

    @jobs.task(name="t")
    def task() -> None:
        going.set()
        may_end.wait(30)

    async with jobs:
        worker = jobs.worker(shutdown_grace=0)
        async with at_work(worker) as running:
            await task.enqueue()
            await eventually(going.is_set)
            worker.stop()
            async with asyncio.timeout(SOON):
                await running
        may_end.set()

    assert worker.left_behind == 1
    assert await still_owned(sql) == 1


async def test_outcomes_that_are_not_written_yet_are_written_before_the_end(dsn, journal, sql):
    async with Proxy(dsn) as proxy:
        jobs = App(proxy.dsn)

        @jobs.task(name="t")
        async def task() -> None:
            with journal.run():
                # From here on every answer takes its time.
                proxy.delay = 0.03

        async with jobs:
            await jobs.enqueue_many([task.call() for _ in range(5)])
            worker = jobs.worker()
            async with at_work(worker):
                await eventually(lambda: len(journal.jobs) == 5)
                worker.stop()

    assert worker.left_behind == 0
    assert await statuses(sql) == {("completed", 1): 5}


async def test_outcomes_that_cannot_be_written_bound_the_stop_and_are_counted(dsn, journal, sql, monkeypatch):
    monkeypatch.setattr("aiopgq.workshop._LAST_SETTLEMENTS", 0.5)
    may_end = asyncio.Event()
    async with Proxy(dsn) as proxy:
        jobs = App(proxy.dsn)

        @jobs.task(name="t")
        async def task() -> None:
            with journal.run():
                await may_end.wait()

        async with jobs:
            worker = jobs.worker()
            async with at_work(worker) as running:
                await task.enqueue()
                await eventually(lambda: journal.jobs)
                proxy.refusing = True
                proxy.cut()
                may_end.set()
                worker.stop()
                async with asyncio.timeout(SOON):
                    await running

    assert worker.left_behind == 1
    assert await still_owned(sql) == 1


# when nothing runs


async def test_an_idle_worker_stops_at_once_and_leaves_nothing(jobs, sql):
    @jobs.task(name="t")
    async def task() -> None: ...

    worker = jobs.worker(poll_interval=120)
    async with at_work(worker) as running:
        await eventually(lambda: worker._incarnation and worker._incarnation.sleeper.asleep, within=30)
        worker.stop()
        async with asyncio.timeout(SOON):
            await running

    assert worker.left_behind == 0
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.workers WHERE dead_at IS NOT NULL") == 1


async def test_a_worker_stops_at_once_while_an_old_transaction_keeps_it_from_sleeping(jobs, sql):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with sql.transaction():
        await sql.fetchval("SELECT pg_current_xact_id()::text")
        worker = jobs.worker(poll_interval=120)
        async with at_work(worker) as running:
            await eventually(lambda: worker._incarnation and worker._incarnation.sleeper._flags != [0])
            worker.stop()
            async with asyncio.timeout(SOON):
                await running


async def test_a_worker_stops_at_once_while_it_waits_for_its_database(dsn):
    async with Proxy(dsn) as proxy:
        jobs = App(proxy.dsn)

        @jobs.task(name="t")
        async def task() -> str:
            return "done"

        worker = jobs.worker(poll_interval=120)
        async with jobs, at_work(worker) as running:
            assert await (await task.enqueue()).result(timeout=10) == "done"
            # The caller may know before the worker does; an outcome cut off on its way would be written again first.
            await eventually(lambda: not worker.health().unsettled)
            proxy.refusing = True
            proxy.cut()
            # Deaf, it looks every second, in vain.
            await eventually(lambda: worker._incarnation.sleeper.deaf)
            worker.stop()
            async with asyncio.timeout(SOON):
                await running


async def test_a_worker_stops_at_once_that_has_never_reached_its_database(dsn):
    async with Proxy(dsn) as proxy:
        proxy.refusing = True
        jobs = App(proxy.dsn)

        @jobs.task(name="t")
        async def task() -> None: ...

        worker = jobs.worker()
        async with at_work(worker) as running:
            await asyncio.wait([running], timeout=0.5)
            assert not running.done()
            worker.stop()
            async with asyncio.timeout(SOON):
                await running


async def test_a_stop_before_the_start_is_remembered(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        await task.enqueue()
        for _ in range(2):
            worker = jobs.worker()
            worker.stop()
            async with asyncio.timeout(SOON):
                await worker.run()
        entered = jobs.worker()
        entered.stop()
        async with entered:
            pass

    assert journal.jobs == []
    assert await statuses(sql) == {("pending", 0): 1}


# from elsewhere


async def test_a_worker_is_stopped_from_another_thread(jobs):
    @jobs.task(name="t")
    async def task() -> None: ...

    worker = jobs.worker(poll_interval=120)
    async with at_work(worker) as running:
        await eventually(lambda: worker._incarnation and worker._incarnation.sleeper.asleep, within=30)
        thread = threading.Thread(target=worker.stop)
        thread.start()
        async with asyncio.timeout(SOON):
            await running
        thread.join()


async def test_a_worker_works_in_a_thread_that_is_not_the_main_one(dsn, jobs, journal):
    apart = App(dsn)

    @apart.task(name="t")
    async def work() -> None:
        with journal.run():
            pass

    @jobs.task(name="t")
    async def task() -> None: ...

    worker = apart.worker(poll_interval=120)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        async with jobs:
            for _ in range(3):
                await (await task.enqueue()).result(timeout=10)
    finally:
        worker.stop()
        await asyncio.to_thread(thread.join, SOON)

    assert not thread.is_alive()
    assert len(journal.jobs) == 3


# when the program around it is cancelled


async def test_a_start_that_is_cancelled_leaves_no_worker_running(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        await task.enqueue()
        worker = jobs.worker()
        starting = asyncio.create_task(worker.__aenter__())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]

    assert "Worker._work" not in names
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.workers WHERE dead_at IS NULL") == 0


async def test_a_program_cancelled_again_and_again_still_gives_its_jobs_back(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    async def program():
        async with jobs.worker(shutdown_grace=60):
            await asyncio.Event().wait()

    async with jobs:
        running = asyncio.create_task(program())
        await task.enqueue()
        await eventually(lambda: journal.jobs)
        running.cancel()
        await asyncio.sleep(0)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(SOON):
                await running

    assert await statuses(sql) == {("pending", 0): 1}
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.workers WHERE dead_at IS NULL") == 0


async def test_a_worker_that_dies_of_a_bug_lets_its_jobs_finish_and_says_so(jobs, journal, sql, caplog, monkeypatch):
    may_end = asyncio.Event()
    claim = Jobs.claim

    async def broken(self, *args):
        if journal.jobs:
            raise ZeroDivisionError("a bug")
        return await claim(self, *args)

    monkeypatch.setattr(Jobs, "claim", broken)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await may_end.wait()

    async with jobs:
        await task.enqueue()
        running = asyncio.create_task(jobs.worker(shutdown_grace=60).run())
        await eventually(lambda: journal.jobs)
        await task.enqueue()
        may_end.set()
        with pytest.raises(ExceptionGroup) as caught:
            await running

    assert caught.group_contains(ZeroDivisionError)
    assert "the worker has died" in caplog.text
    assert await statuses(sql) == {("completed", 1): 1, ("pending", 0): 1}


async def test_a_burst_with_many_slots_ends_when_its_jobs_have(jobs):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs, asyncio.timeout(60):
        for _ in range(3):
            await jobs.enqueue_many(task.call() for _ in range(3000))
            await jobs.worker(concurrency=1000, burst=True, poll_interval=300, job_log=False).run()
