"""The testing kit tells what a worker would do, and sees what was enqueued."""

import asyncio
import dataclasses
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aiopgq import App, Backoff, Cancel, Fail, Retry, Router, Snooze, current_job
from aiopgq.errors import (
    AppNotOpen,
    ArgumentError,
    ConfigError,
    JobFailed,
    NoState,
    StoreUnavailable,
    TaskNotIncluded,
)
from aiopgq.testing import Completed, enqueued, perform


@dataclasses.dataclass(frozen=True)
class Parcel:
    number: int
    weight: Decimal
    sent_at: datetime


PARCEL = Parcel(2**60 + 1, Decimal("1.10"), datetime(2026, 11, 30, 12, tzinfo=UTC))


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def nowhere():
    """An App whose database does not exist; nothing may need it."""
    return App("postgresql://nobody@127.0.0.1:1/nowhere")


# perform


async def test_a_transactional_task_is_performed_on_a_connection_of_the_test(jobs, dsn):
    @jobs.task(transactional=True)
    async def book(amount: int) -> int:
        return await current_job().connection.fetchval("SELECT $1::integer + 1", amount)

    connection = await asyncpg.connect(dsn)
    run = await perform(book, 41, connection=connection)
    await connection.close()
    without = await perform(book, 41)

    assert run.result == 42
    assert isinstance(without.error, ConfigError)


async def test_a_performed_task_gets_arguments_that_went_through_the_codec(nowhere):
    seen = []

    @nowhere.task
    async def send(parcel: Parcel, *, tags: list[str], note: str = "none") -> Parcel:
        seen.append((parcel, tags, note))
        return parcel

    tags = ["fragile"]
    run = await perform(send, PARCEL, tags=tags)

    [(parcel, seen_tags, note)] = seen
    assert (parcel, seen_tags, note) == (PARCEL, tags, "none")
    assert parcel is not PARCEL
    assert seen_tags is not tags
    assert run.settlement == "completed"
    assert run.outcome == Completed(PARCEL)
    assert run.result == PARCEL
    assert run.result is not parcel
    assert (run.error, run.delay, run.reason) == (None, None, None)


async def test_a_wrong_call_is_refused_as_at_enqueue(nowhere):
    @nowhere.task
    async def send(number: int) -> None: ...

    with pytest.raises(ArgumentError) as refused:
        await perform(send, "42")

    assert refused.value.parameter == "number"


async def test_a_performed_task_is_the_current_job(nowhere):
    @nowhere.task(queue="mail", max_attempts=5)
    async def send() -> list[object]:
        job = current_job()
        return [job.task, job.queue, job.attempt, job.max_attempts, job.headers]

    run = await perform(send.options(headers={"trace": "1"}), attempt=3)
    other = await perform(send.options(queue="slow"), max_attempts=7, headers={"trace": "2"})

    assert run.result == [send.name, "mail", 3, 5, {"trace": "1"}]
    assert other.result[1:] == ["slow", 1, 7, {"trace": "2"}]
    assert current_job(default=None) is None


async def test_a_def_task_is_performed_in_a_thread(nowhere):
    @nowhere.task
    def where() -> list[object]:
        return [threading.get_ident(), current_job().attempt]

    run = await perform(where, attempt=2)

    thread, attempt = run.result
    assert thread != threading.get_ident()
    assert attempt == 2


async def test_progress_is_seen(nowhere):
    @nowhere.task
    async def climb() -> None:
        current_job().progress(10, stage="foot")
        current_job().progress(90, stage="summit")

    run = await perform(climb)

    assert (run.progress, run.stage) == (90.0, "summit")


@pytest.mark.parametrize("returned", [True, False], ids=["returned", "raised"])
@pytest.mark.parametrize(
    ("said", "settlement", "delay", "reason"),
    [
        (Retry(after=30), "retry", 30.0, "Retry"),
        (Snooze(timedelta(minutes=2)), "snoozed", 120.0, None),
        (Cancel("no longer wanted"), "cancelled", None, "no longer wanted"),
        (Fail("no such user"), "failed", None, "no such user"),
    ],
    ids=["Retry", "Snooze", "Cancel", "Fail"],
)
async def test_what_a_task_says_is_the_outcome(nowhere, said, settlement, delay, reason, returned):
    @nowhere.task
    async def speak() -> Retry | Snooze | Cancel | Fail | None:
        if returned:
            return said
        raise said

    run = await perform(speak)

    assert run.outcome is said
    assert (run.settlement, run.delay, run.reason, run.error) == (settlement, delay, reason, None)


