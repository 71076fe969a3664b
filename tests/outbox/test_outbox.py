"""Stories of the outbox: what is added is published, in the order of each aggregate, whatever happens meanwhile."""

import asyncio
import random
from contextlib import AsyncExitStack
from functools import partial
from typing import ClassVar
from uuid import uuid4

import asyncpg
import msgspec
import pydantic
import pytest
from proxy import Proxy
from servers import Server
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support import eventually

from aiopgq import App, Backoff
from aiopgq._store.connection import ConnectSettings
from aiopgq._store.schema import migrate
from aiopgq.errors import AppNotOpen, ConfigError, UsageError

FAST = Backoff(base=0.05, factor=1, jitter=0)


@pytest.fixture
def relay(jobs, notes):
    """Makes a relay into the notes, quick to try again, and with nothing but notifications to wake it."""
    return partial(jobs.outbox.relay, notes, backoff=FAST, longest_pause=0.2, poll_interval=3600)


@pytest.fixture
async def other(dsn):
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def published(notes, numbers, *, within=10):
    await eventually(lambda: sorted(notes.numbers) == sorted(numbers), within=within, what=f"{numbers} are published")


# add


async def test_an_event_is_published_if_its_transaction_commits_and_only_then(relay, notes, sql, add):
    undone = sql.transaction()
    await undone.start()
    await add(sql, "a", 1)
    await undone.rollback()
    async with sql.transaction():
        await add(sql, "a", 2)

    await relay(burst=True).run()

    assert notes.numbers == [2]


async def test_a_session_of_sqlalchemy_adds_in_its_transaction(dsn, relay, notes, jobs):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    added = partial(jobs.outbox.add, aggregate_type="order", aggregate_id=1, event_type="Counted")
    async with AsyncSession(engine) as session:
        await added(session, payload=1)
        await session.rollback()
        await added(session, payload=2, headers={"tenant": "blue"})
        await session.commit()
    await engine.dispose()

    await relay(burst=True).run()

    [event] = notes.events
    assert (event.decoded(), event.headers) == (2, {"tenant": "blue"})


async def test_an_event_id_that_is_there_already_adds_nothing(relay, notes, sql, add):
    event_id = uuid4()
    assert await add(sql, "a", 1, event_id=event_id) == event_id
    assert await add(sql, "a", 2, event_id=event_id) == event_id

    await relay(burst=True).run()

    assert [(event.event_id, event.decoded()) for event in notes.events] == [(event_id, 1)]


class OrderPlaced(msgspec.Struct):
    aggregate_type: ClassVar[str] = "order"
    total: int


class OrderSent(pydantic.BaseModel):
    parcels: list[int]


async def test_a_typed_event_is_named_by_its_class(relay, notes, sql, jobs):
    await jobs.outbox.add_event(sql, OrderPlaced(total=42), aggregate_id=7)
    await jobs.outbox.add_event(sql, OrderSent(parcels=[1]), aggregate_id=7, aggregate_type="order")

    await relay(burst=True).run()

    assert [(event.aggregate_type, event.event_type, event.decoded()) for event in notes.events] == [
        ("order", "OrderPlaced", {"total": 42}),
        ("order", "OrderSent", {"parcels": [1]}),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"aggregate_type": ""},
        {"aggregate_id": "x" * 201},
        {"event_type": "a\x00b"},
        {"payload": float("nan")},
        {"payload": "a\x00b"},
        {"payload": object()},
        {"payload": "x" * 1_100_000},
        {"headers": {"a": "b\x00c"}},
    ],
    ids=["no type", "long id", "NUL in a type", "NaN", "NUL", "object", "too large", "NUL in a header"],
)
async def test_what_cannot_be_stored_is_refused_and_the_transaction_stays_usable(relay, notes, sql, jobs, add, wrong):
    right = {"aggregate_type": "order", "aggregate_id": 1, "event_type": "Counted", "payload": 1}
    async with sql.transaction():
        with pytest.raises((ConfigError, UsageError)):
            await jobs.outbox.add(sql, **{**right, **wrong})
        await add(sql, "a", 2)

    await relay(burst=True).run()

    assert notes.numbers == [2]


async def test_an_event_without_an_aggregate_type_says_how_to_give_one(sql, jobs):
    with pytest.raises(ConfigError, match=r"aggregate_type.*OrderSent"):
        await jobs.outbox.add_event(sql, OrderSent(parcels=[1]), aggregate_id=7)


