"""The inbox: whatever a broker delivers again, the effect of a message happens once."""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from support import eventually

from aiopgq import App
from aiopgq._store.inbox import Inbox as Store
from aiopgq.errors import ConfigError, MessageHeld, UsageError

WAITS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ 'receive_message'
"""


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
def inbox(dsn):
    """Of an App that is never opened."""
    return App(dsn).inbox


@pytest.fixture
async def effects(sql):
    """A table of the application's own."""
    await sql.execute("DROP TABLE IF EXISTS effects; DELETE FROM aiopgq.inbox; CREATE TABLE effects (message text)")
    yield sql
    await sql.execute("DROP TABLE effects; DELETE FROM aiopgq.inbox")


@pytest.fixture
async def engine(dsn):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    yield engine
    await engine.dispose()


@asynccontextmanager
async def connected(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def two(dsn):
    """Two connections."""
    async with connected(dsn) as one, connected(dsn) as other:
        yield one, other


@asynccontextmanager
async def plain(dsn, engine):
    async with connected(dsn) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def pooled(dsn, engine):
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def session(dsn, engine):
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def begun_by_itself(dsn, engine):
    async with AsyncSession(engine) as session:
        yield session
        await session.commit()


@asynccontextmanager
async def scoped(dsn, engine):
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    async with scoped() as session, session.begin():
        yield scoped
    await scoped.remove()


@asynccontextmanager
async def core(dsn, engine):
    async with engine.begin() as connection:
        yield connection


EVERY_KIND = pytest.mark.parametrize(
    "kind", [plain, pooled, session, begun_by_itself, scoped, core], ids=lambda kind: kind.__name__
)


async def do(connection, message):
    statement = f"INSERT INTO effects VALUES ('{message}')"  # noqa: S608  # of the tests' own making
    if isinstance(connection, AsyncSession | AsyncConnection | async_scoped_session):
        await connection.execute(text(statement))
    else:
        await connection.execute(statement)


async def receive(inbox, connection, message="m", consumer="billing", **options):
    async with inbox.once(connection, consumer=consumer, message_id=message, **options) as first:
        if first:
            await do(connection, message)
    return first


async def done(effects):
    return [row[0] for row in await effects.fetch("SELECT message FROM effects ORDER BY message")]


async def known(sql):
    rows = await sql.fetch("SELECT consumer, message_id FROM aiopgq.inbox ORDER BY 1, 2")
    return [tuple(row) for row in rows]


# One after the other


@EVERY_KIND
async def test_a_duplicate_is_reported_and_its_transaction_goes_on(dsn, engine, inbox, effects, kind):
    said = []
    for _ in range(3):
        async with kind(dsn, engine) as connection:
            said.append(await receive(inbox, connection))
            await do(connection, "beside")

    assert said == [True, False, False]
    assert await done(effects) == ["beside"] * 3 + ["m"]


@EVERY_KIND
async def test_within_one_transaction_the_second_is_a_duplicate_as_well(dsn, engine, inbox, effects, kind):
    async with kind(dsn, engine) as connection:
        said = [await receive(inbox, connection) for _ in range(2)]

    assert said == [True, False]
    assert await done(effects) == ["m"]


@EVERY_KIND
async def test_a_failed_effect_takes_its_record_with_it(dsn, engine, inbox, effects, kind):
    async def fail():
        async with kind(dsn, engine) as connection, inbox.once(connection, consumer="billing", message_id="m") as first:
            assert first
            await do(connection, "m")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await known(effects), await done(effects)) == ([], [])

    async with kind(dsn, engine) as connection:
        assert await receive(inbox, connection)
    assert await done(effects) == ["m"]


@EVERY_KIND
async def test_an_error_that_never_reaches_the_transaction_leaves_the_message_for_another_try(
    dsn, engine, inbox, effects, kind
):
    async with kind(dsn, engine) as connection:
        with pytest.raises(ZeroDivisionError):
            async with inbox.once(connection, consumer="billing", message_id="m"):
                raise ZeroDivisionError
        assert await receive(inbox, connection, "other")

    assert await known(effects) == [("billing", "other")]


