"""Enqueue in the caller's transaction: his commit makes the job, his rollback leaves nothing."""

import asyncio
import json
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from support import eventually

from aiopgq import App
from aiopgq.errors import AppNotOpen, ArgumentError, NotYetCommitted, UsageError

ROWS = {"a": [1, "é", None, {"b": 2.5}]}


def app_on(dsn, **settings):
    jobs = App(dsn, **settings)

    @jobs.task(name="echo")
    async def echo(value: dict[str, object], headers: bool = False) -> dict[str, object]:
        return value

    return jobs


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
def jobs(dsn):
    """Never opened: a connection of the caller needs no open App."""
    return app_on(dsn)


@pytest.fixture
def echo(jobs):
    return jobs.task_named("echo")


@pytest.fixture
async def engine(dsn):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    yield engine
    await engine.dispose()


class Session(AsyncSession):
    """A session class of the user's own, as SQLModel has one."""


@asynccontextmanager
async def plain_connection(dsn, engine, **settings):
    connection = await asyncpg.connect(dsn, **settings)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction
    finally:
        await connection.close()


@asynccontextmanager
async def pooled_connection(dsn, engine):
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction


@asynccontextmanager
async def uncached_connection(dsn, engine):
    async with plain_connection(dsn, engine, statement_cache_size=0) as lent:
        yield lent


@asynccontextmanager
async def session(dsn, engine):
    async with AsyncSession(engine) as session:
        yield session, session


@asynccontextmanager
async def own_session_class(dsn, engine):
    async with Session(engine) as session:
        yield session, session


@asynccontextmanager
async def scoped_session(dsn, engine):
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    try:
        yield scoped, scoped
    finally:
        await scoped.remove()


@asynccontextmanager
async def core_connection(dsn, engine):
    async with engine.connect() as connection:
        yield connection, connection


EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [
        plain_connection,
        pooled_connection,
        uncached_connection,
        session,
        own_session_class,
        scoped_session,
        core_connection,
    ],
    ids=lambda kind: kind.__name__,
)


async def ids(sql):
    return [row[0] for row in await sql.fetch("SELECT id FROM aiopgq.all_jobs ORDER BY created_at")]


async def execute(connection, statement):
    """Run SQL on a connection of either driver."""
    if isinstance(connection, AsyncSession | AsyncConnection | async_scoped_session):
        return (await connection.execute(text(statement))).scalar()
    return await connection.fetchval(statement)


# Commit and rollback.


@EVERY_KIND
async def test_a_commit_makes_the_job_and_not_before(dsn, engine, echo, sql, kind):
    async with kind(dsn, engine) as (connection, transaction):
        job = await echo.options(connection=connection).enqueue(ROWS)
        assert await ids(sql) == []
        await transaction.commit()
    assert await ids(sql) == [job.id]
    assert json.loads(await sql.fetchval("SELECT args FROM aiopgq.jobs")) == {"value": ROWS}


@EVERY_KIND
async def test_a_rollback_leaves_nothing_though_the_enqueue_was_the_first_statement(dsn, engine, echo, sql, kind):
    async with kind(dsn, engine) as (connection, transaction):
        await echo.options(connection=connection).enqueue(ROWS)
        await transaction.rollback()
    assert await ids(sql) == []


@EVERY_KIND
async def test_the_jobs_of_a_bulk_share_the_transaction(dsn, engine, jobs, echo, sql, kind):
    calls = [echo.call({"n": number}) for number in range(10)]
    async with kind(dsn, engine) as (connection, transaction):
        await jobs.enqueue_many(calls, connection=connection)
        await transaction.rollback()
    assert await ids(sql) == []
    async with kind(dsn, engine) as (connection, transaction):
        handles = await jobs.enqueue_many(calls, connection=connection)
        await transaction.commit()
    assert {job.id for job in handles} == set(await ids(sql))
    assert [job.existing for job in handles] == [False] * 10


@EVERY_KIND
async def test_a_known_id_changes_nothing_and_the_transaction_goes_on(dsn, engine, echo, sql, kind):
    known = uuid4()
    async with kind(dsn, engine) as (connection, transaction):
        task = echo.options(connection=connection, id=known)
        assert [(await task.enqueue(ROWS)).existing for _ in range(2)] == [False, True]
        await transaction.commit()
    async with kind(dsn, engine) as (connection, transaction):
        assert (await echo.options(connection=connection, id=known).enqueue({})).existing
        assert await execute(connection, "SELECT 1") == 1
        await transaction.commit()
    assert await ids(sql) == [known]


