"""Writes an invoice for each order that comes from NATS JetStream, and one only.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database and NATS_URL=nats://host.
"""

import asyncio
import os

import msgspec
import nats
from nats.aio.msg import Msg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from aiopgq import App

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL
engine = create_async_engine(os.environ["DATABASE_URL"])
Session = async_sessionmaker(engine)


# region bill
@jobs.subscriber(consumer="billing", transactions=Session)
async def bill(message: Msg, session: AsyncSession) -> None:
    order = msgspec.json.decode(message.data)
    await session.execute(text("INSERT INTO invoices VALUES (:id, :cents)"), order)


# endregion


async def main() -> None:
    connection = await nats.connect(os.environ.get("NATS_URL", "nats://localhost"))
    jetstream = connection.jetstream()
    await jetstream.add_stream(name="orders", subjects=["orders.>"])
    # region subscribe
    await jetstream.subscribe("orders.>", durable="billing", cb=bill, manual_ack=True)
    # endregion
    print("waiting for orders")
    try:
        await asyncio.Event().wait()
    finally:
        await connection.drain()
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