@EVERY_KIND
async def test_an_effect_cut_short_by_a_timeout_leaves_the_message_for_another_try(dsn, engine, inbox, effects, kind):
    async def cut_short(connection):
        async with asyncio.timeout(30) as limit, inbox.once(connection, consumer="billing", message_id="m"):
            # Now, and not in the middle of a statement, which would be the end of the whole transaction.
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    async with kind(dsn, engine) as connection:
        # Whoever catches it may well commit, as here.
        with pytest.raises(TimeoutError):
            await cut_short(connection)
        assert await receive(inbox, connection, "other")

    assert await known(effects) == [("billing", "other")]


async def test_an_error_after_the_commit_does_not_take_the_record_back(inbox, effects, dsn, engine):
    async def fail():
        async with AsyncSession(engine) as own, inbox.once(own, consumer="billing", message_id="m"):
            await do(own, "m")
            await own.commit()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await known(effects), await done(effects)) == ([("billing", "m")], ["m"])


async def test_an_error_after_the_commit_of_asyncpg_does_not_take_the_record_back_either(inbox, effects, two):
    async def fail():
        transaction = two[0].transaction()
        await transaction.start()
        async with inbox.once(two[0], consumer="billing", message_id="m"):
            await transaction.commit()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await known(effects) == [("billing", "m")]


async def test_a_statement_that_postgresql_refuses_leaves_its_own_error(inbox, effects, two):
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with two[0].transaction(), inbox.once(two[0], consumer="billing", message_id="m"):
            await two[0].execute("SELECT 1 / 0")

    assert await known(effects) == []


async def test_each_consumer_receives_a_message(inbox, effects, two):
    async with two[0].transaction():
        said = [await receive(inbox, two[0], consumer=name) for name in ("billing", "mail", "billing", "mail")]

    assert said == [True, True, False, False]
    assert await known(effects) == [("billing", "m"), ("mail", "m")]


async def test_a_uuid_and_its_text_name_one_message(inbox, effects, two):
    event = uuid4()
    async with two[0].transaction():
        assert await receive(inbox, two[0], event)
        assert not await receive(inbox, two[0], str(event))


@pytest.mark.parametrize(
    "message", ["é" * 500, "'; DROP TABLE effects; --", "$1:p1", " "], ids=["long", "sql", "$", "blank"]
)
async def test_any_text_is_an_id(inbox, effects, engine, two, message):
    async with two[0].transaction(), inbox.once(two[0], consumer=message[:100], message_id=message) as first:
        assert first
    async with AsyncSession(engine) as own, inbox.once(own, consumer=message[:100], message_id=message) as first:
        assert not first


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": ""},
        {"message_id": "x" * 1001},
        {"message_id": "a\0b"},
        {"message_id": "\ud800"},
        {"message_id": 7},
        {"message_id": None},
        {"consumer": ""},
        {"consumer": "x" * 201},
        {"timeout": -1},
        {"timeout": "1"},
    ],
    ids=repr,
)
async def test_what_cannot_be_stored_is_refused_before_the_transaction_notices(inbox, effects, two, wrong):
    async with two[0].transaction():
        with pytest.raises(ConfigError):
            async with inbox.once(two[0], **{"consumer": "billing", "message_id": "m", **wrong}):
                raise AssertionError
        assert await receive(inbox, two[0])


async def test_a_connection_of_no_kind_we_know_is_refused(inbox):
    with pytest.raises(TypeError, match="takes an asyncpg Connection"):
        async with inbox.once(object(), consumer="billing", message_id="m"):
            raise AssertionError


# Without a transaction


async def test_without_a_transaction_nothing_is_recorded(inbox, effects, two, engine):
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection, AsyncSession(autocommit) as own:
        for outside in (two[0], connection, own):
            with pytest.raises(UsageError, match="No transaction is open"):
                await receive(inbox, outside)
        assert (await known(effects), await done(effects)) == ([], [])

        await effects.execute("SELECT aiopgq.receive_message('billing', 'm')")
        for outside in (two[0], connection, own):
            with pytest.raises(UsageError, match="No transaction is open"):
                await receive(inbox, outside)

    assert (await known(effects), await done(effects)) == ([("billing", "m")], [])