async def test_an_exception_is_retried_as_the_backoff_says(nowhere):
    @nowhere.task(max_attempts=4, backoff=Backoff(base=1, factor=4, jitter=0))
    async def fetch() -> None:
        raise LookupError("no answer")

    third = await perform(fetch, attempt=3)
    last = await perform(fetch, attempt=4)

    assert (third.settlement, third.delay, third.reason) == ("retry", 16.0, "LookupError: no answer")
    assert third.outcome is third.error
    assert type(third.error) is LookupError
    assert (last.settlement, last.delay) == ("failed", None)


async def test_an_exception_of_fail_on_is_no_matter_of_attempts(nowhere):
    @nowhere.task(fail_on=(KeyError,))
    async def fetch() -> None:
        raise KeyError("id")

    assert (await perform(fetch, attempt=1)).settlement == "failed"


async def test_a_run_that_takes_too_long_ends_with_a_timeout(nowhere):
    @nowhere.task(timeout=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    run = await perform(wait)

    assert type(run.outcome) is TimeoutError
    assert isinstance(run.error.__cause__, asyncio.CancelledError)
    assert run.settlement == "retry"
    assert run.reason.startswith("TimeoutError")


async def test_the_timeout_of_the_call_comes_before_that_of_the_task(nowhere):
    released = asyncio.Event()

    @nowhere.task(timeout=0.01)
    async def wait() -> str:
        asyncio.get_running_loop().call_later(0.05, released.set)
        await released.wait()
        return "patient"

    assert (await perform(wait.options(timeout=None))).result == "patient"


async def test_a_thread_sees_that_its_time_is_over(nowhere):
    @nowhere.task(timeout=0.01)
    def work() -> str:
        job = current_job()
        while not job.should_stop:
            threading.Event().wait(0.001)
        return "stopped by itself"

    assert (await perform(work)).result == "stopped by itself"


async def test_a_result_that_cannot_be_stored_is_a_failure(nowhere):
    @nowhere.task
    async def make() -> object:
        return object()

    run = await perform(make)

    assert run.settlement == "failed"
    assert run.reason.startswith("result not serialisable")
    assert str(run.error) == run.reason


async def test_asking_for_a_result_that_is_not_there_shows_the_error(nowhere):
    @nowhere.task(backoff=Backoff(base=7, jitter=0))
    async def fetch() -> int:
        raise LookupError("no answer")

    run = await perform(fetch)

    with pytest.raises(AssertionError, match=r"its job is retry, due again in 7 s: LookupError: no answer") as missing:
        _ = run.result
    assert missing.value.__cause__ is run.error


async def test_whatever_a_task_raises_is_an_outcome(nowhere):
    @nowhere.task
    async def leave() -> None:
        raise SystemExit(3)

    run = await perform(leave)

    assert type(run.error) is SystemExit
    assert run.settlement == "retry"


async def test_a_run_is_frozen(nowhere):
    @nowhere.task
    async def nothing() -> None: ...

    run = await perform(nothing)

    with pytest.raises(dataclasses.FrozenInstanceError):
        run.settlement = "failed"


async def test_the_state_given_is_the_state_of_that_run_only(nowhere):
    @nowhere.task
    async def read() -> str:
        await asyncio.sleep(0)
        return nowhere.state

    @nowhere.task
    def read_in_thread() -> str:
        return nowhere.state

    runs = await asyncio.gather(
        perform(read, state="one"), perform(read, state="two"), perform(read_in_thread, state="three"), perform(read)
    )

    assert [run.result for run in runs[:3]] == ["one", "two", "three"]
    assert type(runs[3].error) is NoState
    with pytest.raises(NoState):
        _ = nowhere.state


async def test_none_is_a_state_too(nowhere):
    @nowhere.task
    async def read() -> bool:
        return nowhere.state is None

    assert (await perform(read, state=None)).result is True


async def test_a_call_leaves_the_names_of_the_options_to_the_task(nowhere):
    @nowhere.task
    async def draw(state: str, attempt: int) -> str:
        return f"{state} {attempt} {current_job().attempt}"

    run = await perform(draw.call(state="Ohio", attempt=7), attempt=2, state=object())

    assert run.result == "Ohio 7 2"
    with pytest.raises(ConfigError, match="arguments already"):
        await perform(draw.call("Ohio", 7), 8)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"attempt": 0}, "attempt"),
        ({"attempt": 4}, "attempt"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"headers": {"a": 1}}, "headers"),
    ],
)
async def test_an_option_that_cannot_be_is_refused(nowhere, options, setting):
    @nowhere.task(max_attempts=3)
    async def nothing() -> None:
        raise AssertionError("it must not run")

    with pytest.raises(ConfigError) as refused:
        await perform(nothing, **options)

    assert refused.value.setting == setting


async def test_a_task_of_a_router_needs_an_app(nowhere):
    router = Router()

    @router.task
    async def greet() -> str:
        return "hello"

    with pytest.raises(TaskNotIncluded):
        await perform(greet)

    nowhere.include(router)
    assert (await perform(greet)).result == "hello"


