"""Handles: from an id alone any process looks at a job, waits for it, cancels it."""

import asyncio
from uuid import uuid4

import pytest
from proxy import Proxy
from support import eventually

from aiopgq import App, Cancel, Retry
from aiopgq._flow import results as flow
from aiopgq._words.clock import uuid7
from aiopgq.errors import (
    AppNotOpen,
    ConfigError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultNotKept,
    ResultTimeout,
    StoreUnavailable,
)


def app_on(dsn, **settings):
    jobs = App(dsn, **settings)
    jobs.go = asyncio.Event()

    @jobs.task(name="greet")
    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    @jobs.task(name="nothing")
    async def nothing() -> None: ...

    @jobs.task(name="fail", max_attempts=2, backoff=lambda _: 0)
    async def fail() -> None:
        raise ValueError("no luck")

    @jobs.task(name="give_up")
    async def give_up() -> str | Cancel:
        return Cancel("not needed")

    @jobs.task(name="patient")
    async def patient() -> str | Retry:
        await jobs.go.wait()
        return "at last"

    @jobs.task(name="large")
    async def large(size: int) -> str:
        return "x" * size

    return jobs


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def jobs(dsn):
    async with app_on(dsn) as jobs:
        yield jobs


@pytest.fixture
async def worked(jobs):
    """The App with a worker beside it."""
    async with jobs.worker():
        yield jobs


@pytest.fixture
def blind(monkeypatch):
    """Waiters look at the table once, and again only when they are told to."""
    monkeypatch.setattr(flow, "_FIRST_LOOK", 3600.0)
    monkeypatch.setattr(flow, "_LONGEST_LOOK", 3600.0)


async def listeners(sql):
    return await sql.fetchval(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'aiopgq listen'"
    )


async def wait_until_waiters_listen(sql):
    async def announced():
        waiting = await sql.fetchval("SELECT pg_sequence_last_value('aiopgq.waiters') > aiopgq.milliseconds(now())")
        return waiting and await listeners(sql)

    await eventually(announced, what="a waiter is registered and listens")


# Looking.


async def test_info_tells_the_life_of_a_job(worked):
    greet = worked.task_named("greet")
    waits = await greet.options(
        queue="elsewhere", priority=7, delay=60, max_attempts=3, headers={"trace": "t"}
    ).enqueue("a")
    info = await waits.info()
    assert (info.id, info.queue, info.task, info.status) == (waits.id, "elsewhere", "greet", "pending")
    assert (info.priority, info.attempts, info.max_attempts) == (7, 0, 3)
    assert (info.args, info.headers) == ({"name": "a"}, {"trace": "t"})
    assert (info.claimed_at, info.finished_at, info.result, info.last_error, info.errors) == (
        None,
        None,
        None,
        None,
        [],
    )

    done = await greet.enqueue("b")
    await done.result(timeout=30)
    info = await done.info()
    assert (info.status, info.attempts, info.result) == ("completed", 1, "hello b")
    assert info.created_at <= info.claimed_at <= info.finished_at

    dead = await worked.task_named("fail").enqueue()
    with pytest.raises(JobFailed):
        await dead.result(timeout=30)
    info = await dead.info()
    assert (info.status, info.attempts, info.last_error) == ("failed", 2, "ValueError: no luck")
    assert [entry["attempt"] for entry in info.errors] == [1, 2]


async def test_what_was_never_enqueued_is_not_found(jobs):
    nobody = jobs.handle(uuid4())
    for look in (nobody.info(), nobody.result(timeout=1), nobody.result(timeout=None), nobody.cancel()):
        with pytest.raises(JobNotFound, match="never committed, or done and past its retention") as told:
            await look
        assert isinstance(told.value, LookupError)
        assert told.value.job_id == nobody.id


async def test_an_id_is_a_uuid(jobs):
    for make in (jobs.handle, jobs.task_named("greet").handle):
        for wrong in (str(uuid4()), "nonsense", 1, None):
            with pytest.raises(ConfigError, match=rf"takes a uuid\.UUID, not {type(wrong).__name__}"):
                make(wrong)


