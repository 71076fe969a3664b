"""Stories of relays that share the aggregates while answers of PostgreSQL and of brokers get lost."""

import asyncio
from functools import partial

import pytest
from aiohttp import web
from support import eventually

from aiopgq import App, Backoff
from aiopgq._store.events import Events
from aiopgq._store.patience import comes
from aiopgq.errors import BrokerUnavailable, StoreUnavailable

FAST = Backoff(base=0.05, factor=1, jitter=0)
ALL = range(100)


@pytest.fixture
def relay(jobs, notes):
    """Makes a relay into the notes that beats often, and looks by itself only every half a minute."""
    return partial(jobs.outbox.relay, notes, lease=2, backoff=FAST, longest_pause=0.2, poll_interval=3600)


async def shares(sql):
    rows = await sql.fetch("SELECT count(*) AS n FROM aiopgq.outbox_shards WHERE holder IS NOT NULL GROUP BY holder")
    return sorted(row["n"] for row in rows)


async def shared(sql, expected):
    return await shares(sql) == expected


async def test_shards_that_were_taken_without_an_answer_are_published_all_the_same(relay, notes, sql, add, monkeypatch):
    take, lost = Events.take_shards, []

    async def answer_lost(self, relay, limit):
        taken = await take(self, relay, limit)
        if taken and not lost:
            lost.append(taken)
            raise StoreUnavailable("take shards", "the connection was lost")
        return taken

    async with relay(name="first"):
        monkeypatch.setattr(Events, "take_shards", answer_lost)
        async with relay(name="second"):
            await eventually(lambda: lost, what="an answer is lost")
            for number in ALL:
                await add(sql, number, number)
            await eventually(lambda: set(notes.numbers) == set(ALL), within=15, what="all are published")


async def test_shards_that_could_not_be_given_away_are_given_later(relay, notes, sql, add, monkeypatch):
    give, failed = Events.give_shards, []

    async def fails(self, relay, shards):
        if not failed:
            failed.append(shards)
            raise StoreUnavailable("give shards back", "the connection was lost")
        return await give(self, relay, shards)

    monkeypatch.setattr(Events, "give_shards", fails)
    async with relay(name="first"), relay(name="second"):
        await eventually(lambda: failed, what="giving fails")
        for number in ALL:
            await add(sql, number, number)
        await eventually(lambda: set(notes.numbers) == set(ALL), within=15, what="all are published")
        await eventually(lambda: shared(sql, [128, 128]), within=15, what="both hold their share")


class Slow:
    """A publisher that confirms one event after the other, and so needs long for many."""

    def __init__(self):
        self.sizes = []
        self.done = set()

    async def publish(self, events):
        self.sizes.append(len(events))
        for event in events:
            await comes(asyncio.Event(), 0.02)
            self.done.add(event.decoded())
        return [None] * len(events)


@pytest.mark.slow
async def test_a_receiver_too_slow_for_many_events_at_once_gets_fewer(jobs, relay, sql, add):
    slow = Slow()
    for number in ALL:
        await add(sql, number, number)

    async with jobs.outbox.relay(slow, publish_timeout=0.7, longest_pause=0.1):
        await eventually(lambda: nothing_left(jobs), within=30, what="all are marked")

    assert slow.sizes[0] == 100
    assert slow.done == set(ALL)


async def nothing_left(jobs):
    return (await jobs.outbox.lag()).unpublished == 0


async def test_what_waits_behind_an_event_goes_on_though_the_broker_goes_away_at_once(jobs, relay, notes, sql, add):
    notes.refuses = [1]
    for number in (1, 2):
        await add(sql, "a", number)
    publish = notes.publish

    async def then_away(events):
        outcomes = await publish(events)
        if 1 in notes.numbers and "away" not in gone:
            gone.append("away")
            return [*outcomes[:-1], BrokerUnavailable("the test", "it went away")]
        return outcomes

    gone, notes.publish = [], then_away
    async with relay(backoff=Backoff(base=1, factor=1, jitter=0)):
        await eventually(lambda: blocked(jobs, 1), what="the second is blocked")
        notes.refuses = []
        # One of another aggregate goes in the same wave, and its outcome is that the broker is away.
        await sql.execute("UPDATE aiopgq.outbox SET retry_at = now() + interval '1 h' WHERE held = 'retry'")
        async with sql.transaction():
            await add(sql, "b", 3)
            await sql.execute("SELECT aiopgq.retry_events(NULL)")
        await eventually(lambda: set(notes.numbers) >= {1, 2, 3}, within=15, what="all are published")
    assert gone == ["away"]


async def blocked(jobs, expected):
    return (await jobs.outbox.lag()).blocked == expected


async def test_a_running_relay_tells_how_many_events_were_confirmed_so_far(relay, sql, add):
    async with relay() as running:
        for number in range(3):
            await add(sql, number, number)
        await eventually(lambda: running.published == 3, what="it has published three")
    assert running.published == 3


async def test_a_relay_serves_as_a_cleanup_context_and_opens_the_app(dsn, notes, sql, add):
    app = web.Application()
    app.cleanup_ctx.append(App(dsn).outbox.relay(notes).cleanup_ctx)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await add(sql, 1, 1)
        await eventually(lambda: notes.numbers == [1], what="it is published")
    finally:
        await runner.cleanup()
    assert notes.closed == 1


async def test_an_event_that_is_skipped_on_its_way_and_arrives_is_listed_as_published(jobs, relay, notes, sql, add):
    notes.gate.clear()
    await add(sql, "a", 1)
    async with relay():
        await eventually(lambda: notes.tried, what="it is on its way")
        [event] = await jobs.outbox.events()
        assert await jobs.outbox.skip([event.event_id]) == [event.event_id]
        notes.gate.set()
        await eventually(lambda: jobs.outbox.events(status="published"), what="it is listed as what it is")


async def test_an_event_that_python_cannot_nest_is_published_and_listed_all_the_same(jobs, relay, sql):
    bodies = []

    class Bodies:
        async def publish(self, events):
            bodies.extend(event.payload for event in events)
            return [None] * len(events)

    deep = "[" * 5000 + "]" * 5000
    await sql.execute("SELECT aiopgq.add_event('order', '1', 'Counted', $1::text::jsonb)", deep)

    await jobs.outbox.relay(Bodies(), burst=True).run()

    assert bodies == [deep]
    assert [event.payload for event in await jobs.outbox.events(status="published")] == [deep]


async def test_headers_that_sql_added_as_something_else_than_strings_go_along_as_json(jobs, relay, notes, sql):
    headers = '{"s": "x", "n": 1, "none": null, "d": {"a": 1}}'
    await sql.execute(f"SELECT aiopgq.add_event('order', '1', 'Counted', '1', '{headers}')")

    await relay(burst=True).run()

    assert [event.headers for event in notes.events] == [{"s": "x", "n": "1", "none": "null", "d": '{"a":1}'}]
    assert [event.headers for event in await jobs.outbox.events()] == [event.headers for event in notes.events]
