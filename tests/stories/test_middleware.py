"""Middleware: what goes around each enqueue and each run, in order, and whose errors are theirs."""

# ruff: noqa: ARG002  # a middleware need not use all it is given

import asyncio
import contextvars
import threading
from uuid import uuid4

import pytest

from aiopgq import App, Cancel, Retry, current_job
from aiopgq.errors import ConfigError, JobCancelled, JobFailed, UsageError
from aiopgq.testing import perform

trace = contextvars.ContextVar("trace", default=None)


class Noting:
    """Notes what passes it."""

    def __init__(self, name, notes):
        self.name = name
        self.notes = notes

    async def enqueue(self, calls, proceed):
        self.notes.append(f"{self.name} > enqueue {[call.task for call in calls]}")
        handles = await proceed()
        self.notes.append(
            f"{self.name} < {[handle.id == call.id for handle, call in zip(handles, calls, strict=True)]}"
        )
        return handles

    async def run(self, job, proceed):
        self.notes.append(f"{self.name} > run {job.task} {job is current_job()}")
        try:
            result = await proceed()
        except BaseException as error:
            self.notes.append(f"{self.name} < raised {type(error).__name__}")
            raise
        self.notes.append(f"{self.name} < {result!r}")
        return result


class Tracing:
    """Carries a trace from the caller to the handler."""

    async def enqueue(self, calls, proceed):
        for call in calls:
            call.add_headers({"trace": trace.get() or "none"})
        return await proceed()

    async def run(self, job, proceed):
        trace.set(job.headers["trace"])
        return await proceed()


def both(dsn, *middleware):
    jobs = App(dsn, middleware=middleware)

    @jobs.task(name="add")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return jobs, add


async def test_middleware_goes_around_an_enqueue_and_a_run_in_order(dsn):
    notes = []
    jobs, add = both(dsn, Noting("outer", notes), Noting("inner", notes))

    async with jobs, jobs.worker():
        assert await (await add.enqueue(1)).result(timeout=10) == 2

    assert notes == [
        "outer > enqueue ['add']",
        "inner > enqueue ['add']",
        "inner < [True]",
        "outer < [True]",
        "outer > run add True",
        "inner > run add True",
        "inner < 2",
        "outer < 2",
    ]


async def test_a_batch_is_one_enqueue_and_goes_through_the_callers_transaction(dsn, sql):
    notes = []
    jobs, add = both(dsn, Noting("m", notes))

    async with sql.transaction():
        handles = await jobs.enqueue_many([add.call(1), add.call(2)], connection=sql)
        single = await add.options(connection=sql).enqueue(3)

    assert notes == ["m > enqueue ['add', 'add']", "m < [True, True]", "m > enqueue ['add']", "m < [True]"]
    ids = await sql.fetch("SELECT id FROM aiopgq.jobs ORDER BY place")
    assert [row["id"] for row in ids] == [job.id for job in (*handles, single)]
    assert await jobs.enqueue_many([]) == []
    assert len(notes) == 4


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_headers_carry_a_trace_from_the_caller_to_the_handler(dsn, kind):
    jobs = App(dsn, middleware=[Tracing()])
    seen = []

    def note():
        seen.append((trace.get(), current_job().headers, threading.current_thread() is threading.main_thread()))

    if kind == "async":

        @jobs.task(name="t")
        async def task() -> None:
            note()
    else:

        @jobs.task(name="t")
        def task() -> None:
            note()

    async with jobs, jobs.worker():
        trace.set("7")
        await (await task.options(headers={"own": "1"}).enqueue()).result(timeout=10)
        [one, two] = await jobs.enqueue_many([task.call(), task.options(headers={"trace": "lost"}).call()])
        await one.result(timeout=10)
        await two.result(timeout=10)

    here = kind == "async"
    assert seen == [("7", {"own": "1", "trace": "7"}, here), ("7", {"trace": "7"}, here), ("7", {"trace": "7"}, here)]


async def test_an_error_before_the_enqueue_is_the_callers_and_nothing_is_sent(dsn, sql):
    class Refusing:
        async def enqueue(self, calls, proceed):
            if calls[0].queue == "closed":
                raise PermissionError("this queue is closed")
            return await proceed()

    jobs, add = both(dsn, Refusing())
    async with jobs:
        with pytest.raises(PermissionError, match="closed"):
            await add.options(queue="closed").enqueue(1)
        async with sql.transaction():
            with pytest.raises(PermissionError):
                await add.options(queue="closed", connection=sql).enqueue(1)
            # The transaction of the caller is as usable as before.
            await add.options(connection=sql).enqueue(2)

    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 1


async def test_an_error_of_the_enqueue_passes_the_middleware(dsn):
    notes = []

    class Seeing:
        async def enqueue(self, calls, proceed):
            try:
                return await proceed()
            except Exception as error:
                notes.append(type(error).__name__)
                raise

    _, add = both(dsn, Seeing())
    with pytest.raises(UsageError, match="not open"):
        await add.enqueue(1)
    assert notes == ["AppNotOpen"]


async def test_middleware_that_goes_on_a_second_time_gets_the_job_of_the_first(dsn, sql):
    class Insisting:
        async def enqueue(self, calls, proceed):
            first = await proceed()
            again = await proceed()
            assert [one.id for one in first] == [one.id for one in again]
            return again

    jobs, add = both(dsn, Insisting())
    async with jobs:
        await add.enqueue(1)
        await jobs.enqueue_many([add.call(2), add.call(3)])

    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 3