async def test_the_life_of_a_job_follows_the_commit(dsn, engine):
    async with app_on(dsn) as jobs, jobs.worker():
        async with AsyncSession(engine) as session, session.begin():
            job = await jobs.task_named("echo").options(connection=session).enqueue(ROWS)
        assert await job.result(timeout=30) == ROWS


async def test_a_savepoint_takes_its_jobs_with_it(dsn, engine, echo, sql):
    async with AsyncSession(engine) as session:
        kept = await echo.options(connection=session).enqueue({"kept": 1})
        async with session.begin_nested() as savepoint:
            await echo.options(connection=session).enqueue({"gone": 1})
            await savepoint.rollback()
        await session.commit()
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        also_kept = await echo.options(connection=connection).enqueue({"kept": 2})
        savepoint = connection.transaction()
        await savepoint.start()
        await echo.options(connection=connection).enqueue({"gone": 2})
        await savepoint.rollback()
    await connection.close()
    assert await ids(sql) == [kept.id, also_kept.id]


async def test_whatever_ends_the_transaction_badly_leaves_no_job_and_no_notification(dsn, echo, sql):
    heard = []
    await sql.add_listener("aiopgq", lambda *notification: heard.append(notification[-1]))
    await sql.execute(
        "SELECT aiopgq.fall_asleep(ARRAY(SELECT generate_series(0, 15)), array_fill(0::bigint, ARRAY[16]), 3600)"
    )
    connection = await asyncpg.connect(dsn)

    async def fail(how):
        async with connection.transaction():
            await echo.options(connection=connection).enqueue(ROWS)
            await how()

    async def cancelled():
        raise asyncio.CancelledError

    async def too_slow():
        await connection.execute("SET LOCAL statement_timeout = 1")
        await connection.execute("SELECT pg_sleep(10)")

    with pytest.raises(asyncio.CancelledError):
        await fail(cancelled)
    with pytest.raises(asyncpg.QueryCanceledError):
        await fail(too_slow)
    await connection.execute("SET aiopgq.notify = off")
    await echo.options(connection=connection, queue="hushed").enqueue(ROWS)
    await connection.execute("RESET aiopgq.notify")
    await echo.options(connection=connection, queue="loud").enqueue(ROWS)
    await eventually(lambda: heard, what="the committed job is announced")
    assert heard == ["loud"]
    assert len(await ids(sql)) == 2
    await connection.close()


async def test_without_a_transaction_the_statement_is_one_of_its_own(dsn, echo, sql):
    connection = await asyncpg.connect(dsn)
    job = await echo.options(connection=connection).enqueue(ROWS)
    assert await ids(sql) == [job.id]
    await connection.close()


# Errors of ours.


@EVERY_KIND
async def test_an_error_of_ours_leaves_the_transaction_usable(dsn, engine, jobs, echo, sql, kind):
    async with kind(dsn, engine) as (connection, transaction):
        mine = echo.options(connection=connection)
        before = await execute(connection, "SELECT txid_current()")
        with pytest.raises(ArgumentError):
            await mine.enqueue({"nul": "\x00"})
        with pytest.raises(ArgumentError):
            await mine.enqueue(float("nan"))
        with pytest.raises(ArgumentError):
            mine.options(queue="")
        with pytest.raises(ArgumentError):
            await jobs.enqueue_many([echo.call({}), echo.call("no dict")], connection=connection)
        assert await execute(connection, "SELECT txid_current()") == before
        job = await mine.enqueue({"good": True})
        await transaction.commit()
    assert await ids(sql) == [job.id]


async def test_the_same_call_twice_is_one_job_and_no_error(dsn, jobs, echo, sql):
    call = echo.call(ROWS)
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        assert {job.id for job in await jobs.enqueue_many([call, call], connection=connection)} == {call.job.id}
    async with connection.transaction():
        [again] = await jobs.enqueue_many([call], connection=connection)
        assert again.existing
    await connection.close()
    assert await ids(sql) == [call.job.id]