async def test_a_handle_on_a_closed_app_says_so(dsn):
    async with app_on(dsn) as jobs:
        job = await jobs.task_named("greet").enqueue()
    for look in (job.info(), job.result(), job.cancel()):
        with pytest.raises(AppNotOpen):
            await look


# Waiting.


async def test_a_result_is_what_the_task_returned(worked):
    assert await (await worked.task_named("greet").enqueue("x")).result() == "hello x"
    assert await (await worked.task_named("nothing").enqueue()).result() is None


async def test_a_result_can_be_had_again_and_again_and_by_any_process(dsn, worked):
    job = await worked.task_named("greet").enqueue("x")
    async with app_on(dsn) as elsewhere:
        assert await elsewhere.task_named("greet").handle(job.id).result(timeout=30) == "hello x"
        assert await elsewhere.handle(job.id).result(timeout=None) == "hello x"
        assert await job.result(timeout=0) == "hello x"
        assert elsewhere.handle(job.id).existing is False


async def test_a_failed_job_tells_the_errors_of_all_attempts(worked):
    job = await worked.task_named("fail").enqueue()
    with pytest.raises(JobFailed, match=r"ValueError: no luck.*dead replay") as told:
        await job.result(timeout=30)
    assert told.value.job_id == job.id
    assert [entry["attempt"] for entry in told.value.errors] == [1, 2]
    assert all("no luck" in entry["error"] and "Traceback" in entry["traceback"] for entry in told.value.errors)


async def test_a_cancelled_job_tells_why(worked):
    with pytest.raises(JobCancelled, match="not needed"):
        await (await worked.task_named("give_up").enqueue()).result(timeout=30)


async def test_a_result_that_takes_too_long_is_a_timeout_and_the_job_goes_on(worked):
    job = await worked.task_named("patient").enqueue()
    await eventually(lambda: _status_is(job, "claimed", "running"), what="the job runs")
    with pytest.raises(ResultTimeout, match=r"(claimed|running) after 0\.05 s") as told:
        await job.result(timeout=0.05)
    assert isinstance(told.value, TimeoutError)
    assert (told.value.job_id, told.value.timeout) == (job.id, 0.05)
    worked.go.set()
    assert await job.result(timeout=30) == "at last"


async def test_cancelling_the_wait_does_not_touch_the_job(worked):
    job = await worked.task_named("patient").enqueue()
    waiting = asyncio.create_task(job.result(timeout=None))
    await eventually(lambda: _status_is(job, "claimed", "running"), what="the job runs")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    worked.go.set()
    assert await job.result(timeout=30) == "at last"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1"])
async def test_a_timeout_that_is_none_is_refused(jobs, seconds):
    with pytest.raises(ConfigError, match="result"):
        await jobs.handle(uuid7()).result(timeout=seconds)


async def _status_is(job, *statuses):
    return (await job.info()).status in statuses


# Being told.


@pytest.mark.parametrize("task", ["greet", "fail", "give_up"])
async def test_a_waiter_is_woken_by_the_notification_not_by_its_look_at_the_table(dsn, jobs, sql, blind, task):
    job = await jobs.task_named(task).enqueue()
    waiting = asyncio.create_task(job.result(timeout=None))
    await wait_until_waiters_listen(sql)
    async with app_on(dsn) as elsewhere, elsewhere.worker(), asyncio.timeout(30):
        await asyncio.wait([waiting])
    assert isinstance(waiting.exception(), (JobFailed, JobCancelled)) or waiting.result() == "hello you"


async def test_cancelling_a_pending_job_wakes_its_waiters(jobs, sql, blind):
    job = await jobs.task_named("greet").options(delay=3600).enqueue()
    waiting = asyncio.create_task(job.result(timeout=None))
    await wait_until_waiters_listen(sql)
    assert await job.cancel() == "cancelled"
    async with asyncio.timeout(30):
        with pytest.raises(JobCancelled):
            await waiting


