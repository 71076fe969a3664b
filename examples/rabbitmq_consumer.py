"""Writes an invoice for each order that comes from RabbitMQ, and one only.

Run it with DATABASE_URL=postgresql://user:password@host/database and AMQP_URL=amqp://guest:guest@host/.
"""

import asyncio
import os
from typing import Any

import aio_pika
import asyncpg
import msgspec
from aio_pika.abc import AbstractIncomingMessage

from aiopgq import App

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL


async def main() -> None:
    connection = await aio_pika.connect_robust(os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))
    async with asyncpg.create_pool(os.environ["DATABASE_URL"]) as pool, connection:
        # region rabbitmq
        @jobs.subscriber(consumer="billing", transactions=pool)
        async def bill(message: AbstractIncomingMessage, connection: Any) -> None:
            order = msgspec.json.decode(message.body)
            await connection.execute("INSERT INTO invoices VALUES ($1, $2)", order["id"], order["cents"])

        # endregion

        # region consume
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("orders", durable=True)
        await queue.consume(bill)
        # endregion
        print("waiting for orders")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
