"""Subscribers: a handler of a broker's messages whose effect happens once, and the broker is told after the commit."""

import asyncio
import logging
from contextlib import asynccontextmanager

import aio_pika
import asyncpg
import nats
import pytest
from brokers import Nats, Rabbit
from nats.js.api import ConsumerConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from support import eventually

from aiopgq import App
from aiopgq.errors import ConfigError


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
def jobs(dsn):
    """Of an App that is never opened."""
    return App(dsn)


@pytest.fixture
async def effects(sql):
    """A table of the application's own."""
    await sql.execute("DROP TABLE IF EXISTS effects; DELETE FROM aiopgq.inbox; CREATE TABLE effects (message text)")
    yield sql
    await sql.execute("DROP TABLE effects; DELETE FROM aiopgq.inbox")


@pytest.fixture
async def pool(dsn):
    async with asyncpg.create_pool(dsn, min_size=1, max_size=8) as pool:
        yield pool


async def done(effects):
    return [row[0] for row in await effects.fetch("SELECT message FROM effects ORDER BY message")]


def these(effects, messages):
    """Make a check that the effects are these."""

    async def check():
        return await done(effects) == sorted(messages)

    return check


class Handling:
    """Knows how many deliveries are being handled, so that none outlives its test."""

    def __init__(self, receive):
        self._receive = receive
        self._under_way = 0

    async def deliver(self, message):
        self._under_way += 1
        try:
            await self._receive(message)
        finally:
            self._under_way -= 1

    async def over(self):
        await eventually(lambda: self._under_way == 0, within=30, what="no delivery is being handled")


# A broker each, with one way to publish, to have a handler called, and to ask what is left.


@pytest.fixture(scope="module")
def nats_server():
    with Nats() as server:
        yield server


@pytest.fixture(scope="module")
def rabbit_server():
    with Rabbit() as server:
        yield server


class Jetstream:
    def __init__(self, connection):
        self.connection = connection
        self.stream = connection.jetstream()

    @classmethod
    @asynccontextmanager
    async def open(cls, server):
        connection = await nats.connect(server.url)
        broker = cls(connection)
        await broker.stream.add_stream(name="orders", subjects=["orders"], duplicate_window=0.1)
        try:
            yield broker
        finally:
            await broker.stream.delete_stream("orders")
            await connection.close()

    async def publish(self, body, message_id):
        # A name by which JetStream itself would drop the second: here it is to come twice.
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        answer = await self.stream.publish("orders", body.encode(), headers=headers)
        if answer.duplicate:
            await self.publish(body, message_id)

    async def consume(self, receive, **options):
        config, handling = ConsumerConfig(ack_wait=options.get("wait", 30)), Handling(receive)
        subscription = await self.stream.subscribe(
            "orders", durable="billing", cb=handling.deliver, manual_ack=True, config=config
        )

        async def stop():
            # Ending the subscription would cancel what is being handled.
            await handling.over()
            await subscription.unsubscribe()

        return stop

    async def left(self):
        info = await self.stream.consumer_info("orders", "billing")
        return info.num_pending + info.num_ack_pending

    @staticmethod
    def body(message):
        return message.data.decode()


class RabbitQueue:
    def __init__(self, connection, channel, queue):
        self.connection, self.channel, self.queue = connection, channel, queue

    @classmethod
    @asynccontextmanager
    async def open(cls, server):
        connection = await aio_pika.connect(server.url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=8)
            queue = await channel.declare_queue("orders", durable=True)
            try:
                yield cls(connection, channel, queue)
            finally:
                async with connection.channel() as other:
                    await other.queue_delete("orders")

    async def publish(self, body, message_id):
        await self.channel.default_exchange.publish(
            aio_pika.Message(body.encode(), message_id=message_id), routing_key="orders"
        )

    async def consume(self, receive, **_):
        handling = Handling(receive)
        tag = await self.queue.consume(handling.deliver)

        async def stop():
            await self.queue.cancel(tag)
            await handling.over()

        return stop

    async def left(self):
        # On a channel of its own, so that what is delivered and not answered yet counts too.
        async with self.connection.channel() as other:
            await self.channel.close()
            return (await other.declare_queue("orders", passive=True)).declaration_result.message_count

    @staticmethod
    def body(message):
        return message.body.decode()


@pytest.fixture(params=[(Jetstream, "nats_server"), (RabbitQueue, "rabbit_server")], ids=["nats", "rabbitmq"])
async def broker(request):
    kind, server = request.param
    async with kind.open(request.getfixturevalue(server)) as broker:
        yield broker