async def test_a_task_that_enqueues_needs_an_open_app(nowhere):
    @nowhere.task
    async def again() -> None:
        await again.enqueue()

    run = await perform(again)

    assert type(run.error) is AppNotOpen


async def test_giving_up_a_run_cancels_it(nowhere):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @nowhere.task
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    performing = asyncio.create_task(perform(wait))
    await begun.wait()
    performing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await performing

    async with asyncio.timeout(10):
        await cancelled.wait()


# drain


async def test_a_drain_runs_what_is_due_and_what_that_enqueues(jobs):
    ran = []

    @jobs.task
    async def count(n: int) -> None:
        ran.append(n)
        if n:
            await count.enqueue(n - 1)

    async with jobs:
        await count.enqueue(3)
        later = await count.options(delay=3600).enqueue(9)
        done = await jobs.drain()

        assert ran == [3, 2, 1, 0]
        assert (done.completed, done.cancelled, done.failed, done.pending) == (4, 0, 0, 0)
        assert (await later.info()).status == "pending"
        assert (await jobs.drain()).completed == 0


async def test_a_drain_runs_jobs_in_the_loop_of_the_test(jobs):
    loops = []

    @jobs.task
    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    async with jobs:
        await look.enqueue()
        await jobs.drain()

    assert loops == [asyncio.get_running_loop()]


async def test_a_drain_opens_an_app_that_is_not_open(jobs):
    @jobs.task
    async def nothing() -> None: ...

    async with jobs:
        await nothing.enqueue()

    assert (await jobs.drain()).completed == 1
    with pytest.raises(AppNotOpen):
        await nothing.enqueue()


async def test_a_drain_counts_how_runs_ended(jobs):
    @jobs.task(max_attempts=1)
    async def end(how: str) -> Retry | Snooze | Cancel | None:
        match how:
            case "snooze":
                return Snooze(3600)
            case "cancel":
                return Cancel()
            case "fail":
                raise ValueError(how)
            case _:
                return None

    async with jobs:
        await jobs.enqueue_many([end.call(how) for how in ("snooze", "cancel", "cancel", "fail", "", "", "")])
        done = await jobs.drain(raises=False)

    assert done._asdict() == {"completed": 3, "cancelled": 2, "failed": 1, "pending": 1}


async def test_a_retry_that_waits_stays_pending(jobs):
    @jobs.task(backoff=Backoff(base=600))
    async def fetch() -> None:
        raise LookupError("no answer")

    async with jobs:
        job = await fetch.enqueue()
        done = await jobs.drain()

        assert done.pending == 1
        info = await job.info()
        assert (info.status, info.attempts) == ("pending", 1)


async def test_a_drain_raises_what_made_a_dead_letter(jobs):
    @jobs.task(max_attempts=2, backoff=Backoff(base=0))
    async def fetch(n: int) -> None:
        raise LookupError(f"no answer {n}")

    @jobs.task
    async def fine() -> str:
        return "fine"

    async with jobs:
        first = await fetch.enqueue(1)
        other = await fetch.enqueue(2)
        last = await fine.enqueue()
        with pytest.raises(JobFailed) as failed:
            await jobs.drain(concurrency=1)

        assert {failed.value.job_id, *_ids(failed.value.__notes__)} == {first.id, other.id}
        assert [entry["attempt"] for entry in failed.value.errors] == [1, 2]
        assert "Traceback" in failed.value.__notes__[0]
        assert "LookupError: no answer" in failed.value.__notes__[0]
        assert await last.result(5) == "fine"
        assert (await jobs.drain()).failed == 0


def _ids(notes):
    return [UUID(note.split()[1]) for note in notes if "failed as well" in note]


async def test_dead_letters_of_the_past_do_not_disturb_a_drain(jobs):
    @jobs.task(max_attempts=1)
    async def fetch(works: bool) -> None:
        if not works:
            raise LookupError

    async with jobs:
        await fetch.enqueue(works=False)
        assert (await jobs.drain(raises=False)).failed == 1
        await fetch.enqueue(works=True)
        done = await jobs.drain()

    assert (done.completed, done.failed) == (1, 0)


async def test_a_drain_serves_only_the_queues_it_is_told(jobs):
    @jobs.task(queue="mail")
    async def send() -> None: ...

    @jobs.task(queue="slow")
    async def wait() -> None: ...

    async with jobs:
        await send.enqueue()
        left = await wait.enqueue()
        done = await jobs.drain(["mail"])

        assert done.completed == 1
        assert (await left.info()).status == "pending"


async def test_a_drain_that_takes_too_long_gives_its_jobs_back(jobs):
    @jobs.task
    async def wait() -> None:
        await asyncio.Event().wait()

    async with jobs:
        job = await wait.enqueue()
        with pytest.raises(TimeoutError):
            await jobs.drain(timeout=1)

        info = await job.info()
        assert (info.status, info.attempts) == ("pending", 0)


