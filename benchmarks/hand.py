"""A worker worked by hand: its own claimer and its own statements, step by step, so that a step can be timed.

It claims, sweeps and settles as a worker does, but runs nothing. Its connections commit asynchronously: waiting for
the disk is the same on both sides of a ratio and would hide the difference.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import asyncpg

from aiopgq._flow.claim import Claimer
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.statements import DEFAULT_SCHEMA
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq._words.slots import Group

__all__ = ["TASK", "Hand", "hand", "timed"]

_Done = TypeVar("_Done")

TASK: Final = "bench.noop"
_PRIORITY: Final = 100
# Filling a table and writing it out may take long.
_TIMER: Final = 600.0
# What a transaction inserts at once: its rows wait in memory for the trigger.
_CHUNK: Final = 250_000
# An id as the client makes it: the time in milliseconds, then chance.
_ID: Final = """
    (substr(now_.hex, 1, 8) || '-' || substr(now_.hex, 9) || '-7' || substr(gen_random_uuid()::text, 16))::uuid
"""
_SOURCE: Final = """
    FROM generate_series(1, $1::integer) AS n
    CROSS JOIN LATERAL (
        SELECT lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint + n * 0), 12, '0') AS hex
    ) AS now_
"""
_ARGS: Final = """jsonb_build_object('user_id', n, 'template', 'welcome', 'weight', n / 8.0)"""
_FILL: Final = f"""
    INSERT INTO aiopgq.jobs (id, queue, task, priority, args, place, run_at)
    SELECT
        {_ID}, ($2::text[])[1 + n % cardinality($2)], '{TASK}',
        ($3::integer[])[1 + n / cardinality($2) % cardinality($3)], {_ARGS},
        CASE WHEN $4::interval = '0' THEN nextval('aiopgq.places') END, clock_timestamp() + $4::interval
    {_SOURCE}
"""
_REFILL: Final = f"""
    INSERT INTO aiopgq.jobs (id, queue, task, priority, args, place)
    SELECT gen_random_uuid(), c.queue, '{TASK}', c.priority, c.args::jsonb, nextval('aiopgq.places')
    FROM unnest($1::text[], $2::integer[], $3::text[]) AS c (queue, priority, args)
"""
_FILL_ARCHIVE: Final = f"""
    INSERT INTO aiopgq.archive
        (id, run_at, created_at, claimed_at, completed_at, worker_id, attempts, max_attempts, events_count, priority,
         status, queue, task, args)
    SELECT
        {_ID}, clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(), $2::uuid, 1, 12, 0, 100,
        'completed', 'default', '{TASK}', {_ARGS}
    {_SOURCE}
"""


class Hand:
    """The steps of one worker.

    Args:
        dsn: The database.
        queues: The queues it serves.
        batch: How many jobs it claims at once.
        plans: What its sessions set plan_cache_mode to.
        durable: Whether its connections commit synchronously.
    """

    def __init__(self, dsn: str, queues: Sequence[str], batch: int, *, plans: str, durable: bool) -> None:
        settings = {"plan_cache_mode": plans, "synchronous_commit": "on" if durable else "off"}

        async def connect() -> asyncpg.Connection:
            return await asyncpg.connect(dsn, server_settings=settings)

        how = ConnectSettings(dsn, DEFAULT_SCHEMA, connect=connect)
        self._lines = {purpose: Line(how, purpose, _TIMER) for purpose in ("claim", "settle")}
        self._settling = Jobs(self._lines["settle"])
        self.dsn = dsn
        self.queues = list(queues)
        self.batch = batch
        self.claimer = Claimer(Jobs(self._lines["claim"]), uuid4(), [TASK], lambda: 1)

    async def fill(self, count: int, priorities: Sequence[int] = (_PRIORITY,), delay: timedelta = timedelta()) -> None:
        """Insert jobs in SQL: their queues alternate, and within a queue their priorities.

        Args:
            count: How many.
            priorities: Their priorities.
            delay: Until they are due; without one they are in the line.
        """
        for size in _chunks(count):
            await self.execute(_FILL, size, self.queues, list(priorities), delay)

    async def refill(self, jobs: Sequence[ClaimedJob]) -> None:
        """Insert as many jobs as were claimed, in the same lanes."""
        await self.execute(
            _REFILL, [job.queue for job in jobs], [job.priority for job in jobs], [job.args for job in jobs]
        )

    async def fill_archive(self, count: int) -> None:
        """Insert jobs that were completed just now."""
        for size in _chunks(count):
            await self.execute(_FILL_ARCHIVE, size, self.claimer.worker)

    async def claim(self, *, sweep: bool = False) -> list[ClaimedJob]:
        """Claim a batch; the queues take turns in coming first."""
        self.queues = [*self.queues[1:], self.queues[0]]
        group = Group(dict.fromkeys(self.queues, self.batch), self.batch)
        return await self.claimer.claim(group, sweep=sweep)

    async def complete(self, jobs: Sequence[ClaimedJob]) -> None:
        """Settle jobs as completed.

        Raises:
            RuntimeError: One of them was no longer ours.
        """
        settled = await self._settling.settle("completed", [Settlement(job, "completed") for job in jobs], keep=True)
        if len(settled) != len(jobs):
            raise RuntimeError(f"of {len(jobs)} jobs {len(settled)} were settled")

    async def status(self, job_id: UUID) -> object:
        """Look where a job stands, as one does who waits for its result."""
        return await self._settling.status(job_id)

    async def drain(self) -> int:
        """Claim and settle until a sweep finds nothing; return how many jobs there were."""
        passed = 0
        while jobs := await self.claim() or await self.claim(sweep=True):
            await self.complete(jobs)
            passed += len(jobs)

        return passed

    async def execute(self, sql: str, *args: Any) -> list[Any]:
        """Run any statement on the settling connection."""
        return await self._lines["settle"].fetch("prepare a benchmark", sql, *args)

    async def close(self) -> None:
        """Close the connections."""
        for line in self._lines.values():
            await line.close()


@asynccontextmanager
async def hand(
    dsn: str, queues: Sequence[str] = ("default",), batch: int = 10, *, plans: str = "auto", durable: bool = False
) -> AsyncIterator[Hand]:
    """Lend a hand."""
    one = Hand(dsn, queues, batch, plans=plans, durable=durable)
    try:
        yield one
    finally:
        await one.close()


async def timed(step: Callable[[], Awaitable[_Done]], took: list[float]) -> _Done:
    """Run a step, note the milliseconds it took, and return what it returned."""
    began = perf_counter()
    done = await step()
    took.append((perf_counter() - began) * 1000)

    return done


def _chunks(count: int) -> Iterator[int]:
    for start in range(0, count, _CHUNK):
        yield min(_CHUNK, count - start)
