"""Relays that are killed and frozen, a broker that is killed and restarted, and writers that commit late or never.

`AIOPGQ_CHAOS_SEED` repeats a run's choices.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import defaultdict

import aio_pika
import asyncpg
import nats
import pytest
from brokers import Nats, Rabbit
from support import eventually

from aiopgq import App

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVENTS = 10_000
AGGREGATES = 200
WRITERS = 4
RELAYS = 3
LEASE = 2
STREAM = "events"
SUBJECT = "outbox.event.order"


async def prepare_nats(url):
    client = await nats.connect(url)
    await client.jetstream().add_stream(name=STREAM, subjects=[SUBJECT])
    await client.close()


async def received_nats(url):
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        total = (await stream.stream_info(STREAM)).state.messages
        reader = await stream.subscribe(SUBJECT, ordered_consumer=True)
        return [(await reader.next_msg(10)).headers["id"] for _ in range(total)]
    finally:
        await client.close()


async def prepare_rabbit(url):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("outbox", "topic", durable=True)
        queue = await channel.declare_queue(STREAM, durable=True)
        await queue.bind(exchange, SUBJECT)


async def received_rabbit(url):
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(STREAM, durable=True, passive=True)
        found = []
        async with queue.iterator(no_ack=True) as messages:
            while len(found) < queue.declaration_result.message_count:
                found.append((await anext(messages)).message_id)
        return found


class Ground:
    """The relays, the broker, and what breaks them."""

    def __init__(self, dsn, broker, dice, log):
        self._dsn = dsn
        self._broker = broker
        self._dice = dice
        self._log = log
        self.relays = []
        self.story = []

    async def start(self):
        where = ["--dsn", self._dsn, "--publisher", self._broker.url, "--lease", str(LEASE)]
        command = [sys.executable, "-m", "aiopgq", "outbox", "relay", *where]
        self.relays.append(await asyncio.create_subprocess_exec(*command, stdout=self._log, stderr=self._log))

    async def kill(self):
        relay = self.relays.pop(self._dice.randrange(len(self.relays)))
        relay.kill()
        await relay.wait()
        await self.start()

    async def freeze(self):
        """Let one sleep longer than its lease: others take its shards, and it wakes up in the middle of its work."""
        relay = self._dice.choice(self.relays)
        relay.send_signal(signal.SIGSTOP)
        await asyncio.wait([asyncio.create_task(relay.wait())], timeout=LEASE * 1.5)
        relay.send_signal(signal.SIGCONT)

    async def restart(self):
        await asyncio.to_thread(self._broker.restart)

    async def break_something(self):
        fault = self._dice.choice([self.kill, self.kill, self.freeze, self.restart])
        self.story.append(fault.__name__)
        await fault()

    async def end(self):
        for relay in self.relays:
            relay.terminate()
        for relay in self.relays:
            try:
                async with asyncio.timeout(20):
                    await relay.wait()
            except TimeoutError:
                relay.kill()
                await relay.wait()


async def write(dsn, jobs, seed, done):
    """Add a share of the events, a few in each transaction; some commit late, some never."""
    dice = random.Random(seed)
    connection = await asyncpg.connect(dsn)
    left = EVENTS // WRITERS
    while left:
        some = min(left, dice.randint(1, 20))
        transaction = connection.transaction()
        await transaction.start()
        for _ in range(some):
            await jobs.outbox.add(
                connection, aggregate_type="order", aggregate_id=dice.randrange(AGGREGATES), event_type="E", payload=0
            )
        await connection.execute("SELECT pg_sleep($1)", dice.random() * 0.08)
        if dice.random() < 0.1:
            await transaction.rollback()
        else:
            await transaction.commit()
            left -= some
    await connection.close()
    done.append(seed)


@pytest.mark.parametrize(
    ("kind", "prepare", "received"),
    [(Nats, prepare_nats, received_nats), (Rabbit, prepare_rabbit, received_rabbit)],
    ids=["nats", "rabbitmq"],
)
async def test_every_event_arrives_and_each_aggregate_in_order_whatever_breaks(dsn, tmp_path, kind, prepare, received):
    seed = int(os.environ.get("AIOPGQ_CHAOS_SEED") or time.time())
    with kind() as broker, (tmp_path / "relays.log").open("wb") as log:
        await prepare(broker.url)
        ground = Ground(dsn, broker, random.Random(seed), log)
        try:
            for _ in range(RELAYS):
                await ground.start()
            async with App(dsn) as jobs:
                done = []
                writers = [asyncio.create_task(write(dsn, jobs, seed + n, done)) for n in range(WRITERS)]
                while len(done) < WRITERS:
                    await ground.break_something()
                    await asyncio.wait(writers, timeout=ground._dice.random() * 2)
                await asyncio.gather(*writers)
                await eventually(lambda: nothing_left(jobs), within=60, every=0.2, what="all are published")
        finally:
            await ground.end()
        arrived = await received(broker.url)

    sys.stdout.write(f"seed {seed}: {len(arrived)} messages; {' '.join(ground.story)}\n")
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("SELECT event_id::text, id, aggregate_id FROM aiopgq.outbox")
    await connection.close()
    events = {row["event_id"]: row for row in rows}
    assert len(events) == EVENTS
    assert set(events) - set(arrived) == set()
    first_deliveries = defaultdict(list)
    for event_id in dict.fromkeys(arrived):
        first_deliveries[events[event_id]["aggregate_id"]].append(events[event_id]["id"])
    assert {aggregate for aggregate, ids in first_deliveries.items() if ids != sorted(ids)} == set()


async def nothing_left(jobs):
    return (await jobs.outbox.lag()).unpublished == 0