async def test_a_relay_of_an_app_that_is_not_open_says_so(dsn, notes):
    with pytest.raises(AppNotOpen):
        async with App(dsn).outbox.relay(notes):
            pass


async def test_a_producer_may_add_events_and_nothing_else(databases, dsn, sql):
    role = f"producer_{uuid4().hex[:8]}"
    await sql.execute(f"CREATE ROLE {role}")
    try:
        await sql.execute(f"SELECT aiopgq.grant_producer('{role}')")
        await sql.execute(f"SET ROLE {role}")

        await sql.execute("SELECT aiopgq.add_event('order', '1', 'Counted', '1')")

        for forbidden in ("TABLE aiopgq.outbox", "SELECT aiopgq.skip_events('{}')", "DELETE FROM aiopgq.outbox"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await sql.execute(forbidden)
    finally:
        await sql.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


# wake


async def test_a_relay_that_sleeps_is_woken_by_a_commit(relay, notes, sql, add, other):
    async with relay():
        for number in range(5):
            await eventually(lambda: asleep(other), what="the relay sleeps")
            await add(sql, "a", number)
            await published(notes, range(number + 1))


async def asleep(sql):
    return await sql.fetchval("SELECT last_value > aiopgq.milliseconds(clock_timestamp()) FROM aiopgq.sleepers_16")


async def test_nobody_is_notified_while_no_relay_sleeps(sql, add, dsn):
    heard = []
    await sql.add_listener("aiopgq:outbox", lambda *told: heard.append(told))

    await add(sql, "a", 1)
    await sql.execute("SELECT aiopgq.skip_events('{}')")  # notifies in any case, so that there is an end to wait for
    await eventually(lambda: heard, what="a notification")

    assert [told[3] for told in heard] == ["mended"]


# order


async def test_an_open_transaction_holds_back_its_own_aggregate_and_no_other(relay, notes, sql, other, add):
    early = sql.transaction()
    await early.start()
    await add(sql, "a", 1)
    async with relay():
        await add(other, "b", 2)
        await add(other, "a", 3)
        await published(notes, [2])
        await add(other, "b", 4)
        await published(notes, [2, 4])

        await early.commit()

        await published(notes, [1, 2, 3, 4])
    assert notes.by_aggregate == {"a": [1, 3], "b": [2, 4]}


async def test_a_transaction_that_rolls_back_lets_those_behind_it_go(relay, notes, sql, other, add):
    undone = sql.transaction()
    await undone.start()
    await add(sql, "a", 1)
    async with relay():
        await add(other, "a", 2)
        await add(other, "b", 3)
        await published(notes, [3])

        await undone.rollback()

        await published(notes, [2, 3])


async def test_an_aggregate_that_always_has_an_open_transaction_is_published_all_the_same(relay, notes, dsn, add):
    async with AsyncExitStack() as stack, relay():
        first, second = [await stack.enter_async_context(_Connected(dsn)) for _ in range(2)]
        older = first.transaction()
        await older.start()
        await add(first, "a", 0)
        number, deadline = 0, asyncio.get_running_loop().time() + 30
        while len(notes.numbers) < 20:
            assert asyncio.get_running_loop().time() < deadline, f"{number} committed, published are {notes.numbers}"
            newer = second.transaction()
            await newer.start()
            number += 1
            await add(second, "a", number)
            # Between two commits there is never a moment without an open transaction.
            await older.commit()
            await second.execute("SELECT pg_sleep(0.02)")
            first, second, older = second, first, newer
        await older.commit()
        await published(notes, range(number + 1))
    assert notes.numbers == list(range(number + 1))


class _Connected:
    def __init__(self, dsn):
        self._dsn = dsn

    async def __aenter__(self):
        self._connection = await asyncpg.connect(self._dsn)
        return self._connection

    async def __aexit__(self, *_):
        await self._connection.close()


@pytest.mark.parametrize("restarts", [False, True], ids=["the server stays", "the server restarts"])
async def test_a_prepared_transaction_counts_as_unfinished(notes, tmp_path, restarts):
    # By default a server prepares no transactions.
    server = Server(tmp_path / "server", max_prepared_transactions=2)
    server.make()
    await server.start()

    async def add(connection, aggregate, number):
        await jobs.outbox.add(
            connection, aggregate_type="order", aggregate_id=aggregate, event_type="Counted", payload=number
        )

    try:
        await migrate(ConnectSettings(server.dsn, "aiopgq"))
        async with App(server.dsn) as jobs:
            async with _Connected(server.dsn) as early, _Connected(server.dsn) as late:
                await early.execute("BEGIN")
                await add(early, "a", 1)
                await add(late, "a", 2)
                relay = jobs.outbox.relay(notes)
                await relay.__aenter__()
                # By now the relay knows the transaction, by the name it has before a restart.
                await add(late, "b", 0)
                await published(notes, [0])
                await early.execute("PREPARE TRANSACTION 'late'")
            if restarts:
                await server.stop()
                await server.start()
            async with _Connected(server.dsn) as sql:
                await add(sql, "b", 3)
                await published(notes, [0, 3], within=20)
                await sql.execute("COMMIT PREPARED 'late'")
                await published(notes, [0, 1, 2, 3])
            await relay.__aexit__(None, None, None)
    finally:
        await server.stop("immediate")
    assert notes.by_aggregate["a"] == [1, 2]


async def test_many_writers_that_commit_late_lose_nothing_and_keep_the_order_of_ids(relay, notes, dsn, sql, jobs):
    async def write(seed):
        chance = random.Random(seed)
        async with _Connected(dsn) as connection:
            for _ in range(40):
                async with connection.transaction():
                    for _ in range(chance.randint(1, 3)):
                        await jobs.outbox.add(
                            connection,
                            aggregate_type="order",
                            aggregate_id=chance.randint(1, 5),
                            event_type="Counted",
                            payload=0,
                        )
                    await connection.execute("SELECT pg_sleep($1)", chance.random() * 0.02)

    async with relay(), relay():
        await asyncio.gather(*map(write, range(20)))
        await eventually(lambda: nothing_left(jobs), within=30, what="all are published")

    assert len(notes.events) == await sql.fetchval("SELECT count(*) FROM aiopgq.outbox")
    for aggregate in {event.aggregate for event in notes.events}:
        ids = [event.id for event in notes.events if event.aggregate == aggregate]
        assert ids == sorted(ids)


async def nothing_left(jobs):
    return (await jobs.outbox.lag()).unpublished == 0


async def test_adding_events_of_two_aggregates_in_opposite_orders_does_not_deadlock(sql, other, add, relay, notes):
    async with sql.transaction(), other.transaction():
        await add(sql, "a", 1)
        await add(other, "b", 2)
        await add(sql, "b", 3)
        await add(other, "a", 4)

    await relay(burst=True).run()

    assert sorted(notes.numbers) == [1, 2, 3, 4]


async def test_large_events_are_read_a_few_at_a_time(relay, notes, sql, add, jobs):
    await sql.execute("ALTER TABLE aiopgq.outbox ALTER payload SET STORAGE EXTERNAL")
    for number in range(6):
        await add(sql, number, "x" * 500_000)
    read = [len(await sql.fetch(LOOK, 0, size)) for size in (1, 1_200_000, 10_000_000)]

    await relay(burst=True).run()

    assert read == [1, 3, 6]
    assert len(notes.events) == 6


LOOK = "SELECT id FROM aiopgq.next_events(array_fill(1000000::bigint, '{256}'), $1, 1000, $2)"


# poison


async def test_a_poison_event_blocks_only_its_aggregate_which_goes_on_in_order(relay, notes, sql, add, jobs):
    notes.refuses = [1]
    for number in range(6):
        await add(sql, "ab"[number % 2], number)
    async with relay():
        await published(notes, [0, 2, 4])
        await eventually(lambda: lag(jobs, retrying=1, blocked=2), what="its successors are blocked")
        # One that comes later is met by the next look, and blocked as well.
        await add(sql, "b", 7)
        await add(sql, "a", 6)
        await published(notes, [0, 2, 4, 6])
        await eventually(lambda: lag(jobs, retrying=1, blocked=3), what="the late one is blocked")
        await eventually(lambda: tries(notes, 1) >= 3, what="it is tried again")

        notes.refuses = []

        await published(notes, range(8))
    assert notes.by_aggregate == {"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]}


def tries(notes, number):
    return [event.decoded() for event in notes.tried].count(number)


async def test_the_lag_tells_the_age_of_the_oldest_event_that_is_to_be_published(sql, add, jobs):
    assert await jobs.inspector.outbox_lag() == (0, None, 0, 0, 0, 0)
    for number in (1, 2):
        await add(sql, number, number)
    await sql.execute("UPDATE aiopgq.outbox SET created_at = now() - interval '1 hour' WHERE id = 1")

    lag = await jobs.inspector.outbox_lag()

    assert lag.unpublished == 2
    assert 3600 <= lag.oldest_seconds < 3700


async def lag(jobs, **expected):
    found = (await jobs.outbox.lag())._asdict()
    return all(found[name] == value for name, value in expected.items())


async def test_a_poison_event_is_set_aside_after_its_tries_and_can_be_retried(relay, notes, sql, add, jobs):
    notes.refuses = [1]
    for number in (1, 2):
        await add(sql, "a", number)
    async with relay(on_poison="set_aside", max_attempts=3):
        await published(notes, [2])
        [event] = await jobs.outbox.events(status="set aside")
        assert (event.payload, event.attempts, event.last_error) == (1, 3, "ValueError: unlucky")
        assert tries(notes, 1) == 3

        notes.refuses = []
        assert await jobs.outbox.retry([event.event_id]) == [event.event_id]

        await published(notes, [1, 2])


async def test_a_poison_event_that_is_skipped_lets_its_aggregate_go(relay, notes, sql, add, jobs):
    notes.refuses = [1]
    for number in (1, 2, 3):
        await add(sql, "a", number)
    async with relay(backoff=Backoff(base=3600, cap=3600)):
        [event] = await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held")
        await eventually(lambda: lag(jobs, blocked=2), what="its successors are blocked")

        assert await jobs.outbox.skip([event.event_id]) == [event.event_id]

        await published(notes, [2, 3])
    assert notes.numbers == [2, 3]
    assert [event.payload for event in await jobs.outbox.events(status="skipped")] == [1]


async def test_retry_does_not_wait_for_the_next_try(relay, notes, sql, add, jobs):
    notes.refuses = [1]
    await add(sql, "a", 1)
    async with relay(backoff=Backoff(base=3600, cap=3600)):
        await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held")
        notes.refuses = []

        assert len(await jobs.outbox.retry()) == 1

        await published(notes, [1])


async def test_a_publisher_that_breaks_at_one_event_holds_that_one_only(relay, notes, sql, add, jobs):
    notes.breaks = [3]
    for number in range(10):
        await add(sql, number, number)
    async with relay():
        await published(notes, [number for number in range(10) if number != 3])
        [event] = await eventually(lambda: jobs.outbox.events(status="retry"), what="that one is held")

    assert (event.payload, event.last_error) == (3, "KeyError: 3")


# the broker is away


async def test_while_the_broker_is_away_no_attempt_is_spent_and_one_line_is_said(relay, notes, sql, add, jobs, caplog):
    notes.away = True
    for number in range(10):
        await add(sql, number % 2, number)
    async with relay():
        await eventually(lambda: len(notes.tried) > 10, what="it is tried again and again")
        assert {event.attempts for event in await jobs.outbox.events(status="unpublished")} == {0}

        notes.away = False

        await published(notes, range(10))
    said = [record for record in caplog.records if "cannot publish" in record.message and record.levelname != "DEBUG"]
    assert len(said) == 1
    assert notes.by_aggregate == {"0": [0, 2, 4, 6, 8], "1": [1, 3, 5, 7, 9]}
    assert notes.closed == 1


async def test_a_publisher_that_hangs_is_given_up_and_tried_again(relay, notes, sql, add):
    notes.gate.clear()
    await add(sql, "a", 1)
    async with relay(publish_timeout=0.2):
        await eventually(lambda: len(notes.tried) > 1, what="it is tried again")
        notes.gate.set()
        await published(notes, [1])


async def test_what_was_published_and_not_marked_is_published_again(relay, notes, sql, add, jobs):
    await add(sql, "a", 1)
    blocker = sql.transaction()
    await blocker.start()
    await sql.execute("SELECT FROM aiopgq.outbox FOR UPDATE")
    dying = relay(lease=2)
    await dying.__aenter__()
    await published(notes, [1])
    dying._main.cancel()  # in the middle of the mark
    await asyncio.wait([dying._main])
    await blocker.rollback()
    await eventually(lambda: nobody_marks(sql), what="the server has noticed")
    if await nothing_left(jobs):
        # The server may have carried out what nobody waited for.
        await sql.execute("UPDATE aiopgq.outbox SET published_at = NULL")

    await relay(burst=True).run()

    assert notes.numbers == [1, 1]


async def nobody_marks(sql):
    return not await sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'aiopgq relay'")


# several relays


async def test_relays_share_the_shards_and_give_them_back(relay, sql, jobs):
    async def held():
        rows = await sql.fetch(
            "SELECT count(*) AS n FROM aiopgq.outbox_shards JOIN aiopgq.relays r ON holder = r.id GROUP BY r.id"
        )
        return sorted(row["n"] for row in rows)

    async with relay(lease=2) as first:
        assert await held() == [256]
        async with relay(lease=2):
            await eventually(lambda: fair(held, [128, 128]), what="two share")
        await eventually(lambda: fair(held, [256]), what="one has all again")
        assert first.published == 0
    assert await held() == []
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.relays") == 0


async def fair(held, expected):
    return await held() == expected


async def test_a_relay_cut_off_from_the_database_stops_and_another_takes_over(dsn, notes, relay, sql, add, caplog):
    async with Proxy(dsn) as proxy, App(proxy.dsn) as cut:
        lost = cut.outbox.relay(notes, lease=2, backoff=FAST)
        async with lost:
            await add(sql, "a", 1)
            await published(notes, [1])
            proxy.black_hole = True
            for number in (2, 3, 4):
                await add(sql, "a", number)

            async with relay(lease=2):
                await eventually(lambda: {2, 3, 4} <= set(notes.numbers), within=20, what="the other one publishes")
                proxy.black_hole = False
                proxy.cut()
                await eventually(lambda: holders(sql, 2), within=20, what="the first one is back")
    assert notes.by_aggregate == {"a": [1, 2, 3, 4]}
    assert "has lost its lease" in caplog.text
    assert "is dead" in caplog.text


async def holders(sql, expected):
    return await sql.fetchval("SELECT count(DISTINCT holder) FROM aiopgq.outbox_shards") == expected


async def test_a_relay_whose_shards_were_taken_writes_nothing(sql, add):
    await add(sql, "a", 1)
    event = await sql.fetchval("SELECT id FROM aiopgq.outbox")
    old, new = uuid4(), uuid4()
    for one in (old, new):
        await sql.execute("SELECT aiopgq.register_relay($1, 'r', 'h', 1, 15)", one)
    await sql.execute("SELECT aiopgq.take_shards($1, 256)", old)
    await sql.execute("SELECT aiopgq.forget_relay($1, NULL)", old)
    await sql.execute("SELECT aiopgq.take_shards($1, 256)", new)

    assert await sql.fetch("SELECT aiopgq.mark_published($1, $2)", old, [event]) == []
    assert await sql.fetch("SELECT aiopgq.hold_events($1, $2, '{x}', '{1}', NULL)", old, [event]) == []
    assert await sql.fetchval("SELECT aiopgq.block_events($1, $2)", old, [event]) == 0
    assert not await sql.fetchval("SELECT alive FROM aiopgq.relay_beat($1)", old)
    assert len(await sql.fetch("SELECT aiopgq.mark_published($1, $2)", new, [event])) == 1


async def test_a_relay_that_lives_is_not_forgotten_by_a_beat_that_has_passed(sql):
    one = uuid4()
    await sql.execute("SELECT aiopgq.register_relay($1, 'r', 'h', 1, 15)", one)
    await sql.execute("SELECT aiopgq.relay_beat($1)", one)

    assert not await sql.fetchval("SELECT aiopgq.forget_relay($1, 0)", one)
    assert await sql.fetchval("SELECT aiopgq.forget_relay($1, 1)", one)


# upkeep


async def test_published_events_are_pruned_and_unpublished_ones_are_not(relay, notes, sql, add, jobs):
    notes.refuses = [2]
    for number in (1, 2):
        await add(sql, number, number)
    async with relay(retention=0):
        await published(notes, [1])
        await eventually(lambda: prunes(jobs), what="the published one is pruned")

    assert [event.payload for event in await jobs.outbox.events()] == [2]


async def prunes(jobs):
    return await jobs.outbox.prune(0) >= 0 and len(await jobs.outbox.events()) == 1


async def test_a_relay_may_be_entered_again_but_not_twice_at_once(relay, notes, sql, add):
    one = relay()
    async with one:
        with pytest.raises(UsageError):
            await one.__aenter__()
    await add(sql, "a", 1)
    async with one:
        await published(notes, [1])