async def test_a_thousand_waiters_share_a_listener_and_are_all_told(dsn, jobs, sql, blind):
    greet = jobs.task_named("greet")
    handles = await jobs.enqueue_many([greet.call(str(number)) for number in range(500)])
    waiting = [asyncio.create_task(job.result(timeout=None)) for job in (*handles, *handles)]
    await wait_until_waiters_listen(sql)
    assert await listeners(sql) == 1
    async with app_on(dsn) as elsewhere, elsewhere.worker(concurrency=100), asyncio.timeout(60):
        results = await asyncio.gather(*waiting)
    assert results == [f"hello {number}" for number in range(500)] * 2


async def test_a_worker_notifies_nobody_while_nobody_waits(dsn, jobs, sql):
    told = []
    await sql.add_listener("aiopgq:done", lambda *notification: told.append(notification[-1]))
    async with app_on(dsn) as elsewhere, elsewhere.worker():
        silent = await jobs.task_named("greet").enqueue("silent")
        await eventually(lambda: _status_is(silent, "completed"), what="the job is done")
        job = await jobs.task_named("patient").enqueue()
        waiting = asyncio.create_task(job.result(timeout=30))
        await wait_until_waiters_listen(sql)
        elsewhere.go.set()
        assert await waiting == "at last"
        await eventually(lambda: told, what="the second one is announced")
    assert told == [str(job.id)]


async def test_a_job_that_was_done_before_anybody_waited_is_answered_at_once(worked, blind):
    job = await worked.task_named("greet").enqueue("x")
    await eventually(lambda: _status_is(job, "completed"), what="the job is done")
    async with asyncio.timeout(30):
        assert await job.result(timeout=None) == "hello x"


async def test_what_was_announced_while_the_listener_was_away_is_found_when_it_is_back(dsn, sql, blind):
    async with Proxy(dsn) as proxy, app_on(dsn, listen_dsn=proxy.dsn) as jobs:
        job = await jobs.task_named("greet").enqueue()
        waiting = asyncio.create_task(job.result(timeout=None))
        await wait_until_waiters_listen(sql)
        proxy.refusing = True
        proxy.cut()
        async with app_on(dsn) as elsewhere:
            await elsewhere.worker(burst=True).run()
        assert not waiting.done()
        proxy.refusing = False
        async with asyncio.timeout(30):
            assert await waiting == "hello you"


async def test_without_a_listener_the_table_is_looked_at_all_the_same(dsn):
    async with Proxy(dsn) as proxy, app_on(dsn, listen_dsn=proxy.dsn) as jobs:
        proxy.refusing = True
        async with jobs.worker(poll_interval=0.1):
            assert await (await jobs.task_named("greet").enqueue()).result(timeout=30) == "hello you"


async def test_the_listener_is_closed_when_idle_and_comes_back_when_needed(jobs, sql, monkeypatch):
    monkeypatch.setattr(flow, "_IDLE", 0.1)
    job = await jobs.task_named("greet").options(delay=3600).enqueue()

    async def gone():
        return await listeners(sql) == 0

    for _ in range(2):
        waiting = asyncio.create_task(job.result(timeout=None))
        await wait_until_waiters_listen(sql)
        waiting.cancel()
        await eventually(gone, what="the idle listener is closed")


async def test_an_app_that_waits_for_nothing_has_no_listener(jobs, sql):
    job = await jobs.task_named("greet").enqueue()
    await job.info()
    assert await listeners(sql) == 0


async def test_closing_the_app_sends_its_waiters_away_and_leaves_no_connection(dsn, sql):
    async with app_on(dsn) as jobs:
        job = await jobs.task_named("greet").enqueue()
        waiting = asyncio.create_task(job.result(timeout=None))
        await wait_until_waiters_listen(sql)
    with pytest.raises(AppNotOpen):
        await waiting

    async def nobody():
        return not await sql.fetch(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'aiopgq%'"
        )

    await eventually(nobody, what="all connections are closed")


