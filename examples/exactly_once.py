"""Effects that happen exactly once: the handler's writes and the end of its job are one transaction.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database.
"""

import asyncio
import os

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from aiopgq import App, Backoff, current_job

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL
engine = create_async_engine(os.environ["DATABASE_URL"])
Session = async_sessionmaker(engine)


# region transactional
@jobs.task(transactional=True, backoff=Backoff(base=0))
async def charge(order: int, cents: int) -> int:
    connection = current_job().connection  # asyncpg, in a transaction
    await connection.execute("INSERT INTO charges VALUES ($1, $2)", order, cents)
    if current_job().attempt == 1:
        raise OSError("the line to somewhere broke")  # the row is gone, the job is retried
    return cents  # the row and the end of the job commit together


# endregion


# region own
@jobs.task
async def refund(order: int) -> None:
    async with Session.begin() as session:
        await session.execute(text("DELETE FROM charges WHERE id = :id"), {"id": order})
        await current_job().settle_with(session)


# endregion


async def main() -> None:
    dsn = os.environ["DATABASE_URL"].replace("+asyncpg", "")
    await jobs.migrate()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE charges (id integer PRIMARY KEY, cents integer NOT NULL)")

    async with jobs, jobs.worker():
        job = await charge.enqueue(7, 990)
        print("charged:", await job.result(timeout=30), "in attempt", (await job.info()).attempts)
        print("rows:", await connection.fetchval("SELECT count(*) FROM charges"))
        again = await refund.enqueue(7)
        await again.result(timeout=30)
        print("rows:", await connection.fetchval("SELECT count(*) FROM charges"))

    await connection.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