def inserting(broker, fails=()):
    """Make a handler with an effect, which fails the first time on some messages."""
    fails = set(fails)

    async def handle(message, connection):
        body = broker.body(message)
        await connection.execute("INSERT INTO effects VALUES ($1)", body)
        if body in fails:
            fails.remove(body)
            raise ZeroDivisionError

    return handle


# Stories


async def test_each_message_has_its_effect_once_however_often_it_is_published(broker, jobs, pool, effects):
    receive = jobs.subscriber(consumer="billing", transactions=pool)(inserting(broker))
    received = []

    async def deliver(message):
        await receive(message)
        received.append(message)

    stop = await broker.consume(deliver)
    for number in range(20):
        await broker.publish(f"{number % 10}", f"event-{number % 10}")
    await eventually(lambda: len(received) == 20, within=30, what="all deliveries are handled")
    await stop()

    assert await done(effects) == [f"{number}" for number in range(10)]
    assert await broker.left() == 0


async def test_what_fails_is_rolled_back_and_delivered_again(broker, jobs, pool, effects, caplog):
    receive = jobs.subscriber(consumer="billing", transactions=pool, pause=0.01)(inserting(broker, fails=["b"]))
    stop = await broker.consume(receive)
    for body in "abc":
        await broker.publish(body, f"event-{body}")

    await eventually(these(effects, "abc"), within=30, what="all effects are there")
    await stop()
    [said] = [one for one in caplog.records if one.name == "aiopgq.subscriber"]
    assert (said.levelno, said.getMessage()) == (
        logging.ERROR,
        "consumer 'billing' failed on message event-b; it is delivered again in 0.01 s",
    )
    assert said.exc_info[0] is ZeroDivisionError


async def test_the_broker_is_told_after_the_commit_and_not_before(broker, jobs, dsn, pool, effects):
    """A transaction that cannot commit is one the broker must not hear of."""
    refused = asyncio.Event()
    refusing = [True]

    @asynccontextmanager
    async def transactions():
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                yield connection
                if refusing:
                    refusing.clear()
                    refused.set()
                    await pool.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        finally:
            connection.terminate()

    receive = jobs.subscriber(consumer="billing", transactions=transactions, pause=0.01)(inserting(broker))
    stop = await broker.consume(receive)
    await broker.publish("a", "event-a")

    await asyncio.wait_for(refused.wait(), 30)
    await eventually(these(effects, "a"), within=30, what="the message came again")
    await stop()


async def test_a_consumer_that_died_after_the_commit_leaves_a_duplicate_that_is_only_answered(
    broker, jobs, pool, effects
):
    calls = []

    async def handle(message, connection):
        calls.append(broker.body(message))
        await connection.execute("INSERT INTO effects VALUES ($1)", broker.body(message))

    # What a consumer before has committed and not told the broker.
    await effects.execute("INSERT INTO effects VALUES ('a'); SELECT aiopgq.receive_message('billing', 'event-a')")
    stop = await broker.consume(jobs.subscriber(consumer="billing", transactions=pool)(handle))
    await broker.publish("a", "event-a")
    await broker.publish("b", "event-b")

    await eventually(these(effects, "ab"), within=30, what="both effects are there")
    await stop()
    assert calls == ["b"]


async def test_a_message_held_by_another_transaction_comes_again(broker, jobs, pool, effects, dsn, caplog):
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT aiopgq.receive_message('billing', 'event-a')")
    receive = jobs.subscriber(consumer="billing", transactions=pool, timeout=0.01, pause=0.01)(inserting(broker))
    stop = await broker.consume(receive)
    await broker.publish("a", "event-a")

    def told():
        return [one for one in caplog.records if "is held by a transaction" in one.getMessage()]

    await eventually(told, within=30, what="the subscriber says who holds it")
    assert f"(pid {other.get_server_pid()} in" in told()[0].getMessage()
    await transaction.rollback()
    await eventually(these(effects, "a"), within=30, what="the message came again")
    await stop()
    await other.close()


@pytest.mark.parametrize("kind", ["sessionmaker", "engine", "connection"])
async def test_transactions_come_from_whatever_the_application_uses(broker, jobs, dsn, effects, kind):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    connection = await asyncpg.connect(dsn)
    source = {"sessionmaker": async_sessionmaker(engine), "engine": engine, "connection": connection}[kind]
    seen = set()

    async def handle(message, lent):
        seen.add(type(lent).__name__)
        statement = f"INSERT INTO effects VALUES ('{broker.body(message)}')"  # noqa: S608  # of the test's own making
        await lent.execute(statement if lent is connection else text(statement))

    stop = await broker.consume(jobs.subscriber(consumer="billing", transactions=source)(handle))
    for body in "abcabc":
        await broker.publish(body, f"event-{body}")
    await eventually(these(effects, "abc"), within=30, what="all effects are there")
    await stop()
    await connection.close()
    await engine.dispose()

    assert seen == {{"sessionmaker": AsyncSession.__name__, "engine": "AsyncConnection"}.get(kind, "Connection")}