async def test_a_bulk_uses_the_connection_its_calls_were_made_with(dsn, jobs, echo, sql):
    connection = await asyncpg.connect(dsn)
    mine = echo.options(connection=connection)
    transaction = connection.transaction()
    await transaction.start()
    await jobs.enqueue_many([mine.call({}), mine.call({})])
    await transaction.rollback()
    assert await ids(sql) == []
    with pytest.raises(UsageError, match="different connections"):
        await jobs.enqueue_many([mine.call({}), echo.call({})])
    await jobs.enqueue_many([mine.call({}), echo.call({})], connection=connection)
    await connection.close()
    assert len(await ids(sql)) == 2


@pytest.mark.parametrize("wrong", [object(), "postgresql://localhost/db", 1])
async def test_a_connection_of_no_known_kind_is_refused_with_a_list_of_those_that_work(jobs, echo, wrong):
    expected = r"asyncpg Connection .*AsyncSession or AsyncConnection, not .*\." + type(wrong).__name__
    with pytest.raises(TypeError, match=expected):
        echo.options(connection=wrong)
    with pytest.raises(TypeError, match=expected):
        await jobs.enqueue_many([echo.call({})], connection=wrong)


async def test_a_pool_and_a_blocking_session_are_no_connections(dsn, engine, echo):
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        for wrong in (pool, engine, AsyncSession(engine).sync_session):
            with pytest.raises(TypeError, match="AsyncSession"):
                echo.options(connection=wrong)


async def test_without_a_connection_the_error_says_how_to_open_the_app(jobs, echo):
    for enqueue in (echo.enqueue({}), echo.options(id=uuid4()).enqueue({}), jobs.enqueue_many([echo.call({})])):
        with pytest.raises(AppNotOpen, match=r"async with jobs:.*connection"):
            await enqueue


# Codecs of the caller.


