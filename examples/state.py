"""Typed state: what tasks share, made once in each worker process."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from aiopgq import App


# region state
@dataclass
class Resources:
    pool: asyncpg.Pool
    sender: str


@asynccontextmanager
async def resources() -> AsyncIterator[Resources]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1) as pool:
        yield Resources(pool, "post@example.org")


jobs = App(state=resources)


@jobs.task
async def count_users() -> str:
    users = await jobs.state.pool.fetchval("SELECT count(*) FROM pg_user")
    return f"{jobs.state.sender} counts {'some' if users else 'no'} users"


# endregion


async def main() -> None:
    await jobs.migrate()
    async with jobs, jobs.worker():
        job = await count_users.enqueue()
        print(await job.result())


if __name__ == "__main__":
    asyncio.run(main())