async def test_without_a_transaction_a_connection_of_asyncpg_does_not_even_ask(inbox, effects, two):
    async with two[1].transaction():
        assert await receive(inbox, two[1])
        with pytest.raises(UsageError, match="No transaction is open"):
            await receive(inbox, two[0], timeout=0.01)


# At the same time


@asynccontextmanager
async def waiting(inbox, sql, connection, **options):
    """Have a second delivery wait for the first."""

    async def second():
        async with connection.transaction():
            return await receive(inbox, connection, **options)

    before = await sql.fetchval(WAITS)
    task = asyncio.create_task(second())
    await eventually(lambda: _more(sql, before), what="the second delivery waits")
    yield task
    await asyncio.wait([task], timeout=30)


async def _more(sql, before):
    return await sql.fetchval(WAITS) > before


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
async def test_a_second_delivery_waits_for_the_first_and_goes_by_its_outcome(inbox, effects, two, commits):
    transaction = two[0].transaction()
    await transaction.start()
    assert await receive(inbox, two[0])
    async with waiting(inbox, effects, two[1]) as second:
        await (transaction.commit() if commits else transaction.rollback())
        assert await asyncio.wait_for(second, 30) is not commits

    assert await done(effects) == ["m"]


async def test_if_the_first_is_killed_the_second_is_the_first(inbox, effects, two):
    await two[0].transaction().start()
    assert await receive(inbox, two[0])
    async with waiting(inbox, effects, two[1]) as second:
        await effects.execute("SELECT pg_terminate_backend($1)", two[0].get_server_pid())
        assert await asyncio.wait_for(second, 30)

    assert await done(effects) == ["m"]


async def test_of_many_that_wait_for_a_failure_one_is_the_first(dsn, inbox, effects, two):
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(connected(dsn)) for _ in range(5)]
        transaction = two[0].transaction()
        await transaction.start()
        assert await receive(inbox, two[0])
        waiters = [await stack.enter_async_context(waiting(inbox, effects, other)) for other in others]
        await transaction.rollback()
        said = await asyncio.wait_for(asyncio.gather(*waiters), 30)

    assert sorted(said) == [False] * 4 + [True]
    assert await done(effects) == ["m"]


async def test_whoever_waited_long_enough_is_told_who_holds_the_message_and_goes_on(inbox, effects, two):
    async with two[0].transaction(), two[1].transaction():
        assert await receive(inbox, two[0])
        with pytest.raises(MessageHeld) as told:
            await receive(inbox, two[1], timeout=0.05)
        assert await receive(inbox, two[1], "other")

    error = told.value
    assert (error.consumer, error.message_id, error.timeout) == ("billing", "m", 0.05)
    assert error.held_by == str(two[0].get_server_pid())
    assert f"(pid {error.held_by} in pg_stat_activity)" in str(error)
    assert isinstance(error, TimeoutError)
    assert await done(effects) == ["m", "other"]


async def test_a_table_that_somebody_locks_is_waited_for_no_longer_either(inbox, effects, two):
    async with two[0].transaction(), two[1].transaction():
        await two[0].execute("LOCK TABLE aiopgq.inbox")
        with pytest.raises(MessageHeld) as told:
            await receive(inbox, two[1], timeout=0.05)
        assert await two[1].fetchval("SELECT 1") == 1

    assert told.value.held_by is None


