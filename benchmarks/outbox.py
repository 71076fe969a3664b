"""The outbox into NATS JetStream: what a relay publishes a second, beside publishing the same directly; idle latency.

Needs nats-server and the extra `nats`; without them it says so.
"""

import asyncio
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import nats

from aiopgq import App
from aiopgq.outbox import Event, plain, topic
from aiopgq.outbox.nats import NatsPublisher
from benchmarks.report import heading, median, percentile, table
from benchmarks.server import Server

__all__ = ["run"]

_EVENTS: Final = 20_000
_AGGREGATES: Final = 1_000
_LATENCIES: Final = 300
_QUICK: Final = 200
_WAVE: Final = 500
_FILL: Final = """
    INSERT INTO aiopgq.outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', n % $1, 'Counted', jsonb_build_object('number', n, 'note', repeat('x', 100))
    FROM generate_series(1, $2::integer) n"""


QUESTION: Final = "how many events a second does a relay publish to NATS JetStream, and how soon after the commit?"
METHOD: Final = """\
One relay, one NATS server, one PostgreSQL, all on this machine. Floor: the same messages published by nats-py itself
from memory, in waves of 500, each confirmed. Latency: an event is committed while the relay sleeps; a subscriber in
this process takes the time."""


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("outbox", QUESTION, METHOD)
    if shutil.which("nats-server") is None:
        print("Answer: unknown; this machine has no nats-server (apt-get install nats-server).")
        return
    events = _QUICK if quick else _EVENTS
    async with _nats() as url, server.database() as dsn, App(dsn) as jobs:
        client = await nats.connect(url)
        stream = client.jetstream()
        await stream.add_stream(name="events", subjects=["outbox.event.>"])
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(_FILL, _AGGREGATES, events)
            directly = await _publish_directly(url, [_event(row) for row in await connection.fetch(_ALL)])
            await stream.purge_stream("events")
            relayed = await _relay(jobs, url)
            took = await _latency(jobs, url, connection, client, _QUICK // 10 if quick else _LATENCIES)
        finally:
            await connection.close()
            await client.close()
    rows = [(name, f"{events / seconds:,.0f}") for name, seconds in (("directly", directly), ("relay", relayed))]
    table(("", "events/s"), rows)
    percents = (50, 95, 99)
    table(
        ("from commit", *(f"p{one} ms" for one in percents)),
        [("relay", *(f"{percentile(took, one):.2f}" for one in percents))],
    )
    print(
        f"Answer: {events / relayed:,.0f} events/s, ratio {directly / relayed:.2f} to publishing directly "
        f"(wanted: 5,000 or >= 0.50); latency p50 {median(took):.1f} ms (wanted: < 5)."
    )


_ALL: Final = """
    SELECT id, shard, gen_random_uuid() AS event_id, aggregate_type, aggregate_id, event_type, payload, created_at
    FROM aiopgq.outbox ORDER BY id"""


def _event(row: Any) -> Event:
    return Event(**row, headers={}, attempts=0)


async def _publish_directly(url: str, events: list[Event]) -> float:
    """Publish as a program without an outbox would: the client's own asynchronous publish, with confirmations."""
    client = await nats.connect(url)
    stream = client.jetstream()
    began = time.perf_counter()
    for at in range(0, len(events), _WAVE):
        messages = [(topic(event), plain(event), event.event_id) for event in events[at : at + _WAVE]]
        sent = [
            await stream.publish_async(subject, one.body, headers={**one.headers, "Nats-Msg-Id": str(event_id)})
            for subject, one, event_id in messages
        ]
        await asyncio.gather(*sent)
    took = time.perf_counter() - began
    await client.close()

    return took


async def _relay(jobs: App[None], url: str) -> float:
    began = time.perf_counter()
    await jobs.outbox.relay(NatsPublisher(url), burst=True).run()

    return time.perf_counter() - began


async def _latency(jobs: App[None], url: str, connection: Any, client: Any, rounds: int) -> list[float]:
    """Add one event at a time while the relay sleeps."""
    arrived = asyncio.Event()

    async def heard(_: Any) -> None:
        arrived.set()

    await client.subscribe("outbox.event.>", cb=heard)
    await client.flush()
    took = []
    async with jobs.outbox.relay(NatsPublisher(url)):
        for number in range(rounds + 10):
            await asyncio.sleep(0.03)
            arrived.clear()
            await jobs.outbox.add(
                connection, aggregate_type="order", aggregate_id=number, event_type="Counted", payload=number
            )
            committed = time.perf_counter()
            await arrived.wait()
            took.append((time.perf_counter() - committed) * 1000)

    return took[10:]


@asynccontextmanager
async def _nats() -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="nats-", ignore_cleanup_errors=True) as folder:
        settings = Path(folder) / "nats.conf"
        settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/data" }}\n')
        process = await asyncio.create_subprocess_exec(
            "nats-server", "-c", settings, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(10):
                while True:
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                    await asyncio.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()
            await process.wait()