async def test_the_id_may_be_anywhere_in_the_message(broker, jobs, pool, effects):
    receive = jobs.subscriber(consumer="billing", transactions=pool, message_id=broker.body)(inserting(broker))
    stop = await broker.consume(receive)
    for number in range(3):
        await broker.publish("a", f"event-{number}")
    await broker.publish("b", "event-b")
    await eventually(these(effects, "ab"), within=30, what="both effects are there")
    await stop()

    assert await effects.fetchval("SELECT array_agg(message_id ORDER BY message_id) FROM aiopgq.inbox") == ["a", "b"]


# NATS alone


@pytest.fixture
async def jetstream(nats_server):
    async with Jetstream.open(nats_server) as broker:
        yield broker


async def test_a_message_without_an_id_is_known_by_its_place_in_the_stream(jetstream, jobs, pool, effects):
    stop = await jetstream.consume(
        jobs.subscriber(consumer="billing", transactions=pool, pause=0.01)(inserting(jetstream, fails=["a"]))
    )
    for body in "ab":
        await jetstream.publish(body, None)
    await eventually(these(effects, "ab"), within=30, what="both effects are there")
    await stop()

    ids = await effects.fetchval("SELECT array_agg(message_id ORDER BY message_id) FROM aiopgq.inbox")
    assert ids == ["orders:1", "orders:2"]


async def test_messages_that_are_pulled_are_received_by_calling_the_subscriber(jetstream, jobs, pool, effects):
    receive = jobs.subscriber(consumer="billing", transactions=pool)(inserting(jetstream))
    for body in "aab":
        await jetstream.publish(body, f"event-{body}")
    pulling = await jetstream.stream.pull_subscribe("orders", durable="billing")
    for message in await pulling.fetch(3, timeout=30):
        await receive(message)

    assert await done(effects) == ["a", "b"]
    assert await jetstream.left() == 0


async def test_a_handler_that_outlasts_the_broker_s_patience_has_its_effect_once(jetstream, jobs, pool, effects):
    deliveries, going = [], asyncio.Event()

    async def handle(message, connection):
        await connection.execute("INSERT INTO effects VALUES ($1)", jetstream.body(message))
        await going.wait()

    receive = jobs.subscriber(consumer="billing", transactions=pool)(handle)
    running = []

    async def deliver(message):
        deliveries.append(message)
        running.append(asyncio.create_task(receive(message)))
        if len(deliveries) == 2:
            going.set()

    stop = await jetstream.consume(deliver, wait=0.2)
    await jetstream.publish("a", "event-a")
    await asyncio.wait_for(going.wait(), 30)
    await asyncio.wait(running, timeout=30)
    await stop()

    assert await done(effects) == ["a"]


# Wrong use


@pytest.mark.parametrize("wrong", [{"consumer": ""}, {"timeout": -1}, {"pause": "1"}], ids=repr)
async def test_a_subscriber_is_checked_when_it_is_declared(jobs, pool, wrong):
    with pytest.raises(ConfigError):
        jobs.subscriber(**{"consumer": "billing", "transactions": pool, **wrong})


async def test_a_source_without_transactions_is_refused_when_it_is_declared(jobs):
    with pytest.raises(TypeError, match="transactions takes an asyncpg Pool or Connection"):
        jobs.subscriber(consumer="billing", transactions="postgresql://")


async def test_a_message_without_any_id_says_what_to_do_and_is_not_lost(jobs, pool, effects, rabbit_server, caplog):
    async with RabbitQueue.open(rabbit_server) as broker:
        receive = jobs.subscriber(consumer="billing", transactions=pool, pause=0.01)(inserting(broker))

        async def deliver(message):
            # This client gives every message an id; others do not.
            message.message_id = None
            await receive(message)

        stop = await broker.consume(deliver)
        await broker.publish("a", None)

        def told():
            return [one for one in caplog.records if one.exc_info and "message_id=lambda" in str(one.exc_info[1])]

        await eventually(lambda: len(told()) > 1, within=30, what="the subscriber says so each time")
        await stop()

    assert await done(effects) == []