async def test_a_drain_without_a_database_says_so_at_once():
    jobs = App("postgresql://nobody@127.0.0.1:1/nowhere")

    with pytest.raises(StoreUnavailable):
        await jobs.drain()


async def test_a_drain_gives_tasks_their_state(dsn):
    entered = []

    class Resources:
        async def __aenter__(self):
            entered.append(True)
            return "real"

        async def __aexit__(self, *_):
            entered.append(False)

    jobs = App(dsn, state=Resources)

    @jobs.task
    async def read() -> str:
        return jobs.state

    async with jobs:
        job = await read.enqueue()
        await jobs.drain()
        assert await job.result(5) == "real"
        assert entered == [True, False]


# enqueued


async def test_enqueued_jobs_are_seen_with_their_typed_arguments(jobs):
    @jobs.task(queue="post", priority=150)
    async def send(parcel: Parcel, /, copies: int = 1, **marks: str) -> None: ...

    @jobs.task
    async def other() -> None: ...

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    async with jobs:
        first = await send.enqueue(PARCEL)
        await other.enqueue()
        second = await send.options(run_at=moment, headers={"trace": "7"}, queue="slow", priority=-1).enqueue(
            PARCEL, copies=2, side="up"
        )

        one, two = await enqueued(send)

    assert (one.id, one.task, one.queue, one.priority, one.headers) == (first.id, send.name, "post", 150, {})
    assert one.args == {"parcel": PARCEL}
    assert one.run_at.tzinfo is not None
    assert (two.id, two.queue, two.priority, two.run_at) == (second.id, "slow", -1, moment)
    assert two.headers == {"trace": "7"}
    assert two.args == {"parcel": PARCEL, "copies": 2, "side": "up"}


async def test_a_job_that_has_run_is_no_longer_enqueued(jobs):
    @jobs.task
    async def nothing() -> None: ...

    async with jobs:
        await nothing.enqueue()
        assert len(await enqueued(nothing)) == 1
        await jobs.drain()
        assert await enqueued(nothing) == []


async def test_jobs_under_an_old_name_are_enqueued_jobs_of_the_task(dsn):
    before, after = App(dsn), App(dsn)

    @before.task(name="old.name")
    async def old(n: int) -> None: ...

    @after.task(name="new.name", aliases=("old.name",))
    async def new(n: int) -> None: ...

    async with before, after:
        await old.enqueue(1)
        await new.enqueue(2)

        assert [(job.task, job.args) for job in await enqueued(new)] == [
            ("old.name", {"n": 1}),
            ("new.name", {"n": 2}),
        ]


async def test_a_transaction_of_asyncpg_that_will_roll_back_is_seen(jobs, dsn):
    @jobs.task
    async def send(parcel: Parcel) -> None: ...

    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        job = await send.options(connection=connection).enqueue(PARCEL)

        [seen] = await enqueued(send, connection=connection)
        await transaction.rollback()

        assert (seen.id, seen.args) == (job.id, {"parcel": PARCEL})
        assert await enqueued(send, connection=connection) == []
    finally:
        await connection.close()


async def test_a_session_of_sqlalchemy_that_will_roll_back_is_seen(jobs, dsn):
    @jobs.task
    async def send(parcel: Parcel) -> None: ...

    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with jobs, AsyncSession(engine) as session:
            job = await send.options(connection=session, headers={"a": "b"}).enqueue(PARCEL)

            [seen] = await enqueued(send, connection=session)
            outside = await enqueued(send)
            await session.rollback()

            assert (seen.id, seen.args, seen.headers) == (job.id, {"parcel": PARCEL}, {"a": "b"})
            assert outside == []
            assert await enqueued(send, connection=session) == []
    finally:
        await engine.dispose()


async def test_enqueued_jobs_cannot_be_seen_through_nothing(jobs):
    @jobs.task
    async def nothing() -> None: ...

    with pytest.raises(AppNotOpen):
        await enqueued(nothing)
    with pytest.raises(TypeError, match="asyncpg Connection"):
        await enqueued(nothing, connection=object())


async def test_the_schema_of_the_app_is_asked(aiopgq_dsn, aiopgq_schema):
    jobs = App(aiopgq_dsn, schema=aiopgq_schema)

    @jobs.task
    async def nothing() -> None: ...

    connection = await asyncpg.connect(aiopgq_dsn)
    try:
        async with jobs:
            job = await nothing.enqueue()

            assert [seen.id for seen in await enqueued(nothing)] == [job.id]
            assert [seen.id for seen in await enqueued(nothing, connection=connection)] == [job.id]
    finally:
        await connection.close()