async def test_a_waiter_survives_a_restart_of_postgresql(dsn):
    async with Proxy(dsn) as proxy, app_on(proxy.dsn) as jobs:
        job = await jobs.task_named("greet").enqueue()
        waiting = asyncio.create_task(job.result(timeout=None))
        await eventually(lambda: proxy.accepted >= 3, what="the waiter looks")
        for _ in range(3):
            proxy.refusing = True
            proxy.cut()
            before = proxy.turned_away
            await eventually(lambda before=before: proxy.turned_away > before, what="the waiter looks in vain")
            proxy.refusing = False
        async with app_on(dsn) as elsewhere, elsewhere.worker():
            async with asyncio.timeout(30):
                assert await waiting == "hello you"


async def test_a_waiter_is_told_when_postgresql_stays_away(dsn, monkeypatch):
    monkeypatch.setattr(flow, "_SILENCE", 1.0)
    async with Proxy(dsn) as proxy, app_on(proxy.dsn) as jobs, asyncio.timeout(60):
        job = await jobs.task_named("greet").enqueue()
        waiting = asyncio.create_task(job.result(timeout=None))
        await eventually(lambda: proxy.accepted >= 3, what="the waiter looks")
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable):
            await job.result(timeout=0.1)


async def test_silence_ends_a_wait_as_well(dsn, monkeypatch):
    monkeypatch.setattr(flow, "_SILENCE", 0.5)
    async with Proxy(dsn) as proxy, app_on(proxy.dsn) as jobs, asyncio.timeout(20):
        job = await jobs.task_named("greet").enqueue()
        await job.info()
        proxy.black_hole = True
        with pytest.raises(StoreUnavailable):
            await job.result(timeout=0.1)
        proxy.black_hole = False


# Cancelling.


async def test_a_pending_job_is_cancelled_at_once(jobs, sql):
    for greet in (jobs.task_named("greet"), jobs.task_named("greet").options(delay=3600)):
        job = await greet.enqueue()
        assert await job.cancel() == "cancelled"
        assert await _status_is(job, "cancelled")
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        assert await job.cancel() == "finished"
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0


async def test_a_running_job_is_cancelled_by_asking_its_worker(worked):
    job = await worked.task_named("patient").enqueue()
    await eventually(lambda: _status_is(job, "claimed", "running"), what="the job runs")
    assert await job.cancel() == "requested"
    with pytest.raises(JobCancelled, match="while it ran"):
        await job.result(timeout=30)


@pytest.mark.parametrize("task", ["greet", "fail"])
async def test_a_finished_job_stays_as_it_is(worked, task):
    job = await worked.task_named(task).enqueue()
    await eventually(lambda: _status_is(job, "completed", "failed"), what="the job is done")
    before = await job.info()
    assert await job.cancel() == "finished"
    assert await job.info() == before


# What is kept.


async def test_a_result_beyond_the_limit_fails_the_job_with_a_hint(worked):
    large = worked.task_named("large")
    job = await large.enqueue(1024 * 1024)
    with pytest.raises(JobFailed, match=r"1,048,578 bytes of JSON, the limit is 1,048,576.*return a reference"):
        await job.result(timeout=30)
    assert (await job.info()).attempts == 1
    assert await (await large.enqueue(1024 * 1024 - 2)).result(timeout=30) == "x" * (1024 * 1024 - 2)


async def test_the_limit_on_results_can_be_raised(dsn):
    async with app_on(dsn, max_result_bytes=3 * 1024 * 1024) as jobs, jobs.worker():
        job = await jobs.task_named("large").enqueue(2 * 1024 * 1024)
        assert len(await job.result(timeout=30)) == 2 * 1024 * 1024


async def test_without_retention_a_finished_job_has_no_result_to_give(dsn, sql):
    async with app_on(dsn, retention=0) as jobs, jobs.worker():
        job = await jobs.task_named("greet").enqueue()
        with pytest.raises(ResultNotKept, match="retention"):
            await job.result(timeout=30)
        assert await sql.fetchval("SELECT count(*) FROM aiopgq.all_jobs") == 0
        dead = await jobs.task_named("fail").enqueue()
        with pytest.raises(JobFailed):
            await dead.result(timeout=30)


async def test_a_handle_shows_its_id(jobs):
    job = await jobs.task_named("greet").enqueue()
    assert repr(job) == f"JobHandle('{job.id}')"