async def test_an_id_that_is_known_is_told_through_the_middleware(dsn):
    jobs, add = both(dsn, Noting("m", []))
    job_id = uuid4()
    async with jobs:
        first = await add.options(id=job_id).enqueue(1)
        again = await add.options(id=job_id).enqueue(1)

    assert (first.existing, again.existing) == (False, True)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_error_of_a_middleware_is_an_error_of_the_run_and_the_worker_goes_on(dsn, when):
    class Failing:
        async def run(self, job, proceed):
            if when == "before" and job.headers:
                raise ZeroDivisionError("before")
            result = await proceed()
            if job.headers:
                raise ZeroDivisionError("after")
            return result

    jobs, add = both(dsn, Failing())
    async with jobs, jobs.worker():
        job = await add.options(headers={"fail": "1"}, max_attempts=1).enqueue(1)
        with pytest.raises(JobFailed, match=f"ZeroDivisionError: {when}"):
            await job.result(timeout=10)
        assert await (await add.enqueue(1)).result(timeout=10) == 2


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, RecursionError])
async def test_no_error_of_a_middleware_kills_the_worker(dsn, error):
    class Hostile:
        async def run(self, job, proceed):
            if job.headers:
                raise error
            return await proceed()

    jobs, add = both(dsn, Hostile())
    async with jobs, jobs.worker():
        job = await add.options(headers={"fail": "1"}, max_attempts=1).enqueue(1)
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        assert await (await add.enqueue(1)).result(timeout=10) == 2


async def test_a_middleware_sees_the_end_of_every_run_and_may_decide_it(dsn):
    notes = []

    class Deciding:
        async def run(self, job, proceed):
            if job.headers.get("skip"):
                return Cancel("skipped by the middleware")
            try:
                return await proceed()
            except KeyError:
                return 404

    jobs = App(dsn, middleware=[Noting("m", notes), Deciding()])
    calls = []

    @jobs.task(name="t")
    async def task(how: str) -> int | Retry:
        calls.append(how)
        if how == "lost":
            raise KeyError(how)
        if how == "again" and current_job().attempt == 1:
            raise Retry(after=0)
        await asyncio.sleep(60 if how == "long" else 0)
        return 1

    async with jobs, jobs.worker():
        with pytest.raises(JobCancelled, match="skipped by the middleware"):
            await (await task.options(headers={"skip": "1"}).enqueue("skipped")).result(timeout=10)
        assert await (await task.enqueue("lost")).result(timeout=10) == 404
        assert await (await task.enqueue("again")).result(timeout=10) == 1
        with pytest.raises(JobFailed, match="longer than its timeout"):
            await (await task.options(timeout=0.1, max_attempts=1).enqueue("long")).result(timeout=10)

    assert calls == ["lost", "again", "again", "long"]
    ends = [note for note in notes if note.startswith("m <") and "[" not in note]
    assert ends == [
        "m < Cancel('skipped by the middleware')",
        "m < 404",
        "m < raised Retry",
        "m < 1",
        "m < raised CancelledError",
    ]


async def test_a_transaction_is_rolled_back_by_an_error_of_a_middleware(dsn, sql):
    class Failing:
        async def run(self, job, proceed):
            await proceed()
            raise ValueError("no")

    jobs = App(dsn, middleware=[Failing()])
    await sql.execute("CREATE TABLE effects (job uuid)")

    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        await current_job().connection.execute("INSERT INTO effects VALUES ($1)", current_job().id)

    async with jobs, jobs.worker():
        with pytest.raises(JobFailed, match="ValueError: no"):
            await (await task.enqueue()).result(timeout=10)

    assert await sql.fetchval("SELECT count(*) FROM effects") == 0


async def test_the_testing_kit_runs_a_task_with_its_middleware():
    notes = []
    _, add = both("postgresql://localhost/none", Noting("m", notes))

    assert (await perform(add, 1)).result == 2
    assert notes == ["m > run add True", "m < 2"]


async def test_a_middleware_that_forgets_the_handles_is_told(dsn):
    class Forgetting:
        async def enqueue(self, calls, proceed):
            await proceed()

    jobs, add = both(dsn, Forgetting())
    async with jobs:
        with pytest.raises(
            UsageError, match=r"Forgetting\.enqueue returned NoneType; it has to return what `await pro"
        ):
            await add.enqueue(1)


class Waiting:
    def run(self, job, proceed):
        return proceed()


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (object(), "takes objects with"),
        (Noting, "takes objects with"),
        (Waiting(), "Waiting.run is no coroutine function"),
    ],
)
def test_what_is_no_middleware_is_refused_at_once(one, reason):
    with pytest.raises(ConfigError, match=reason):
        App(middleware=[one])


async def test_headers_that_cannot_be_stored_are_refused_where_they_are_added(dsn):
    class Wrong:
        async def enqueue(self, calls, proceed):
            calls[0].add_headers({"n": 1})
            return await proceed()

    jobs, add = both(dsn, Wrong())
    async with jobs:
        with pytest.raises(ConfigError, match="holds strings only"):
            await add.enqueue(1)
