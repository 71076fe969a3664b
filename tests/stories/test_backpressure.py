"""Backpressure: a queue that has as many ready jobs as it may takes no more."""

import asyncio

import asyncpg
import pytest
from support import eventually

from aiopgq import App, MaxPending
from aiopgq._flow import pressure
from aiopgq.errors import AppNotOpen, ConfigError, JobNotFound, QueueFull


def app_on(dsn, on_full="raise", jobs=5):
    """An App whose queue `small` takes five ready jobs."""
    app = App(dsn, max_pending={"small": MaxPending(jobs, on_full=on_full)})

    @app.task(name="small", queue="small")
    async def small(number: int = 0) -> None: ...

    @app.task(name="free")
    async def free() -> None: ...

    return app


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def other(dsn):
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def count(sql, queue="small"):
    return await sql.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE queue = $1", queue)


async def clear(sql):
    await sql.execute("DELETE FROM aiopgq.jobs")


async def enqueue_until_full(task):
    for _ in range(100):
        try:
            await task.enqueue()
        except QueueFull as error:
            return error
    raise AssertionError("the queue is never full")


async def test_a_full_queue_says_so_and_takes_jobs_again_when_there_is_room(dsn, sql):
    async with app_on(dsn) as jobs:
        small = jobs.task_named("small")
        told = await enqueue_until_full(small)
        assert (told.queue, told.pending, told.max_pending) == ("small", 5, 5)
        assert await count(sql) == 5
        await jobs.drain()

        async def accepted():
            try:
                return await small.enqueue()
            except QueueFull:
                return None

        job = await eventually(accepted, what="there is room again")
        assert (await job.info()).status == "pending"


async def test_other_queues_and_jobs_for_later_are_not_bound(dsn, sql):
    async with app_on(dsn) as jobs:
        small = jobs.task_named("small")
        await asyncio.gather(*(small.options(delay=600).enqueue() for _ in range(5)))
        await asyncio.gather(*(jobs.task_named("free").enqueue() for _ in range(50)))
        # What waits for its moment is not ready; what was just let in is counted until it is known to wait.
        await eventually_empty(jobs)
        await small.enqueue()
    assert (await count(sql), await count(sql, "default")) == (6, 50)


async def eventually_empty(jobs):
    async def room():
        try:
            await jobs.enqueue_many([jobs.task_named("small").options(id=None).call() for _ in range(6)])
        except QueueFull as error:
            return error.pending == 0
        raise AssertionError("six do not fit into five")

    await eventually(room, what="the queue is seen to be empty")


async def test_what_others_enqueue_is_seen(dsn, sql):
    async with app_on(dsn) as jobs:
        await sql.execute("SELECT aiopgq.enqueue('small', p_queue => 'small') FROM generate_series(1, 7)")
        with pytest.raises(QueueFull) as told:
            await jobs.task_named("small").enqueue()
        # Counted no further than it takes to know.
        assert told.value.pending == 6


async def test_a_hundred_callers_at_once_do_not_overshoot(dsn, sql):
    async with app_on(dsn) as jobs:
        small = jobs.task_named("small")
        answers = await asyncio.gather(*(small.enqueue() for _ in range(100)), return_exceptions=True)
        assert sum(isinstance(answer, QueueFull) for answer in answers) == 95
    assert await count(sql) == 5


async def test_counting_is_shared_by_all_callers_of_a_process(dsn, sql, monkeypatch):
    counted = []
    monkeypatch.setattr(pressure, "_INTERVAL", 3600.0)
    async with app_on(dsn, jobs=1000) as jobs:
        ready = jobs.store("count").ready

        async def counting(queue, limit):
            counted.append((queue, limit))
            return await ready(queue, limit)

        monkeypatch.setattr(jobs.store("count"), "ready", counting)
        small = jobs.task_named("small")
        await small.enqueue()
        await asyncio.gather(*(small.enqueue() for _ in range(200)))
    assert counted == [("small", 1001)]


