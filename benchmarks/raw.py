"""The floors: what asyncpg alone can do with the same tables and, where possible, the same statements.

    python -m benchmarks.raw DSN

is a process that waits for a NOTIFY, claims, and writes the moment it has the job: the floor of latency.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic_ns
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import uvloop

from aiopgq._store.statements import DEFAULT_SCHEMA, statement
from aiopgq._words.clock import uuid7

__all__ = [
    "Lane",
    "connected",
    "drain",
    "drain_rate",
    "enqueue_batch",
    "insert_batch",
    "insert_notifying",
    "insert_one",
]

CHANNEL: Final = "aiopgq_bench"
_ARGS: Final = '{"user_id":12345,"template":"welcome","weight":0.125}'
_QUEUE: Final = "default"
_TASK: Final = "bench.noop"
_PRIORITY: Final = 100
_SLACK: Final = 256
_CLAIM: Final = statement("claim", DEFAULT_SCHEMA)
_COMPLETE: Final = statement("complete", DEFAULT_SCHEMA)
_ENQUEUE: Final = statement("enqueue", DEFAULT_SCHEMA)
_DRAIN_RATE: Final = statement("drain_rate", DEFAULT_SCHEMA)
_INSERT_ONE: Final = """
    INSERT INTO aiopgq.jobs (id, queue, task, args, place) VALUES ($1, $2, $3, $4, nextval('aiopgq.places'))
"""
_INSERT_BATCH: Final = """
    INSERT INTO aiopgq.jobs (id, queue, task, args, place)
    SELECT c.id, $2, $3, c.args::jsonb, nextval('aiopgq.places') FROM unnest($1::uuid[], $4::text[]) AS c (id, args)
"""
_INSERT_NOTIFYING: Final = f"""
    WITH added AS (
        INSERT INTO aiopgq.jobs (id, queue, task, args, place) VALUES ($1, $2, $3, $4, nextval('aiopgq.places'))
    )
    SELECT pg_notify('{CHANNEL}', '')
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Hold a connection."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


# enqueue


async def enqueue_batch(connection: asyncpg.Connection, size: int) -> None:
    """Insert jobs by the statement that aiopgq uses, given what it gives: what jobs share once."""
    await connection.fetch(
        _ENQUEUE,
        [uuid7() for _ in range(size)],
        [_QUEUE],
        [_TASK],
        [_ARGS] * size,
        [_PRIORITY],
        None,
        None,
        [12],
        None,
        None,
    )


async def insert_batch(connection: asyncpg.Connection, size: int) -> None:
    """Insert jobs by the least statement that does it."""
    await connection.execute(_INSERT_BATCH, [uuid7() for _ in range(size)], _QUEUE, _TASK, [_ARGS] * size)


async def insert_one(pool: asyncpg.Pool) -> None:
    """Insert a job by the least statement that does it, on any connection of a pool."""
    await pool.execute(_INSERT_ONE, uuid7(), _QUEUE, _TASK, _ARGS)


async def insert_notifying(connection: asyncpg.Connection) -> None:
    """Insert a job and notify."""
    await connection.execute(_INSERT_NOTIFYING, uuid7(), _QUEUE, _TASK, _ARGS)


# claim and complete


class Claimed(NamedTuple):
    """A batch that was claimed."""

    ids: list[UUID]
    claim_id: UUID


class Lane:
    """One queue at one priority, read from a lower bound, as a claimer does it.

    Args:
        batch: How many jobs to claim at once.
    """

    def __init__(self, batch: int) -> None:
        self._worker = uuid4()
        self._batch = batch
        self._bound = 0

    async def claim(self, connection: asyncpg.Connection) -> Claimed | None:
        """Claim a batch; None if the lane is empty, looked at from its start."""
        while True:
            claim_id = uuid4()
            rows = await connection.fetch(
                _CLAIM,
                self._worker,
                claim_id,
                self._batch,
                [_TASK],
                [_QUEUE],
                [self._batch],
                [_QUEUE],
                [_PRIORITY],
                [self._bound],
            )
            if rows:
                self._bound = max(0, max(row["place"] for row in rows) - _SLACK)
                return Claimed([row["id"] for row in rows], claim_id)
            if not self._bound:
                return None
            self._bound = 0


async def complete(connection: asyncpg.Connection, claimed: Claimed) -> None:
    """Move a batch to the archive."""
    size = len(claimed.ids)
    await connection.fetch(_COMPLETE, claimed.ids, [claimed.claim_id] * size, [None] * size, True)  # noqa: FBT003  # a column of the statement


async def drain(dsn: str, batch: int, loops: int, *, overlapped: bool) -> None:
    """Claim and complete until the line is empty, in so many loops at once."""
    loop = _drain_overlapped if overlapped else _drain_in_turn
    async with asyncio.TaskGroup() as group:
        for _ in range(loops):
            group.create_task(loop(dsn, Lane(batch)))


async def drain_rate(dsn: str, jobs: int, task: str | None = None) -> float:
    """Return the jobs a second of a drain that is over, of one task or of all.

    Raises:
        RuntimeError: Not all of them are completed.
    """
    async with connected(dsn) as connection:
        [(rate, completed)] = await connection.fetch(_DRAIN_RATE, task)
        unfinished = await connection.fetchval("SELECT count(*) FROM aiopgq.jobs WHERE task = coalesce($1, task)", task)
    if completed != jobs or unfinished:
        raise RuntimeError(f"of {jobs} jobs {completed} are completed after the drain, {unfinished} unfinished")

    return float(rate)


async def _drain_in_turn(dsn: str, lane: Lane) -> None:
    async with connected(dsn) as connection:
        while claimed := await lane.claim(connection):
            await complete(connection, claimed)


async def _drain_overlapped(dsn: str, lane: Lane) -> None:
    async with connected(dsn) as claiming, connected(dsn) as completing:
        before: asyncio.Task[None] | None = None
        while claimed := await lane.claim(claiming):
            if before is not None:
                await before
            before = asyncio.create_task(complete(completing, claimed))
        if before is not None:
            await before


# wake


async def _wait_for_jobs(dsn: str) -> None:
    """Write a line for each job the moment it is claimed, until the input ends."""
    woken = asyncio.Event()
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, over.set)
    lane = Lane(1)
    async with connected(dsn) as listening, connected(dsn) as claiming:
        await listening.add_listener(CHANNEL, lambda *_: woken.set())
        await lane.claim(claiming)
        print("ready", flush=True)
        ended = asyncio.create_task(over.wait())
        while not over.is_set():
            wake = asyncio.create_task(woken.wait())
            await asyncio.wait([wake, ended], return_when=asyncio.FIRST_COMPLETED)
            woken.clear()
            while claimed := await lane.claim(claiming):
                sys.stdout.write(f"0 {monotonic_ns()}\n")
                sys.stdout.flush()
                await complete(claiming, claimed)
    asyncio.get_running_loop().remove_reader(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    uvloop.run(_wait_for_jobs(parser.parse_args().dsn))