async def json_as_text_functions(connection):
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def json_as_bytes(connection):
    """As with orjson, which works on bytes."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            encoder=lambda value: b"\x01" + json.dumps(value).encode(),
            decoder=lambda raw: json.loads(raw[1:]),
            schema="pg_catalog",
            format="binary",
        )


async def everything_as_text(connection):
    for name in ("uuid", "timestamptz", "text"):
        await connection.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")


@pytest.mark.parametrize("init", [json_as_text_functions, json_as_bytes, everything_as_text])
async def test_codecs_of_the_callers_pool_change_nothing(dsn, jobs, echo, sql, init):
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1, init=init) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        one = await echo.options(connection=connection, headers={"k": "v"}, delay=60).enqueue(ROWS)
        known = await echo.options(connection=connection, id=uuid4()).enqueue(ROWS)
        again = await echo.options(connection=connection, id=known.id).enqueue(ROWS)
        many = await jobs.enqueue_many([echo.call(ROWS)], connection=connection)
    assert [job.existing for job in (one, known, again, *many)] == [False, False, True, False]
    kinds = await sql.fetch(
        "SELECT jsonb_typeof(args->'value'->'a'), args->'value' = $1::jsonb FROM aiopgq.jobs", json.dumps(ROWS)
    )
    assert [tuple(row) for row in kinds] == [("array", True)] * 3
    assert await sql.fetchval("SELECT headers->>'k' FROM aiopgq.jobs WHERE id = $1", one.id) == "v"


@pytest.mark.parametrize("init", [json_as_text_functions, json_as_bytes])
async def test_a_worker_on_connections_with_their_own_codecs_runs_jobs(dsn, init):
    async def connect():
        connection = await asyncpg.connect(dsn)
        await init(connection)
        return connection

    async with app_on(None, connect=connect) as jobs, jobs.worker():
        job = await jobs.task_named("echo").enqueue(ROWS)
        assert await job.result(timeout=30) == ROWS
        assert (await job.info()).result == ROWS


# Isolation.


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_stricter_isolation_works_as_well(dsn, echo, sql, isolation):
    connection = await asyncpg.connect(dsn)
    async with connection.transaction(isolation=isolation):
        assert await connection.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0
        first = await echo.options(connection=connection).enqueue(ROWS)
        second = await echo.options(connection=connection, id=uuid4()).enqueue(ROWS)
    await connection.close()
    assert await ids(sql) == [first.id, second.id]


async def test_under_repeatable_read_an_id_committed_meanwhile_is_the_callers_to_retry(dsn, echo, sql):
    known = uuid4()
    connection = await asyncpg.connect(dsn)
    late = connection.transaction(isolation="repeatable_read")
    await late.start()
    await connection.fetchval("SELECT count(*) FROM aiopgq.jobs")
    await echo.options(connection=sql, id=known).enqueue(ROWS)
    with pytest.raises(asyncpg.SerializationError):
        await echo.options(connection=connection, id=known).enqueue(ROWS)
    await late.rollback()
    async with connection.transaction(isolation="repeatable_read"):
        assert (await echo.options(connection=connection, id=known).enqueue(ROWS)).existing
    await connection.close()


# Results of what is not committed.


@EVERY_KIND
async def test_waiting_inside_the_open_transaction_is_refused(dsn, engine, kind):
    async with app_on(dsn) as jobs:
        echo = jobs.task_named("echo")
        async with kind(dsn, engine) as (connection, transaction):
            job = await echo.options(connection=connection).enqueue(ROWS)
            for look in (job.result(timeout=None), job.info(), job.cancel()):
                with pytest.raises(NotYetCommitted, match="Commit the transaction first") as told:
                    await look
                assert told.value.job_id == job.id
            await transaction.commit()
        assert (await job.info()).status == "pending"


@EVERY_KIND
async def test_waiting_inside_a_later_transaction_of_the_same_connection_works(dsn, engine, kind):
    async with app_on(dsn) as jobs, jobs.worker():
        echo = jobs.task_named("echo")
        async with kind(dsn, engine) as (connection, transaction):
            job = await echo.options(connection=connection).enqueue(ROWS)
            await transaction.commit()
            if isinstance(connection, AsyncSession | AsyncConnection | async_scoped_session):
                await connection.execute(text("SELECT 1"))
                assert await job.result(timeout=30) == ROWS
            else:
                async with connection.transaction():
                    assert await job.result(timeout=30) == ROWS


# Plans that a migration outdates.


async def test_a_table_that_changes_under_open_connections_stops_nobody(dsn, engine, sql):
    changes = ["ADD COLUMN x integer", "ALTER COLUMN x TYPE bigint", "DROP COLUMN x"]
    connection = await asyncpg.connect(dsn)
    async with app_on(dsn) as jobs, jobs.worker():
        echo = jobs.task_named("echo")

        async def one_by_each():
            async with connection.transaction():
                plain = await echo.options(connection=connection).enqueue({"by": "asyncpg"})
                keyed = await echo.options(connection=connection, id=uuid4()).enqueue({"by": "key"})
            async with AsyncSession(engine) as session, session.begin():
                alchemy = await echo.options(connection=session).enqueue({"by": "sqlalchemy"})
            own = await echo.enqueue({"by": "batcher"})
            for job in (plain, keyed, alchemy, own):
                await job.result(timeout=30)

        await one_by_each()
        for change in changes:
            await sql.execute(f"ALTER TABLE aiopgq.jobs {change}")
            await one_by_each()
    attempts = await sql.fetch("SELECT attempts, status FROM aiopgq.all_jobs")
    assert [tuple(row) for row in attempts] == [(1, "completed")] * 16
    await connection.close()


async def test_a_table_that_changes_inside_the_callers_transaction_stops_him_not(dsn, echo, sql):
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await echo.options(connection=connection).enqueue(ROWS)
        await connection.execute("ALTER TABLE aiopgq.jobs ADD COLUMN y integer")
        await echo.options(connection=connection).enqueue(ROWS)
        await connection.execute("ALTER TABLE aiopgq.jobs ALTER COLUMN y TYPE bigint")
        await echo.options(connection=connection).enqueue(ROWS)
        await connection.execute("ALTER TABLE aiopgq.jobs DROP COLUMN y")
    await connection.close()
    assert len(await ids(sql)) == 3


async def test_an_error_of_postgresql_reaches_the_caller_as_his_driver_raises_it(dsn, engine, echo):
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await echo.options(connection=connection).enqueue(ROWS)
    await connection.close()
    async with AsyncSession(engine) as session:
        await session.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DBAPIError, match="read-only"):
            await echo.options(connection=session).enqueue(ROWS)
