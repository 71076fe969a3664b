"""Each publisher against the real server: what arrives, what is refused, and what happens while it is away."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aio_pika
import msgspec
import nats
import pytest
import redis.asyncio
from aiohttp import web
from aiokafka import AIOKafkaConsumer
from brokers import Nats, Rabbit, Redis, free_port
from confluent_kafka import Producer
from support import eventually

from aiopgq import Backoff, current_job
from aiopgq._store.patience import comes
from aiopgq.outbox import cloud_events, plain
from aiopgq.outbox.kafka import KafkaPublisher
from aiopgq.outbox.nats import NatsPublisher
from aiopgq.outbox.rabbitmq import RabbitPublisher
from aiopgq.outbox.redis import RedisPublisher
from aiopgq.outbox.tasks import TasksPublisher
from aiopgq.outbox.webhook import WebhookPublisher

SECRET = b"known to both sides"


class NatsWorld:
    """NATS, a stream for all events, and what is in it."""

    broker = Nats
    publisher = NatsPublisher

    def __init__(self, broker):
        self.url = broker.url

    @asynccontextmanager
    async def reached(self):
        client = await nats.connect(self.url)
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def prepare(self):
        async with self.reached() as stream:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await stream.delete_stream("events")
            await stream.add_stream(name="events", subjects=["outbox.event.>"], max_msg_size=1000)

    async def received(self):
        async with self.reached() as stream:
            told = await stream.stream_info("events")
            messages = [await stream.get_msg("events", at + 1) for at in range(told.state.messages)]
        return [(message.headers["id"], message.data, message.headers) for message in messages]


class RabbitWorld:
    """RabbitMQ, a queue for all events, and what is in it."""

    broker = Rabbit
    publisher = RabbitPublisher

    def __init__(self, broker):
        self.url = broker.url

    async def prepare(self):
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.queue_delete("events")
            exchange = await channel.declare_exchange("outbox", "topic", durable=True)
            # Without a queue that would take them, events of other kinds are refused.
            queue = await channel.declare_queue("events", durable=True)
            await queue.bind(exchange, "outbox.event.order")

    async def received(self):
        found = []
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue("events")
            # Nothing is confirmed to it, so what was read comes back.
            while (message := await queue.get(fail=False, no_ack=False)) is not None:
                found.append((message.message_id, message.body, message.headers))
        return found


class RedisWorld:
    """Redis, and what is in the stream of orders."""

    broker = Redis
    publisher = RedisPublisher

    def __init__(self, broker):
        self.url = broker.url

    async def prepare(self):
        async with redis.asyncio.from_url(self.url) as client:
            await client.flushall()
            await client.set("outbox.event.poison", "not a stream")

    async def received(self):
        async with redis.asyncio.from_url(self.url, decode_responses=True) as client:
            entries = await client.xrange("outbox.event.order")
        return [(fields["id"], fields["payload"].encode(), fields) for _, fields in entries]


WORLDS = [
    pytest.param(NatsWorld, id="nats"),
    # It takes seconds to start.
    pytest.param(RabbitWorld, id="rabbitmq", marks=pytest.mark.slow),
    pytest.param(RedisWorld, id="redis"),
]


@pytest.fixture(scope="module", params=WORLDS)
def server(request):
    with request.param.broker() as broker:
        yield request.param, broker


@pytest.fixture
async def world(server):
    kind, broker = server
    world = kind(broker)
    world.server = broker
    await world.prepare()
    return world


@pytest.fixture
def relay(jobs):
    return partial(jobs.outbox.relay, longest_pause=0.3)


async def test_what_was_added_arrives_with_its_id_and_headers(world, jobs, relay, sql, add):
    event_id = await add(sql, 7, 42, headers={"tenant": "blue"})

    async with relay(world.publisher(world.url)):
        [(received_id, body, headers)] = await eventually(world.received, what="the event arrives")
        await eventually(lambda: nothing_left(jobs), what="it is marked")

    assert received_id == str(event_id)
    assert body == b"42"
    assert headers["tenant"] == "blue"
    assert headers["type"] == "Counted"
    assert (headers["aggregate-type"], headers["aggregate-id"]) == ("order", "7")


async def test_an_event_in_the_envelope_of_cloud_events_arrives_as_such(world, jobs, relay, sql, add):
    event_id = await add(sql, 7, {"total": 42})

    async with relay(world.publisher(world.url, envelope=cloud_events("/shop"))):
        [(_, body, _)] = await eventually(world.received, what="the event arrives")

    cloud = json.loads(body)
    assert cloud.pop("time")
    assert cloud == {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "/shop",
        "type": "Counted",
        "subject": "7",
        "aggregatetype": "order",
        "datacontenttype": "application/json",
        "data": {"total": 42},
    }


async def test_while_the_broker_is_away_events_wait_and_none_is_lost(world, jobs, relay, sql, add):
    await asyncio.to_thread(world.server.kill)
    for number in range(20):
        await add(sql, number % 4, number)

    async with relay(world.publisher(world.url, timeout=2)) as busy:
        await asyncio.to_thread(world.server.start)
        await eventually(lambda: nothing_left(jobs), within=60, what="all are published")
        # And once more while a connection is open.
        await asyncio.to_thread(world.server.restart)
        for number in range(20, 40):
            await add(sql, number % 4, number)
        await eventually(lambda: nothing_left(jobs), within=60, what="all are published again")
        assert busy.published == 0 or busy.published >= 40

    received = [json.loads(body) for _, body, _ in await world.received()]
    assert set(received) == set(range(40))
    for aggregate in range(4):
        mine = list(dict.fromkeys(number for number in received if number % 4 == aggregate))
        assert mine == sorted(mine)


async def test_what_the_broker_refuses_blocks_only_its_own_aggregate(world, jobs, relay, sql, add):
    poison = await jobs.outbox.add(
        sql, aggregate_type="poison", aggregate_id=1, event_type="Refused", payload="x" * 2000
    )
    await add(sql, 1, 1)

    async with relay(world.publisher(world.url)):
        await eventually(world.received, what="the other arrives")
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="the poison is held")

    assert held.event_id == poison
    assert [body for _, body, _ in await world.received()] == [b"1"]


# So large that the server closes the connection over it.
FATAL = {NatsWorld: ("x" * (2**20 - 50), {}), RabbitWorld: ("", {"filler": "x" * 200_000})}


@pytest.mark.parametrize("server", [WORLDS[0], WORLDS[1]], indirect=True)
async def test_an_event_over_which_the_broker_hangs_up_blocks_only_its_own_aggregate(world, jobs, relay, sql, add):
    payload, headers = FATAL[type(world)]
    await sql.execute(
        "SELECT aiopgq.add_event('order', 'fatal', 'Counted', $1::text::jsonb, $2::text::jsonb)",
        json.dumps(payload),
        json.dumps(headers),
    )

    async with relay(world.publisher(world.url)):
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held, though it is alone")
        for number in range(3):
            await add(sql, number, number)
        await eventually(lambda: published(jobs, 3), what="the others arrive")

    assert held.aggregate_id == "fatal"
    assert {body for _, body, _ in await world.received()} == {b"0", b"1", b"2"}


@pytest.mark.parametrize("server", [WORLDS[1]], indirect=True)
async def test_of_many_events_only_that_over_which_rabbitmq_hangs_up_is_held(world, jobs, relay, sql, add):
    for number in range(20):
        await add(sql, number, number)
    await sql.execute(
        "UPDATE aiopgq.outbox SET headers = jsonb_build_object('filler', repeat('x', 200000)) WHERE payload = '7'"
    )

    async with relay(world.publisher(world.url)):
        await eventually(lambda: published(jobs, 19), what="the others arrive")
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="that one is held")

    assert held.payload == 7


@pytest.mark.parametrize("kind", [RabbitPublisher, KafkaPublisher, RedisPublisher, NatsPublisher])
async def test_an_envelope_that_breaks_at_an_event_says_nothing_against_the_broker(kind, request, jobs, sql, add):
    def envelope(event):
        if event.decoded() == 1:
            raise KeyError("total")
        return plain(event)

    worlds = {RabbitPublisher: RabbitWorld, RedisPublisher: RedisWorld, NatsPublisher: NatsWorld}
    with contextlib.ExitStack() as stack:
        if kind is KafkaPublisher:
            broker = request.getfixturevalue("kafka")
            url = f"{broker.host}:{broker.port}"
        else:
            world = worlds[kind](stack.enter_context(worlds[kind].broker()))
            await world.prepare()
            url = world.url
        for number in range(3):
            await add(sql, number, number)

        await jobs.outbox.relay(kind(url, envelope=envelope), burst=True).run()

    assert [(event.payload, event.last_error) for event in await jobs.outbox.events(status="retry")] == [
        (1, "KeyError: 'total'")
    ]
    assert await published(jobs, 2)


@pytest.fixture
async def nats_world():
    with Nats() as broker:
        world = NatsWorld(broker)
        await world.prepare()
        yield world


async def test_an_event_that_no_stream_takes_is_set_aside_though_it_is_alone(nats_world, jobs, sql):
    await jobs.outbox.add(sql, aggregate_type="order", aggregate_id=1, event_type="Counted", payload=1)
    publisher = NatsPublisher(nats_world.url, route=lambda _: "nobody.takes.it")

    async with jobs.outbox.relay(publisher, on_poison="set_aside", max_attempts=2, backoff=Backoff(base=0.05)):
        [event] = await eventually(lambda: jobs.outbox.events(status="set aside"), what="it is set aside")

    assert "NoStream" in event.last_error


async def test_a_pattern_is_no_subject_for_an_event(nats_world, jobs, sql):
    for kind in ("*", ">", "a..b"):
        await jobs.outbox.add(sql, aggregate_type=kind, aggregate_id=1, event_type="Counted", payload=1)

    await jobs.outbox.relay(NatsPublisher(nats_world.url), burst=True).run()

    assert len(await jobs.outbox.events(status="retry")) == 3
    assert await nats_world.received() == []


async def test_what_somebody_else_answers_to_a_subject_is_no_confirmation(nats_world, jobs, relay, sql):
    heard = []

    async def answer(message):
        heard.append(message)
        await message.respond(b'{"ok": 1}' if len(heard) % 2 else b"thanks")

    client = await nats.connect(nats_world.url)
    try:
        await client.subscribe("elsewhere", cb=answer)
        await client.flush()
        await jobs.outbox.add(sql, aggregate_type="order", aggregate_id=1, event_type="Counted", payload=1)

        async with relay(NatsPublisher(nats_world.url, route=lambda _: "elsewhere", timeout=0.3)):
            await eventually(lambda: len(heard) >= 3, what="it is published again and again")
            assert not await nothing_left(jobs)
    finally:
        await client.close()


async def test_redis_that_may_not_write_now_is_away(jobs, relay, sql, add, caplog):
    with Redis() as broker:
        world = RedisWorld(broker)
        async with redis.asyncio.from_url(broker.url) as client:
            # Without replicas it refuses as it does when its disk is full: with a code that is about itself.
            await client.config_set("min-replicas-to-write", 1)
            await add(sql, 1, 1)
            async with relay(RedisPublisher(broker.url)):
                await eventually(lambda: "cannot publish events" in caplog.text, what="it is away")
                await client.config_set("min-replicas-to-write", 0)
                await eventually(world.received, what="it arrives")
                await eventually(lambda: published(jobs, 1), what="it is marked")
        [event] = await jobs.outbox.events()
    assert (event.attempts, event.last_error) == (1, None)


async def test_nats_drops_what_is_published_twice(jobs, sql, add):
    with Nats() as broker:
        world = NatsWorld(broker)
        await world.prepare()
        await add(sql, 7, 42)
        for _ in range(2):
            await jobs.outbox.relay(NatsPublisher(broker.url), burst=True).run()
            await sql.execute("UPDATE aiopgq.outbox SET published_at = NULL")

        assert len(await world.received()) == 1


async def nothing_left(jobs):
    return (await jobs.outbox.lag()).unpublished == 0


# the webhook


class Receiver:
    """An HTTP server that answers as told."""

    def __init__(self):
        self.requests = []
        self.answers = {}
        self.default = 200
        self.released = asyncio.Event()

    async def handle(self, request):
        body = await request.read()
        self.requests.append((dict(request.headers), body))
        answer = self.answers.get(json.loads(body), self.default)
        if answer is None:
            answer = 200
            await self.released.wait()
        return web.Response(status=answer)


@pytest.fixture
async def receiver():
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/events", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    receiver.port = free_port()
    await web.TCPSite(runner, "127.0.0.1", receiver.port).start()
    receiver.url = f"http://127.0.0.1:{receiver.port}/events"
    yield receiver
    receiver.released.set()
    await runner.cleanup()


async def test_a_webhook_is_signed(receiver, jobs, sql, add):
    event_id = await add(sql, 7, 42)

    await jobs.outbox.relay(WebhookPublisher(receiver.url, secret=SECRET), burst=True).run()

    [(headers, body)] = receiver.requests
    assert headers["webhook-id"] == str(event_id)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert await nothing_left(jobs)


async def test_a_receiver_that_is_overloaded_is_away_and_what_it_refuses_is_held(receiver, jobs, relay, sql, add):
    receiver.answers = {1: 503, 2: 422, 3: 200}
    for number in (1, 2, 3):
        await add(sql, number, number)

    async with relay(WebhookPublisher(receiver.url, secret=SECRET)):
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="the refused one is held")
        receiver.answers[1] = 200
        await eventually(lambda: published(jobs, 2), what="the others pass")

    assert held.payload == 2
    assert "422" in held.last_error


async def test_an_answer_that_never_comes_holds_the_event_and_nothing_else(receiver, jobs, relay, sql, add):
    receiver.answers = {1: None}
    for number in (1, 2):
        await add(sql, number, number)

    async with relay(WebhookPublisher(receiver.url, secret=SECRET, timeout=0.3)):
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held")
        await eventually(lambda: published(jobs, 1), what="the other passes")

    assert held.payload == 1
    assert "ReadTimeout" in held.last_error


@pytest.mark.parametrize(
    ("aggregate", "told"),
    [("Zürich", "Z%C3%BCrich"), ("a\nb", "a%0Ab"), (" 100% ", "%20100%25%20"), ("a b/c", "a b/c")],
)
async def test_an_aggregate_id_of_any_characters_fits_into_a_header_of_http(receiver, jobs, sql, add, aggregate, told):
    await add(sql, aggregate, 42)

    await jobs.outbox.relay(WebhookPublisher(receiver.url, secret=SECRET), burst=True).run()

    [(headers, _)] = receiver.requests
    assert headers["aggregate-id"] == told


@pytest.mark.parametrize("name", ["", "a: b", "ä"])
async def test_a_header_that_http_cannot_carry_is_about_its_event(receiver, jobs, sql, add, name):
    await add(sql, 1, 1, headers={name: "x"})

    await jobs.outbox.relay(WebhookPublisher(receiver.url, secret=SECRET), burst=True).run()

    assert len(await jobs.outbox.events(status="retry")) == 1
    assert receiver.requests == []


async def test_an_answer_that_drips_holds_the_event_and_nothing_else(jobs, relay, sql, add):
    serving = set()

    async def drip(reader, writer):
        serving.add(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            if await reader.readexactly(1) == b"2":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await comes(asyncio.Event(), 0.05)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for number in (1, 2):
        await add(sql, number, number)
    try:
        async with relay(WebhookPublisher(f"http://127.0.0.1:{port}/", secret=SECRET, timeout=0.3)):
            [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held")
            await eventually(lambda: published(jobs, 1), what="the other passes")
    finally:
        server.close()
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    assert held.payload == 1


async def published(jobs, count):
    return len(await jobs.outbox.events(status="published")) == count


# tasks


class Placed(msgspec.Struct):
    total: int


async def test_every_task_that_subscribed_runs_once_with_the_event(jobs, sql, add):
    ran = []

    @jobs.task(name="receipt")
    async def receipt(order: Placed) -> None:
        ran.append(("receipt", order, current_job().headers["aggregate-id"]))

    @jobs.task(name="log")
    async def log(order: dict[str, Any]) -> None:
        ran.append(("log", order, current_job().headers["event-type"]))

    for kind in ("Placed", "Cancelled"):
        await jobs.outbox.add(sql, aggregate_type="order", aggregate_id=7, event_type=kind, payload={"total": 42})
    publisher = TasksPublisher(jobs, {"Placed": [receipt], "*": [log]})
    for _ in range(2):
        await jobs.outbox.relay(publisher, burst=True).run()
        await jobs.drain()
        # A relay that died before it could mark them publishes them again.
        await sql.execute("UPDATE aiopgq.outbox SET published_at = NULL")

    assert sorted(ran, key=str) == [
        ("log", {"total": 42}, "Cancelled"),
        ("log", {"total": 42}, "Placed"),
        ("receipt", Placed(total=42), "7"),
    ]


async def test_an_event_that_does_not_fit_its_task_is_held(jobs, relay, sql):
    @jobs.task(name="receipt")
    async def receipt(order: Placed) -> None: ...

    await jobs.outbox.add(sql, aggregate_type="order", aggregate_id=7, event_type="Placed", payload={"total": "many"})

    async with relay(TasksPublisher(jobs, {"Placed": [receipt]})):
        [held] = await eventually(lambda: jobs.outbox.events(status="retry"), what="it is held")

    assert "receipt" in held.last_error
    assert "total" in held.last_error


# Kafka, as librdkafka plays it


@pytest.fixture
def kafka():
    # It plays a cluster of one, on a port of its own, as long as it lives.
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "ignored"})
    yield next(iter(cluster.list_topics(timeout=10).brokers.values()))
    del cluster


async def test_kafka_gets_an_aggregate_in_order_under_its_key(kafka, jobs, sql, add):
    server = f"{kafka.host}:{kafka.port}"
    for number in range(20):
        await add(sql, number % 2, number)

    await jobs.outbox.relay(KafkaPublisher(server), burst=True).run()

    consumer = AIOKafkaConsumer("outbox.event.order", bootstrap_servers=server, auto_offset_reset="earliest")
    await consumer.start()
    try:
        records = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(20)]
    finally:
        with contextlib.suppress(Exception):
            await consumer.stop()
    for aggregate in range(2):
        mine = [int(record.value) for record in records if record.key == str(aggregate).encode()]
        assert mine == list(range(aggregate, 20, 2))
    assert dict(records[0].headers)["type"] == b"Counted"
    assert await nothing_left(jobs)