async def test_the_lock_timeout_of_the_caller_neither_counts_nor_changes(inbox, effects, two):
    transaction = two[0].transaction()
    await transaction.start()
    await two[1].execute("SET lock_timeout = '1ms'")
    assert await receive(inbox, two[0])
    async with waiting(inbox, effects, two[1], timeout=None) as second:
        # Seen waiting again, it has waited for longer than a millisecond.
        await eventually(lambda: effects.fetchval(WAITS), what="the second delivery still waits")
        assert not second.done()
        await transaction.rollback()
        assert await asyncio.wait_for(second, 30)

    async with two[1].transaction():
        await receive(inbox, two[1], "other")
        assert await two[1].fetchval("SHOW lock_timeout") == "1ms"


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_above_read_committed_an_unseen_record_is_a_serialization_failure(inbox, effects, two, level):
    async def late():
        async with two[1].transaction(isolation=level):
            await two[1].fetchval("SELECT count(*) FROM effects")
            async with two[0].transaction():
                assert await receive(inbox, two[0])
            await receive(inbox, two[1])

    with pytest.raises(asyncpg.SerializationError):
        await late()
    async with two[1].transaction(isolation=level):
        assert not await receive(inbox, two[1])
        assert await receive(inbox, two[1], "other")
    assert await done(effects) == ["m", "other"]


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_above_read_committed_whoever_waits_for_a_rollback_is_the_first(inbox, effects, two, level):
    transaction = two[0].transaction()
    await transaction.start()
    assert await receive(inbox, two[0])

    async def second():
        async with two[1].transaction(isolation=level):
            await two[1].fetchval("SELECT count(*) FROM effects")
            return await receive(inbox, two[1])

    task = asyncio.create_task(second())
    await eventually(lambda: effects.fetchval(WAITS), what="the second delivery waits")
    await transaction.rollback()

    assert await asyncio.wait_for(task, 30)
    assert await done(effects) == ["m"]


async def test_three_thousand_messages_fit_into_one_transaction_and_few_locks(inbox, effects, two):
    async with two[0].transaction():
        said = [await receive(inbox, two[0], f"m{number}") for number in range(3000)]
        locks = await effects.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")

    assert all(said)
    assert locks <= 1024


async def test_the_effect_happens_once_whatever_is_delivered_how_often_at_the_same_time(dsn, inbox, effects):
    chance = random.Random(7)
    messages = [f"m{number}" for number in range(100)]
    outcomes = {"first": 0, "duplicate": 0, "rolled back": 0}

    async def deliver(pool, message, fails):
        async with pool.acquire() as connection:
            try:
                async with connection.transaction():
                    first = await receive(inbox, connection, message)
                    assert not fails
            except AssertionError:
                outcomes["rolled back"] += 1
            else:
                outcomes["first" if first else "duplicate"] += 1

    async def consume(pool, number):
        order = messages[:]
        random.Random(number).shuffle(order)
        # At least once: what failed is delivered again, until it does not.
        while order:
            message, fails = order.pop(), chance.random() < 0.3
            await deliver(pool, message, fails)
            if fails:
                order.insert(0, message)

    async with asyncpg.create_pool(dsn, min_size=8, max_size=8) as pool, asyncio.timeout(60):
        await asyncio.gather(*(consume(pool, number) for number in range(8)))

    assert await done(effects) == sorted(messages)
    assert outcomes["first"] == 100
    assert outcomes["duplicate"] == 700
    assert outcomes["rolled back"] > 100


# Pruning


async def test_pruning_deletes_what_is_older_than_the_window_in_batches(dsn, effects):
    await effects.execute(
        "INSERT INTO aiopgq.inbox (consumer, message_id, received_at)"
        " SELECT 'billing', n::text, now() - make_interval(mins => n) FROM generate_series(1, 12000) n"
    )
    async with App(dsn) as jobs:
        assert await jobs.inspector.prune_inbox(60 * 500 + 30) == 11500
        assert await jobs.inspector.prune_inbox(60 * 500 + 30) == 0
        [seen] = await jobs.inspector.inbox()

    assert (seen.consumer, seen.messages) == ("billing", 500)
    assert seen.oldest < seen.newest


async def test_a_message_past_the_window_is_a_new_one(dsn, inbox, effects, two):
    async with two[0].transaction():
        assert await receive(inbox, two[0])
    async with App(dsn) as jobs:
        await jobs.inspector.prune_inbox(0)
    async with two[0].transaction():
        assert await receive(inbox, two[0])