async def test_waiting_ends_when_there_is_room(dsn, sql):
    async with app_on(dsn, "wait") as jobs:
        small = jobs.task_named("small")
        for _ in range(5):
            await small.enqueue()
        late = asyncio.create_task(small.enqueue())
        done, _ = await asyncio.wait([late], timeout=0.5)
        assert not done
        await clear(sql)
        assert not (await late).dropped
    assert await count(sql) == 1


async def test_waiting_for_room_is_bounded(dsn, monkeypatch, sql):
    monkeypatch.setattr(pressure, "PATIENCE", 0.3)
    async with app_on(dsn, "wait") as jobs:
        assert (await enqueue_until_full(jobs.task_named("small"))).max_pending == 5
    assert await count(sql) == 5


async def test_who_waits_may_give_up(dsn, sql):
    async with app_on(dsn, "wait") as jobs:
        small = jobs.task_named("small")
        for _ in range(5):
            await small.enqueue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await small.enqueue()
    assert await count(sql) == 5


async def test_a_dropped_call_says_so(dsn, sql):
    async with app_on(dsn, "drop") as jobs:
        handles = [await jobs.task_named("small").enqueue() for _ in range(7)]
        assert [job.dropped for job in handles] == [False] * 5 + [True] * 2
        for ask in (handles[-1].info, handles[-1].result, handles[-1].cancel):
            with pytest.raises(JobNotFound, match="queue was full"):
                await ask()
    assert await count(sql) == 5


async def test_a_batch_goes_whole_or_not_at_all_unless_the_queue_drops(dsn, sql):
    async with app_on(dsn) as jobs:
        small, free = jobs.task_named("small"), jobs.task_named("free")
        with pytest.raises(QueueFull):
            await jobs.enqueue_many([free.call(), *(small.call() for _ in range(6))])
        assert (await count(sql), await count(sql, "default")) == (0, 0)
        await jobs.enqueue_many([free.call(), *(small.call() for _ in range(5))])
    await clear(sql)
    async with app_on(dsn, "drop") as jobs:
        small, free = jobs.task_named("small"), jobs.task_named("free")
        handles = await jobs.enqueue_many([*(small.call(number) for number in range(7)), free.call()])
        assert [job.dropped for job in handles] == [False] * 5 + [True] * 2 + [False]
        assert [(await job.info()).args for job in handles[:5]] == [{"number": number} for number in range(5)]


async def test_a_batch_that_can_never_fit_does_not_wait(dsn):
    async with app_on(dsn, "wait") as jobs, asyncio.timeout(5):
        with pytest.raises(QueueFull):
            await jobs.enqueue_many([jobs.task_named("small").call() for _ in range(6)])


@pytest.mark.parametrize("opened", [True, False])
async def test_a_transaction_of_the_caller_is_told_at_once_and_can_go_on(dsn, sql, other, opened):
    await sql.execute("SELECT aiopgq.enqueue('small', p_queue => 'small') FROM generate_series(1, 5)")
    jobs = app_on(dsn, "wait")
    if opened:
        await jobs.__aenter__()
    try:
        async with other.transaction(), asyncio.timeout(5):
            with pytest.raises(QueueFull):
                await jobs.task_named("small").options(connection=other).enqueue()
            await jobs.task_named("free").options(connection=other).enqueue()
    finally:
        if opened:
            await jobs.__aexit__()
    assert (await count(sql), await count(sql, "default")) == (5, 1)


async def test_an_app_that_is_not_open_says_that_first(dsn):
    with pytest.raises(AppNotOpen):
        await app_on(dsn).task_named("small").enqueue()


@pytest.mark.parametrize(
    "wrong",
    [{"mail": 0}, {"mail": "5"}, {"": 5}, ["mail"], {"mail": None}],
    ids=["none", "text", "name", "list", "nil"],
)
def test_a_bound_that_means_nothing_is_refused(wrong):
    with pytest.raises(ConfigError, match="max_pending"):
        App(max_pending=wrong)


def test_a_way_that_means_nothing_is_refused():
    with pytest.raises(ConfigError, match="raise, wait or drop"):
        MaxPending(5, on_full="ignore")
