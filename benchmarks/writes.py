"""Writes: what a job costs the disk, from enqueue to archive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import asyncpg

from benchmarks import raw
from benchmarks.load import declare, enqueue_in_chunks
from benchmarks.report import heading, median, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["run"]

QUESTION: Final = "how many bytes of WAL and dead rows does a job leave, from the enqueue to the archive?"
METHOD: Final = """\
Jobs with three small arguments are enqueued in batches of 1,000 and drained by one worker process; the floor does the
same by asyncpg alone with the same SQL functions, in batches of 500. Each begins with a CHECKPOINT; autovacuum is off.
WAL: all records of the server meanwhile, as pg_walinspect reads them, but for their full page images, of which there
is one for each page after a checkpoint, however many jobs it carries. Dead rows: updates and deletes."""

_JOBS: Final = 50_000
_BULK: Final = 1000
_BATCH: Final = 500
_CONCURRENCY: Final = 500
_ROUNDS: Final = 3
_IMAGES: Final = """
    SELECT coalesce(sum(fpi_size), 0)::bigint, coalesce(sum(record_size), 0)::bigint, coalesce(sum(count), 0)::bigint
    FROM pg_get_wal_stats($1, $2, false)
"""
_KINDS: Final = """
    SELECT "resource_manager/record_type" AS kind, count, record_size
    FROM pg_get_wal_stats($1, $2, true) WHERE count > 0 ORDER BY record_size DESC LIMIT 12
"""
_TABLES: Final = """
    SELECT c.oid::regclass::text AS name FROM pg_class c
    WHERE c.relnamespace = 'aiopgq'::regnamespace AND c.relkind = 'r'
"""
_ROWS: Final = """
    SELECT sum(n_tup_ins) AS inserted, sum(n_tup_upd) AS updated, sum(n_tup_del) AS deleted
    FROM pg_stat_user_tables WHERE schemaname = 'aiopgq'
"""


class Written(NamedTuple):
    """Per job: bytes of WAL without images, bytes of images, records, and dead rows."""

    wal: float
    images: float
    records: float
    dead: float
    kinds: list[tuple[str, float, float]]


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("writes", QUESTION, METHOD)
    jobs, rounds = (2000, 1) if quick else (_JOBS, _ROUNDS)
    found: dict[str, list[Written]] = {"raw": [], "aiopgq": []}
    for _ in range(rounds):
        for name, way in (("raw", _raw), ("aiopgq", _ours)):
            async with server.database() as dsn:
                found[name].append(await _written(dsn, jobs, way))
    rows = [
        (
            name,
            f"{median(one.wal for one in some):,.0f}",
            f"{median(one.records for one in some):.1f}",
            f"{median(one.images for one in some):,.0f}",
            f"{median(one.dead for one in some):.2f}",
        )
        for name, some in found.items()
    ]
    table(("a job", "WAL bytes", "records", "bytes of page images", "dead rows"), rows)
    kinds = [(kind, f"{count:.2f}", f"{size:,.0f}") for kind, count, size in found["aiopgq"][-1].kinds]
    table(("what aiopgq writes for a job", "records", "bytes"), kinds)
    ours = median(one.wal for one in found["aiopgq"])
    ratio = median(one.wal / other.wal for one, other in zip(found["aiopgq"], found["raw"], strict=True))
    print(
        f"Answer: {ours:,.0f} bytes a job (wanted: <= 1,300), ratio {ratio:.2f} to the raw floor (wanted: <= 1.05).",
        flush=True,
    )


async def _raw(dsn: str, jobs: int) -> None:
    async with raw.connected(dsn) as connection:
        for start in range(0, jobs, _BULK):
            await raw.enqueue_batch(connection, min(_BULK, jobs - start))
    await raw.drain(dsn, _BATCH, 1, overlapped=False)


async def _ours(dsn: str, jobs: int) -> None:
    load = declare(dsn)
    async with load.jobs:
        await enqueue_in_chunks(load.jobs, (load.noop.call(12345, "welcome", 0.125) for _ in range(jobs)))
    async with started_workers(dsn, _CONCURRENCY, burst=True) as [worker]:
        worker.go()
        await worker.cpu_seconds()


async def _written(dsn: str, jobs: int, way: Callable[[str, int], Awaitable[None]]) -> Written:
    async with raw.connected(dsn) as connection:
        await connection.execute("CREATE EXTENSION pg_walinspect")
        await connection.execute("SELECT aiopgq.make_partitions(14)")
        # Autovacuum writes as well, and when it does is chance.
        for row in await connection.fetch(_TABLES):
            await connection.execute(f"ALTER TABLE {row['name']} SET (autovacuum_enabled = off)")
        await connection.execute("CHECKPOINT")
        begin = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        await way(dsn, jobs)
        end = await connection.fetchval("SELECT pg_current_wal_flush_lsn()")
        [(images, wal, records)] = await connection.fetch(_IMAGES, begin, end)
        kinds = await connection.fetch(_KINDS, begin, end)
        settled = await connection.fetchval("SELECT count(*) FROM aiopgq.archive")
        if settled != jobs:
            raise RuntimeError(f"of {jobs} jobs {settled} are in the archive")
        dead = await _dead_rows(connection, jobs)

    return Written(
        wal / jobs,
        images / jobs,
        records / jobs,
        dead / jobs,
        [(row["kind"], row["count"] / jobs, row["record_size"] / jobs) for row in kinds],
    )


async def _dead_rows(connection: asyncpg.Connection, jobs: int) -> int:
    """Wait until all processes have reported what they did, then count what is left of it."""
    while True:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        [row] = await connection.fetch(_ROWS)
        if row["deleted"] >= jobs and row["inserted"] >= 2 * jobs:
            return int(row["updated"] + row["deleted"])
        await asyncio.sleep(0.2)
