"""The load: an App with two small tasks, jobs to preload, and a producer of a steady rate."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from time import monotonic_ns, perf_counter
from typing import Any, NamedTuple

import asyncpg

from aiopgq import App, Limit
from aiopgq.call import Call
from aiopgq.task import Task

__all__ = ["Limited", "Load", "declare", "declare_limited", "enqueue_in_chunks", "preload", "producing"]

_CHUNK = 1000


class Load(NamedTuple):
    """An App and its tasks.

    Attributes:
        jobs: The App.
        noop: Does nothing with three typed arguments.
        stamp: Writes the moment its handler starts to stdout, in nanoseconds of CLOCK_MONOTONIC, which all
            processes of a machine share.
    """

    jobs: App[None]
    noop: Task[[int, str, float], None]
    stamp: Task[[int], None]


class Limited(NamedTuple):
    """Tasks with limits.

    Attributes:
        keyed: Does nothing; of each key two run at once.
        daily: Does nothing, once a day.
    """

    keyed: Task[[int], None]
    daily: Task[[int], None]


def declare(dsn: str, state: Callable[[], AbstractAsyncContextManager[None]] | None = None) -> Load:
    """Make the App of a benchmark on one database."""
    jobs: App[None] = App(dsn, state=state)

    @jobs.task(name="bench.noop")
    async def noop(user_id: int, template: str, weight: float) -> None:
        pass

    @jobs.task(name="bench.stamp")
    async def stamp(number: int) -> None:
        os.write(1, b"%d %d\n" % (number, monotonic_ns()))

    return Load(jobs, noop, stamp)


def declare_limited(jobs: App[None]) -> Limited:
    """Add tasks with limits to an App; from then on its worker claims nothing ahead in their queue."""

    @jobs.task(name="bench.keyed", limit=Limit(key="key", running=2))
    async def keyed(key: int) -> None:
        pass

    @jobs.task(name="bench.daily", limit=Limit(rate=1, per=86_400))
    async def daily(number: int) -> None:
        pass

    return Limited(keyed, daily)


async def enqueue_in_chunks(jobs: App[None], calls: Iterable[Call[Any]]) -> None:
    """Enqueue many calls, a thousand in each transaction; the App is open."""
    left = iter(calls)
    while chunk := list(islice(left, _CHUNK)):
        await jobs.enqueue_many(chunk)


@asynccontextmanager
async def producing(dsn: str, rate: float, *, batches: float) -> AsyncIterator[None]:
    """Enqueue so many no-op jobs a second meanwhile, in so many batches."""
    load = declare(dsn)

    async def produce() -> None:
        began, enqueued = perf_counter(), 0
        while True:
            due = int((perf_counter() - began) * rate) - enqueued
            await load.jobs.enqueue_many([load.noop.call(number, "welcome", 0.125) for number in range(due)])
            enqueued += due
            await asyncio.sleep(1 / batches)

    async with load.jobs:
        task = asyncio.create_task(produce())
        try:
            yield
            if task.done():
                await task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def preload(dsn: str, count: int) -> None:
    """Fill the line with no-op jobs, and leave the server with statistics and without a backlog of writes."""
    load = declare(dsn)
    async with load.jobs:
        await enqueue_in_chunks(load.jobs, (load.noop.call(number, "welcome", number / 8) for number in range(count)))
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
