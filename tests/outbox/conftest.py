"""What the tests of the outbox share: an open App, a connection that adds, and a publisher that takes notes."""

import asyncio
from collections import defaultdict

import asyncpg
import pytest

from aiopgq import App
from aiopgq.errors import BrokerUnavailable


@pytest.fixture
async def sql(dsn):
    """A connection of the test's own."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def jobs(dsn):
    """An open App."""
    async with App(dsn) as jobs:
        yield jobs


@pytest.fixture
def add(jobs):
    """Adds an event with as little as possible; what is told is a number."""

    async def add(connection, aggregate, number, **more):
        return await jobs.outbox.add(
            connection, aggregate_type="order", aggregate_id=aggregate, event_type="Counted", payload=number, **more
        )

    return add


class Notes:
    """A publisher that writes down what it gets, and misbehaves on demand.

    Attributes:
        events: All that was confirmed, in order.
        tried: All that came, in order.
        refuses: Numbers it refuses.
        breaks: Numbers at which it raises something of its own.
        away: Whether it takes nothing.
        gate: While not set, a call waits.
    """

    def __init__(self):
        self.events = []
        self.tried = []
        self.refuses = []
        self.breaks = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = 0

    async def publish(self, events):
        self.tried += events
        assert len({event.aggregate for event in events}) == len(events)
        await self.gate.wait()
        if self.away:
            raise BrokerUnavailable("the test", "it is away")
        for event in events:
            if event.decoded() in self.breaks:
                raise KeyError(event.decoded())
        outcomes = [ValueError("unlucky") if event.decoded() in self.refuses else None for event in events]
        self.events += [event for event, outcome in zip(events, outcomes, strict=True) if outcome is None]
        return outcomes

    async def close(self):
        self.closed += 1

    @property
    def numbers(self):
        return [event.decoded() for event in self.events]

    @property
    def by_aggregate(self):
        """The numbers of each aggregate, first deliveries only."""
        found, seen = defaultdict(list), set()
        for event in self.events:
            if event.event_id not in seen:
                seen.add(event.event_id)
                found[event.aggregate_id].append(event.decoded())
        return dict(found)


@pytest.fixture
def notes():
    return Notes()
