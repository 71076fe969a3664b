"""A message that is delivered twice has its effect once, on asyncpg and on SQLAlchemy.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database.
"""

import asyncio
import os

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from aiopgq import App

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL
engine = create_async_engine(os.environ["DATABASE_URL"])
Session = async_sessionmaker(engine)


# region once
async def bill(connection: asyncpg.Connection, message_id: str, cents: int) -> bool:
    async with (
        connection.transaction(),
        jobs.inbox.once(connection, consumer="billing", message_id=message_id) as first,
    ):
        if first:
            await connection.execute("INSERT INTO invoices (cents) VALUES ($1)", cents)
    return first  # committed: now the broker may be told, in both cases


# endregion


# region session
async def notify(message_id: str, cents: int) -> bool:
    async with Session.begin() as session, jobs.inbox.once(session, consumer="mail", message_id=message_id) as first:
        if first:
            await session.execute(text("INSERT INTO mails (cents) VALUES (:cents)"), {"cents": cents})
    return first


# endregion


async def main() -> None:
    await jobs.migrate()
    connection = await asyncpg.connect(os.environ["DATABASE_URL"].replace("+asyncpg", ""))
    await connection.execute("CREATE TABLE invoices (cents integer); CREATE TABLE mails (cents integer)")

    print("billing:", await bill(connection, "event-1", 990), await bill(connection, "event-1", 990))
    print("mail:", await notify("event-1", 990), await notify("event-1", 990))
    print("invoices:", await connection.fetchval("SELECT count(*) FROM invoices"))
    print("mails:", await connection.fetchval("SELECT count(*) FROM mails"))

    await connection.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
