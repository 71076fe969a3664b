"""`outbox`: what it says, what it mends, and a relay as a process of its own."""

import asyncio
import json
import sys
from uuid import UUID, uuid4

import pytest
import redis
from brokers import Redis
from support import eventually

ADD = "SELECT aiopgq.add_event('order', $1, 'Counted', $2::jsonb)"
HELD = "UPDATE aiopgq.outbox SET held = 'set aside', attempts = 10, last_error = 'ValueError: unlucky' WHERE id = 1"


@pytest.fixture
async def three(cli, sql):
    """Three events of two aggregates, the first set aside."""
    ids = [await sql.fetchval(ADD, "ab"[number % 2], str(number)) for number in range(3)]
    await sql.execute(HELD)
    return ids


async def test_status_says_how_far_relays_are_behind(cli, three):
    said = json.loads(cli("outbox", "status", "--json").out)
    told = cli("outbox", "status")

    assert said.pop("oldest_seconds") >= 0
    assert said == {"unpublished": 2, "retrying": 0, "blocked": 0, "set_aside": 1, "relays": 0}
    assert "No relay runs" in told.err


async def test_list_shows_what_is_not_published_and_why(cli, three):
    shown = cli("outbox", "list")
    aside = json.loads(cli("outbox", "list", "--status", "set aside", "--json").out)

    assert str(three[0]) in shown.out
    assert "ValueError: unlucky" in shown.out
    assert [(UUID(one["event_id"]), one["attempts"], one["payload"]) for one in aside] == [(three[0], 10, 0)]
    assert len(json.loads(cli("outbox", "list", "--aggregate-id", "b", "--json").out)) == 1


async def test_retry_puts_back_what_was_set_aside(cli, three, sql):
    assert cli("outbox", "retry", three[0]).code == 0
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.outbox WHERE held IS NULL") == 3
    missing = cli("outbox", "retry", uuid4())
    assert missing.code == 1
    assert "did not fail" in missing.err
    assert cli("outbox", "retry").code == 2


async def test_skip_gives_up_only_with_yes(cli, three, sql):
    skipped = "SELECT count(*) FROM aiopgq.outbox WHERE held = 'skipped' AND published_at IS NOT NULL"

    cli("outbox", "skip", three[1])
    assert await sql.fetchval(skipped) == 0
    cli("outbox", "skip", three[1], "--yes")
    assert await sql.fetchval(skipped) == 1


async def test_prune_deletes_unpublished_events_only_with_yes(cli, three, sql):
    left = "SELECT count(*) FROM aiopgq.outbox"

    assert cli("outbox", "prune", "--older-than", "0", "--unpublished").code == 2
    assert await sql.fetchval(left) == 3
    assert cli("outbox", "prune", "--older-than", "0", "--unpublished", "--yes").out == "2 events deleted.\n"


async def test_a_relay_publishes_until_it_is_stopped(cli, three, sql):
    with Redis() as broker:
        command = [sys.executable, "-m", "aiopgq", "outbox", "relay", "--publisher", broker.url]
        relay = await asyncio.create_subprocess_exec(*command, env=cli.env, cwd=cli.folder)
        await eventually(lambda: entries(broker) == 2, within=30, what="the two in line are published")
        await sql.execute(ADD, "c", "3")
        await eventually(lambda: entries(broker) == 3, what="a late one is published")
        relay.terminate()
        assert await asyncio.wait_for(relay.wait(), 30) == 0

    assert await sql.fetchval("SELECT count(*) FROM aiopgq.relays") == 0


def entries(broker):
    with redis.Redis.from_url(broker.url) as client:
        return client.xlen("outbox.event.order")


@pytest.mark.parametrize(
    ("publisher", "said"),
    [
        ("carrier-pigeon://roof", "there is no publisher for carrier-pigeon"),
        ("https://example.com/events", "--secret"),
        ("nowhere:publisher", "nowhere"),
        ("work:jobs", "has no method publish"),
    ],
)
async def test_a_publisher_that_cannot_be_used_is_refused_with_the_reason(cli, publisher, said):
    refused = cli("outbox", "relay", "--publisher", publisher)

    assert refused.code == 2
    assert said in refused.err
