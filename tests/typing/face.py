"""The face as type checkers see it: read by mypy and pyright, never run.

A line with `type: ignore` is a mistake that both must find; where one of them finds nothing, it complains of the
comment.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import asyncpg
from aio_pika.abc import AbstractIncomingMessage
from nats.aio.msg import Msg
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from aiopgq import (
    App,
    Backoff,
    Call,
    Cancel,
    CurrentJob,
    EnqueueMiddleware,
    Fail,
    Failure,
    JobEvent,
    JobHandle,
    JobInfo,
    Limit,
    MaxPending,
    Priority,
    Progress,
    Retry,
    Router,
    RunMiddleware,
    ScheduleInfo,
    Snooze,
    Task,
    ThreadTask,
    Unique,
    Worker,
    current_job,
)
from aiopgq.middleware import Middleware
from aiopgq.testing import Completed, EnqueuedJob, Run, enqueued, perform
from aiopgq.worker import Drained


@dataclass
class Resources:
    base: str


@asynccontextmanager
async def resources() -> AsyncIterator[Resources]:
    yield Resources("https://example.org")


jobs = App("embedded:./data")
assert_type(jobs, App[None])
with_state = App(imports=["myapp.tasks"], state=resources)
assert_type(with_state, App[Resources])
assert_type(with_state.state, Resources)
assert_type(with_state.state.base, str)
mail = Router(queue="mail")


# Declared bare, with options, on a router; coroutine and def.


@jobs.task
async def plain(user_id: int, locale: str = "en") -> str:
    return f"{user_id} {locale}"


@jobs.task(
    queue="mail",
    max_attempts=12,
    timeout=timedelta(seconds=30),
    backoff=Backoff(base=1, factor=4, cap=3600, jitter=0.2),
    fail_on=(ValueError,),
    aliases=("old.name",),
)
async def retried(user_id: int, *, locale: str = "en") -> str | Retry:
    return Retry(after=user_id) if locale else ""


@jobs.task
async def outspoken(url: str) -> bytes | Retry | Snooze | Cancel | Fail | None:
    return url.encode()


@mail.task
async def silent() -> None: ...


@mail.task(timeout=None, backoff=lambda failure: 2.0 * failure.attempt)
def threaded(path: str) -> int | Retry:
    return len(path)


@jobs.task
def threaded_plainly(path: str) -> int:
    return len(path)


def give_up(failure: Failure) -> timedelta | None:
    return None if failure.attempt > 2 else timedelta(minutes=failure.attempt)


@jobs.task(transactional=True)
async def booked(order: int) -> str | Retry:
    await current_job().settle_with(current_job().connection, "booked")
    return "booked"


assert_type(booked.handle(UUID(int=1)), JobHandle[str])


@jobs.task(backoff=give_up)
async def stubborn() -> None: ...


@jobs.task(unique="args")
async def once(number: int) -> str:
    return str(number)


@jobs.task(unique=lambda number, **_: f"number:{number}")
async def once_a_number(number: int, text: str = "") -> str:
    return text * number


@jobs.task(unique=Unique("args", on_conflict="debounce", period=timedelta(hours=1), max_delay=60))
def once_an_hour(number: int) -> int | Retry:
    return number or Retry()


jobs.task(unique=5)  # type: ignore[call-overload]
Unique("args", on_conflict="ignore")  # type: ignore[arg-type]
assert_type(once.handle(UUID(int=1)), JobHandle[str])
App(max_pending={"mail": 10_000, "bulk": MaxPending(500, on_full="wait")})
App(max_pending={"mail": "10"})  # type: ignore[dict-item]
MaxPending(5, on_full="ignore")  # type: ignore[arg-type]


# Schedules stand above the task, and leave it what it is.


@jobs.schedule("*/5 * * * *")
@jobs.schedule(every=timedelta(seconds=30), name="often", misfire="skip")
@jobs.schedule("0 3 * * *", timezone="Europe/Berlin", name="german", arguments={"locale": "de"})
@jobs.task
async def clean_up(locale: str = "en") -> str | Retry:
    return locale


@mail.schedule("@daily", misfire="all", window=3600)
@mail.task
def threaded_daily() -> int:
    return 1


assert_type(clean_up.handle(UUID(int=1)), JobHandle[str])
check_clean_up: Task[..., str | Retry] = clean_up
jobs.schedule("@daily", arguments={"user_id": 1})(plain)
jobs.schedule("@daily")(plain)  # type: ignore[type-var]
jobs.schedule(3)  # type: ignore[call-overload]
jobs.schedule("@daily", misfire="never")  # type: ignore[call-overload]
jobs.schedule("@daily", arguments={1: 2})(plain)  # type: ignore[dict-item]


async def scheduling() -> None:
    """Schedules at run time take calls."""
    assert_type(await jobs.schedules.set("s", plain.call(42), "@daily", timezone="Europe/Berlin"), ScheduleInfo)
    await jobs.schedules.set("s", retried.options(queue="slow").call(42), every=30, misfire="all", window=3600)
    assert_type(await jobs.schedules.list(), Sequence[ScheduleInfo])
    assert_type(await jobs.schedules.next("s", 5), Sequence[datetime])
    assert_type(await jobs.schedules.run_now("s"), JobHandle[Any])
    await jobs.schedules.set("s", plain, "@daily")  # type: ignore[arg-type]
    await jobs.schedules.set("s", plain.call("42"), "@daily")  # type: ignore[arg-type]
    await jobs.schedules.set("s", plain.call(42), "@daily", misfire="never")  # type: ignore[arg-type]


assert_type(plain.name, str)
check_task: Task[..., str] = plain
check_thread_task: ThreadTask[..., int] = threaded_plainly


async def calling() -> None:
    """The function stays itself."""
    coroutine: Coroutine[Any, Any, str] = plain(42)
    assert_type(await coroutine, str)
    assert_type(await plain(42, "de"), str)
    assert_type(await retried(42, locale="de"), str | Retry)
    assert_type(threaded("/"), int | Retry)
    assert_type(threaded_plainly(path="/"), int)
    await plain("42")  # type: ignore[arg-type]
    await plain()  # type: ignore[call-arg]
    await plain(42, lokale="de")  # type: ignore[call-arg]


async def enqueuing() -> None:
    """Outcomes are no results; options keep the parameters."""
    assert_type(await plain.enqueue(42), JobHandle[str])
    assert_type(await retried.enqueue(42, locale="de"), JobHandle[str])
    assert_type(await outspoken.enqueue("https://example.org"), JobHandle[bytes | None])
    assert_type(await silent.enqueue(), JobHandle[None])
    assert_type(await threaded.enqueue("/"), JobHandle[int])
    assert_type(plain.enqueue_sync(42), JobHandle[str])
    assert_type(threaded.enqueue_sync("/"), JobHandle[int])
    assert_type(await plain.options(delay=60).enqueue(42), JobHandle[str])
    assert_type(await retried.options(delay=1).options(priority=Priority.EXPLICIT).enqueue(42), JobHandle[str])
    assert_type(threaded.options(timeout=None).enqueue_sync("/"), JobHandle[int])
    await plain.options(
        queue="slow",
        priority=-5,
        run_at=datetime(2030, 1, 1, tzinfo=UTC),
        max_attempts=3,
        timeout=timedelta(minutes=1),
        headers={"trace": "1"},
        id=UUID(int=7),
        connection=object(),
    ).enqueue(42)
    await plain.enqueue("42")  # type: ignore[arg-type]
    await plain.enqueue()  # type: ignore[call-arg]
    await plain.enqueue(42, "de", 1)  # type: ignore[call-arg]
    await plain.enqueue(42, lokale="de")  # type: ignore[call-arg]
    await retried.enqueue(42, "de")  # type: ignore[call-arg]
    await plain.options(delay=1).enqueue("42")  # type: ignore[arg-type]
    await plain.options(delay=1).enqueue(42, lokale="de")  # type: ignore[call-arg]
    threaded.enqueue_sync(7)  # type: ignore[arg-type]
    plain.options(countdown=1)  # type: ignore[call-arg]
    plain.options(delay="1")  # type: ignore[arg-type]
    plain.options(run_at=1.5)  # type: ignore[arg-type]
    assert_type(await once.options(unique="key").enqueue(1), JobHandle[str])
    assert_type(await once_an_hour.options(unique=None).enqueue(1), JobHandle[int])
    assert_type(await once.options(unique=Unique("key")).enqueue(1), JobHandle[str])
    plain.options(unique=5)  # type: ignore[arg-type]


async def enqueuing_many() -> None:
    """Calls of several tasks go together."""
    assert_type(plain.call(42), Call[str])
    assert_type(retried.options(delay=1).call(42), Call[str])
    assert_type(await jobs.enqueue_many([plain.call(1), threaded.call("/")]), list[JobHandle[Any]])
    plain.call("42")  # type: ignore[arg-type]
    await jobs.enqueue_many([plain])  # type: ignore[list-item]


async def waiting() -> None:
    """A handle knows what its task returns."""
    job = await retried.enqueue(42)
    assert_type(job.id, UUID)
    assert_type(job.existing, bool)
    assert_type(await job.result(), str)
    assert_type(await job.result(timeout=None), str)
    assert_type(await job.info(), JobInfo)
    assert_type(retried.handle(job.id), JobHandle[str])
    assert_type(await retried.handle(job.id).result(60), str)
    assert_type(jobs.handle(job.id), JobHandle[Any])
    _wider: JobHandle[str | None] = job
    _other: JobHandle[bytes] = job  # type: ignore[assignment]
    async for update in job.progress():
        assert_type(update, Progress)
        assert_type(update.percent, float | None)
    retried.handle("7")  # type: ignore[arg-type]


async def inside_a_job() -> None:
    """What a handler may ask."""
    assert_type(current_job(), CurrentJob)
    assert_type(current_job(default=None), CurrentJob | None)
    assert_type(current_job().attempt, int)
    assert_type(current_job().headers, dict[str, Any])
    current_job().progress(50, stage="half")
    current_job().progress("50")  # type: ignore[arg-type]


async def running() -> None:
    """Workers, and what they may be told."""
    assert_type(jobs.worker(concurrency=10), Worker)
    jobs.worker({"mail": 20, "slow": None}, burst=True, poll_interval=timedelta(seconds=1))
    jobs.worker(["mail"])
    jobs.worker(threads=1)  # type: ignore[call-arg]
    async with with_state as opened, jobs.worker() as worker:
        assert_type(opened, App[Resources])
        assert_type(worker, Worker)
        worker.stop(now=True)


async def receiving(pool: asyncpg.Pool, session: async_sessionmaker[AsyncSession]) -> None:
    """The inbox, and handlers of messages."""
    async with jobs.inbox.once(session(), consumer="billing", message_id=UUID(int=1), timeout=None) as first:
        assert_type(first, bool)
    jobs.inbox.once(session(), consumer="billing")  # type: ignore[call-arg]

    @jobs.subscriber(consumer="billing", transactions=session)
    async def with_session(message: Msg, session: AsyncSession) -> None: ...

    @jobs.subscriber(consumer="billing", transactions=pool, pause=timedelta(seconds=1))
    async def with_pool(message: AbstractIncomingMessage, connection: Any) -> int:
        return 1

    @jobs.subscriber(consumer="billing", transactions=session)  # type: ignore[arg-type]
    async def with_another(message: Msg, session: bytes) -> None: ...

    assert_type(with_session, Callable[[Msg], Coroutine[Any, Any, None]])
    assert_type(with_pool, Callable[[AbstractIncomingMessage], Coroutine[Any, Any, None]])


async def testing() -> None:
    """The testing kit."""
    run = await perform(retried, 42, locale="de", attempt=3, state=Resources("fake"))
    assert_type(run, Run[str])
    assert_type(run.result, str)
    assert_type(run.error, BaseException | None)
    assert_type(await perform(plain.options(headers={"a": "b"}), 42), Run[str])
    assert_type(await perform(threaded.call("/"), max_attempts=1), Run[int])
    await perform(retried.call("42"))  # type: ignore[arg-type]
    match run.outcome:
        case Completed(result):
            assert_type(result, str)
        case Retry(after=after):
            assert_type(after, float | None)
        case Snooze() | Cancel() | Fail():
            pass
        case error:
            raise error
    [job] = await enqueued(retried, connection=object())
    assert_type(job, EnqueuedJob)
    assert_type(await jobs.drain(), Drained)
    await enqueued("retried")  # type: ignore[arg-type]


@jobs.task(backoff=3)  # type: ignore[call-overload, untyped-decorator]
async def with_a_wrong_backoff() -> None: ...


@jobs.task(retries=3)  # type: ignore[call-overload, untyped-decorator]
async def with_a_wrong_option() -> None: ...


# Middleware and events.


class Around:
    """Goes around both."""

    async def enqueue(
        self, calls: Sequence[Call[Any]], proceed: Callable[[], Awaitable[list[JobHandle[Any]]]]
    ) -> list[JobHandle[Any]]:
        for call in calls:
            assert_type(call.task, str)
            assert_type(call.headers, dict[str, str])
            call.add_headers({"trace": "1"})
            call.add_headers({"trace": 1})  # type: ignore[dict-item]
        return await proceed()

    async def run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        assert_type(job.headers, dict[str, Any])
        return await proceed()


class AroundRuns:
    """Goes around runs only."""

    async def run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        assert_type(job.task, str)
        return await proceed()


class Blocking:
    """Is none, because it does not wait."""

    def run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> tuple[Any, ...]:
        return job, proceed


around_enqueue: EnqueueMiddleware = Around()
around_run: RunMiddleware = AroundRuns()
around_nothing: EnqueueMiddleware = AroundRuns()  # type: ignore[assignment]
either: Middleware = Around()
App(middleware=[Around(), AroundRuns()])
App(middleware=[Blocking()])  # type: ignore[list-item]


@jobs.on("completed", "failed")
async def told(event: JobEvent) -> None:
    """Be told of two."""
    assert_type(event.job_id, UUID)
    assert_type(event.seconds, float | None)


@jobs.on("started")
def told_at_once(event: JobEvent) -> None:
    """Be told of one."""
    assert_type(event.reason, str | None)


jobs.on("done")  # type: ignore[arg-type]


@jobs.on("failed")  # type: ignore[type-var]
def deaf() -> None: ...


# Limits, order and pauses.


@jobs.task(
    limit=Limit(key="account_id", running=2, rate=10, per=timedelta(minutes=1)),
    ordered_by=lambda account_id: account_id,
    on_dead="block",
)
async def limited(account_id: int) -> str:
    return str(account_id)


@mail.task(limit=Limit(rate=1, per=0.5, burst=1, name="partner"))
def limited_thread(number: int) -> None: ...


assert_type(limited.call(1), Call[str])
assert_type(limited_thread.call(1), Call[None])
assert_type(limited.options(limit="other").call(1), Call[str])
assert_type(limited.options(limit=UUID(int=1)).call(1), Call[str])
limited.options(limit=1.5)  # type: ignore[arg-type]
Limit(key=3, running=1)  # type: ignore[arg-type]
Limit(running="2")  # type: ignore[arg-type]
jobs.task(on_dead="wait")  # type: ignore[call-overload]
jobs.limit_queue("mail", Limit(running=2))
jobs.limit_queue("mail", 2)  # type: ignore[arg-type]


async def pauses() -> None:
    assert_type(await jobs.pause(queue="mail"), bool)
    assert_type(await jobs.resume(task="mail.send"), bool)
    assert_type([one.paused_at for one in await jobs.inspector.queues()], list[datetime | None])
    await jobs.pause("mail")  # type: ignore[call-arg]
