"""Lifecycle events: told once their outcome is committed, in order, and never at a job's cost."""

import asyncio
import logging

import pytest
from support import eventually

from aiopgq import App, Cancel, Fail, Retry, Snooze, current_job
from aiopgq._flow import tell
from aiopgq._words.event import EVENTS
from aiopgq.errors import ConfigError, JobFailed

GONE = "UPDATE aiopgq.jobs SET claim_id = gen_random_uuid() WHERE id = $1"


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def events(jobs):
    """All that is told."""
    events = []
    jobs.on(*EVENTS)(events.append)
    return events


def kinds(events):
    return [event.kind for event in events]


async def told(events, *expected):
    await eventually(lambda: len(events) >= len(expected), what=f"{expected} are told")
    assert kinds(events) == list(expected)


async def test_every_end_of_a_run_is_told_after_its_start(jobs, events):
    @jobs.task(name="t", queue="q", max_attempts=5)
    async def task(how: str) -> str | Retry | Snooze | Cancel | Fail:
        if how == "broken":
            raise ValueError("broken")
        return {
            "retry": Retry(after=3600),
            "snooze": Snooze(7200),
            "cancel": Cancel("unwanted"),
            "fail": Fail("nonsense"),
        }.get(how, "fine")

    seen = {}
    async with jobs, jobs.worker():
        for how in ("fine", "retry", "broken", "snooze", "cancel", "fail"):
            events.clear()
            job = await task.options(headers={"how": how}).enqueue(how)
            await eventually(lambda: len(events) == 2, what=f"two events of {how}")
            [begun, seen[how]] = events
            assert (begun.kind, begun.job_id, begun.seconds, begun.delay) == ("started", job.id, None, None)
            # What is told has happened.
            status = (await job.info()).status
            assert {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}.get(
                seen[how].kind, "pending"
            ) == status

    assert {how: event.kind for how, event in seen.items()} == {
        "fine": "completed",
        "retry": "retried",
        "broken": "retried",
        "snooze": "postponed",
        "cancel": "cancelled",
        "fail": "failed",
    }
    assert {how: event.reason for how, event in seen.items()} == {
        "fine": None,
        "retry": "Retry",
        "broken": "ValueError: broken",
        "snooze": None,
        "cancel": "unwanted",
        "fail": "nonsense",
    }
    assert (seen["retry"].delay, seen["snooze"].delay, seen["fine"].delay) == (3600, 7200, None)
    assert 0.8 <= seen["broken"].delay <= 1.2
    one = seen["fine"]
    assert (one.task, one.queue, one.attempt, one.max_attempts, one.headers) == ("t", "q", 1, 5, {"how": "fine"})
    assert all(0 <= event.seconds < 30 for event in seen.values())


async def test_a_job_that_settles_in_its_own_transaction_is_told(jobs, events):
    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await current_job().connection.execute("SELECT 1")

    async with jobs, jobs.worker():
        await (await task.enqueue()).result(timeout=10)
        await told(events, "started", "completed")


async def test_an_outcome_that_was_dropped_is_not_told(jobs, events, sql, caplog):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        begun.set()
        await go_on.wait()

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await begun.wait()
        await sql.execute(GONE, job.id)
        go_on.set()
        await eventually(lambda: "is no longer ours" in caplog.text)

    assert kinds(events) == ["started"]


async def test_what_runs_at_the_end_is_told_before_the_worker_has_stopped(jobs, events):
    begun = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        begun.set()
        await asyncio.sleep(60)

    slow = []

    @jobs.on("postponed")
    async def take_time(event) -> None:
        # Longer than a worker takes to leave.
        for _ in range(50):
            await jobs.inspector.counts()
        slow.append(event)

    async with jobs:
        async with jobs.worker(shutdown_grace=0):
            await task.enqueue()
            await begun.wait()
        assert kinds(events) == ["started", "postponed"]
        assert kinds(slow) == ["postponed"]


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_an_error_of_a_handler_is_logged_and_disturbs_nobody(jobs, caplog, error, kind):
    async def fail(event) -> None:
        raise error

    def fail_at_once(event) -> None:
        raise error

    seen = []
    jobs.on("started", "completed")(fail if kind == "async" else fail_at_once)
    jobs.on("completed")(seen.append)

    @jobs.task(name="t")
    async def task(n: int) -> int:
        return n

    async with jobs, jobs.worker():
        for n in range(3):
            assert await (await task.enqueue(n)).result(timeout=10) == n
        await eventually(lambda: len(seen) == 3, what="the other handler hears everything")

    said = [record for record in caplog.records if record.name == "aiopgq.events"]
    assert len(said) == 6
    assert said[0].levelno == logging.ERROR
    assert "a handler of the event 'started' of job " in said[0].getMessage()
    assert said[0].exc_info[1] is not None


async def test_a_handler_that_hangs_is_given_up_and_others_are_told(jobs, events, monkeypatch, caplog):
    monkeypatch.setattr(tell, "_LONGEST", 0.1)
    held = asyncio.Event()

    @jobs.on("started")
    async def hang(event) -> None:
        await held.wait()

    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    async with jobs, jobs.worker():
        assert await (await task.enqueue()).result(timeout=10) == "done"
        await told(events, "started", "completed")

    assert "TimeoutError" in caplog.text


async def test_events_that_nobody_takes_in_time_are_dropped_and_said(jobs, monkeypatch, caplog):
    monkeypatch.setattr(tell, "_MOST_WAITING", 3)
    seen, go_on = [], asyncio.Event()

    @jobs.on("completed")
    async def wait(event) -> None:
        seen.append(event)
        await go_on.wait()

    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs, jobs.worker():
        handles = await jobs.enqueue_many([task.call() for _ in range(50)])
        for job in handles:
            await job.result(timeout=10)
        await eventually(lambda: "events are dropped: 3 wait" in caplog.text)
        go_on.set()

    assert 0 < len(seen) < 10
    assert caplog.text.count("events are dropped") == 1


async def test_handlers_may_enqueue(jobs):
    @jobs.task(name="clean_up")
    async def clean_up(of: str) -> str:
        return of

    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        raise ValueError

    after = []

    @jobs.on("failed")
    async def enqueue(event) -> None:
        after.append(await clean_up.enqueue(str(event.job_id)))

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        await eventually(lambda: after, what="the handler has enqueued")
        assert await after[0].result(timeout=10) == str(job.id)


def test_an_event_that_there_is_not_is_refused(jobs):
    for kinds in (("done",), ("completed", "done"), ()):
        with pytest.raises(ConfigError, match="takes some of started, completed, retried, postponed, failed, canc"):
            jobs.on(*kinds)


def test_on_gives_the_function_back(jobs):
    @jobs.on("failed")
    def handler(event) -> None: ...

    assert handler.__name__ == "handler"