async def test_pruning_passes_over_rows_that_somebody_has_locked(dsn, effects, two):
    await effects.execute(
        "INSERT INTO aiopgq.inbox SELECT now() - interval '1 day', 'billing', n::text FROM generate_series(1, 10) n"
    )
    async with two[0].transaction(), App(dsn) as jobs:
        await two[0].execute("DELETE FROM aiopgq.inbox WHERE message_id = '3'")
        assert await asyncio.wait_for(jobs.inspector.prune_inbox(60), 30) == 9


async def test_a_worker_prunes_by_the_window_of_its_app(dsn, effects):
    await effects.execute(
        "INSERT INTO aiopgq.inbox SELECT now() - make_interval(hours => n), 'billing', n::text"
        " FROM generate_series(1, 10) n"
    )
    jobs = App(dsn, inbox_window=3600 * 5.5)

    @jobs.task
    async def nothing() -> None: ...

    async def pruned():
        return await effects.fetchval("SELECT count(*) FROM aiopgq.inbox") == 5

    async with jobs, jobs.worker():
        await eventually(pruned, within=30, what="the worker has pruned the inbox")


async def test_batches_do_not_read_again_what_those_before_deleted(dsn, effects, two):
    """A reader that holds back the horizon keeps deleted rows in the index."""
    await effects.execute(
        "INSERT INTO aiopgq.inbox SELECT now() - make_interval(secs => 20000 - n), 'billing', n::text"
        " FROM generate_series(1, 15000) n; ANALYZE aiopgq.inbox"
    )
    async with two[0].transaction(isolation="repeatable_read"):
        await two[0].fetchval("SELECT count(*) FROM effects")
        [first] = await two[1].fetch("SELECT * FROM aiopgq.prune_inbox(60, '-infinity', 10000)")
        oldest = await two[1].fetchval("SELECT min(received_at) FROM aiopgq.inbox")
        [second] = await two[1].fetch("SELECT * FROM aiopgq.prune_inbox(60, $1, 10000)", first["up_to"])

    assert (first["pruned"], second["pruned"]) == (10000, 5000)
    assert first["up_to"] < oldest


# In SQL alone


async def test_in_sql_alone_a_message_is_received_once(effects, two):
    receive = "SELECT aiopgq.receive_message('billing', 'm')"
    async with two[0].transaction():
        assert await two[0].fetchval(receive) is True
        assert await two[0].fetchval(receive) is False
    assert await two[1].fetchval(receive) is False
    assert await two[1].fetchval("SELECT aiopgq.forget_message('billing', 'm')") is True
    assert await two[1].fetchval("SELECT aiopgq.forget_message('billing', 'm')") is False
    assert await two[1].fetchval(receive) is True


async def test_in_sql_alone_the_error_of_a_held_message_says_who_holds_it(effects, two):
    async with two[0].transaction():
        await two[0].fetchval("SELECT aiopgq.receive_message('billing', 'm')")
        with pytest.raises(asyncpg.LockNotAvailableError) as told:
            await two[1].fetchval("SELECT aiopgq.receive_message('billing', 'm', 0.05)")

    assert f"(process {two[0].get_server_pid()})" in str(told.value)
    assert "pg_stat_activity" in told.value.hint


@pytest.mark.parametrize(("consumer", "message"), [("", "m"), ("c" * 201, "m"), ("c", ""), ("c", "m" * 1001)])
async def test_in_sql_alone_names_have_their_bounds_too(effects, two, consumer, message):
    with pytest.raises(asyncpg.CheckViolationError, match="bytes"):
        await two[0].fetchval("SELECT aiopgq.receive_message($1, $2)", consumer, message)


async def test_the_store_of_another_schema_has_an_inbox_of_its_own(empty_dsn):
    jobs = App(empty_dsn, schema="Our jobs")
    await jobs.migrate()
    async with connected(empty_dsn) as connection, connection.transaction():
        assert await jobs.inbox.once(connection, consumer="billing", message_id="m").__aenter__()
        assert await connection.fetchval('SELECT count(*) FROM "Our jobs".inbox') == 1
    assert Store.__module__ == "aiopgq._store.inbox"
