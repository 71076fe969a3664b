"""Names are data: queues, tasks and schemas may be called anything PostgreSQL can store."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support import eventually

from aiopgq import App
from aiopgq._flow.wake import slot
from aiopgq._store.statements import channel
from aiopgq.errors import JobCancelled

NAMES = [
    "Emails",
    "emails",
    "EMAILS",
    "with space",
    "quotes \"double\" 'single' `back`",
    "colon:done",
    "aiopgq:cancel",
    "%s $1 {} \\ \n\t;--",
    "naïve 漢字 👩‍👩‍👧‍👦",
    "\u00e9",
    "e\u0301",
    "q" * 200,
    "é" * 100,
    " ",
    "*",
    "NULL",
]
# A schema has at most 48 bytes; each of these once broke a statement somewhere.
SCHEMAS = ["Odd \"na'me%", "aiopgq.notify", "we :ird $1", "UPPER", "select", "ünïcödé", "s" * 48]


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


def app_with_queues(dsn, queues, **settings):
    """An App whose task tells the queue it was enqueued for and the worker's idea of it."""
    jobs = App(dsn, queue=queues[0], **settings)

    @jobs.task(name="tell")
    async def tell(queue: str) -> str:
        return queue

    return jobs


async def test_queues_with_similar_names_are_different_queues(dsn, sql):
    async with app_with_queues(dsn, NAMES) as jobs:
        tell = jobs.task_named("tell")
        for name in NAMES:
            await tell.options(queue=name).enqueue(name)
        counts = {count.queue: count.jobs for count in await jobs.inspector.counts()}
        assert counts == dict.fromkeys(NAMES, 1)
        for name in NAMES:
            [info] = await jobs.inspector.jobs(queue=name)
            assert info.args == {"queue": name}


@pytest.mark.parametrize("name", ["Emails", "colon:done", "naïve 漢字 👩‍👩‍👧‍👦"])
async def test_a_worker_serves_its_queue_and_no_similar_one(dsn, name):
    async with app_with_queues(dsn, NAMES) as jobs:
        tell = jobs.task_named("tell")
        handles = {queue: await tell.options(queue=queue).enqueue(queue) for queue in NAMES}
        await jobs.worker([name], burst=True, poll_interval=0.1).run()
        done = [queue for queue, job in handles.items() if (await job.info()).status == "completed"]
    assert done == [name]


async def test_a_sleeping_worker_is_woken_for_each_of_its_queues(dsn, sql):
    async with app_with_queues(dsn, NAMES) as jobs:
        worker = jobs.worker(NAMES, poll_interval=3600)
        async with worker, asyncio.timeout(60):
            for name in NAMES:
                await eventually(lambda: asleep(sql), what="the worker sleeps")
                job = await jobs.task_named("tell").options(queue=name).enqueue(name)
                assert await job.result(timeout=None) == name


async def asleep(sql):
    """Whether every queue's slot has a flag that stands for longer than a poll."""
    return await sql.fetchval(
        """
        SELECT bool_and(pg_sequence_last_value(('aiopgq.sleepers_' || aiopgq.slot(name))::regclass)
                        > aiopgq.milliseconds(clock_timestamp()) + 3600000)
        FROM unnest($1::text[]) AS name
        """,
        NAMES,
    )


async def test_python_and_postgresql_agree_on_the_slot_of_a_queue(sql):
    theirs = await sql.fetch(
        "SELECT aiopgq.slot(name) FROM unnest($1::text[]) WITH ORDINALITY AS n (name, at) ORDER BY at", NAMES
    )
    assert [row[0] for row in theirs] == [slot(name) for name in NAMES]


async def test_a_task_may_have_any_name_too(dsn):
    jobs = App(dsn)
    for name in NAMES:

        async def tell(name: str = name) -> str:
            return name

        jobs.task(name=name)(tell)
    async with jobs, jobs.worker():
        handles = [await jobs.task_named(name).enqueue() for name in NAMES]
        assert [await job.result(timeout=30) for job in handles] == NAMES


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_another_schema_works_from_end_to_end(dsn, schema, sql):
    jobs = app_with_queues(dsn, ["Mail"], schema=schema)
    applied = await jobs.migrate()
    assert applied
    assert not await jobs.migrate()
    tell = jobs.task_named("tell")

    async with jobs, jobs.worker(poll_interval=3600), asyncio.timeout(60):
        job = await tell.enqueue("batcher")
        assert await job.result(timeout=None) == "batcher"
        keyed = await tell.options(id=job.id).enqueue("again")
        assert keyed.existing

        async with sql.transaction():
            mine = await tell.options(connection=sql).enqueue("asyncpg")
        engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(engine) as session, session.begin():
            theirs = await tell.options(connection=session).enqueue("sqlalchemy")
        await engine.dispose()
        assert [await job.result(timeout=None) for job in (mine, theirs)] == ["asyncpg", "sqlalchemy"]

        waits = await tell.options(delay=3600).enqueue("later")
        assert await waits.cancel() == "cancelled"
        with pytest.raises(JobCancelled):
            await waits.result(timeout=None)
        assert (await waits.info()).status == "cancelled"
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.all_jobs") == 0
    await sql.execute("SET client_min_messages = warning")
    quoted = schema.replace('"', '""')
    await sql.execute(f'DROP SCHEMA "{quoted}" CASCADE')


def test_channels_of_different_schemas_differ():
    channels = [channel(schema, topic) for schema in ("a", "A", "a b") for topic in ("", "done", "cancel", "ping")]
    assert len(set(channels)) == len(channels)
    assert max(len(channel(schema, "cancel").encode()) for schema in SCHEMAS) <= 63
