"""The outbox: an order and the event about it are written together, and the event reaches the broker.

Run it with DATABASE_URL=postgresql://user:password@host/database. The broker here is the screen.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import ClassVar

import asyncpg
import msgspec

from aiopgq import App
from aiopgq.outbox import Event, Outcomes

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL


# region add
async def place_order(connection: asyncpg.Connection, total: int) -> int:
    async with connection.transaction():
        order: int = await connection.fetchval("INSERT INTO orders (total) VALUES ($1) RETURNING id", total)
        await jobs.outbox.add(
            connection,
            aggregate_type="order",
            aggregate_id=order,
            event_type="OrderPlaced",
            payload={"order": order, "total": total},
        )
    return order  # both are there, or neither


# endregion


# region typed
class OrderSent(msgspec.Struct):
    aggregate_type: ClassVar[str] = "order"
    order: int
    parcels: int


async def send_order(connection: asyncpg.Connection, order: int) -> None:
    async with connection.transaction():
        await connection.execute("UPDATE orders SET sent = true WHERE id = $1", order)
        await jobs.outbox.add_event(connection, OrderSent(order=order, parcels=2), aggregate_id=order)


# endregion


# region publisher
class Screen:
    async def publish(self, events: Sequence[Event]) -> Outcomes:
        for event in events:
            print(f"{event.event_type} of {event.aggregate_type} {event.aggregate_id}: {event.decoded()}")
        return [None] * len(events)  # or, for an event that is refused, the exception that says why


# endregion


async def main() -> None:
    await jobs.migrate()
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY, "
        "total integer NOT NULL, sent boolean NOT NULL DEFAULT false)"
    )
    order = await place_order(connection, 42)
    await send_order(connection, order)
    await connection.close()
    await jobs.outbox.relay(Screen(), burst=True).run()


if __name__ == "__main__":
    asyncio.run(main())
