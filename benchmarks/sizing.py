"""Sizing: what a steady rate of jobs asks of a machine."""

import asyncio
import os
from time import perf_counter
from typing import Any, Final, NamedTuple

from benchmarks import raw
from benchmarks.cores import busy_seconds, seconds_of
from benchmarks.load import producing
from benchmarks.report import heading, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["run"]

QUESTION: Final = "what do cores, log and disk of a machine carry at a steady rate of jobs?"
METHOD: Final = """\
A producer enqueues no-op jobs in fifty batches a second, one worker process with 100 slots runs them, and the server is
on the same machine; the first seconds do not count. Busy cores: of the whole machine, and of the worker process in it;
the rest is the server and the producer. WAL: what the server wrote to its log, full page images and all. Archive: what
its partitions grew by, with their indexes. Behind: from a job's row to its claim, with the commit of its batch between
them, by the database's clock. Ratio: of the jobs completed to the jobs that were enqueued."""

_RATES: Final = (1_000, 3_000, 10_000, 20_000)
_BATCHES: Final = 50.0
_SLOTS: Final = 100
_SECONDS: Final = 30.0
_WARM_UP: Final = 3.0
_HEAD: Final = (
    "jobs/s", "completed/s", "left", "busy cores", "worker's", "WAL MB/s", "archive bytes/job", "behind p50 ms", "p99",
)  # fmt: skip
_STATE: Final = """
    SELECT
        pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal,
        (SELECT sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits i
         WHERE i.inhparent = 'aiopgq.archive'::regclass) AS archive,
        (SELECT count(*) FROM aiopgq.archive) AS completed,
        (SELECT count(*) FROM aiopgq.jobs) AS unfinished,
        clock_timestamp() AS now
"""
_BEHIND: Final = """
    SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
        ORDER BY 1000 * extract(epoch FROM a.claimed_at - a.created_at)::float8
    ) AS behind
    FROM aiopgq.archive a WHERE a.created_at BETWEEN $1 AND $2
"""


class Look(NamedTuple):
    """The machine and the database at one moment."""

    at: float
    busy: float
    worker: float
    state: Any


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("sizing", QUESTION, METHOD)
    rows, kept_up = [], (0, 0.0)
    for rate in (100,) if quick else _RATES:
        row, ratio = await _round(server, rate, 1.0 if quick else _SECONDS)
        rows.append(row)
        if ratio > 0.99 or not kept_up[0]:
            kept_up = (rate, ratio)
    table(_HEAD, rows)
    rate, ratio = kept_up
    print(f"Answer: {rate:,} jobs/s were kept up with, ratio {ratio:.2f}, on {os.cpu_count()} cores.", flush=True)


async def _round(server: Server, rate: int, seconds: float) -> tuple[tuple[str, ...], float]:
    async with (
        server.database() as dsn,
        raw.connected(dsn) as connection,
        started_workers(dsn, _SLOTS) as [worker],
    ):

        async def look() -> Look:
            return Look(perf_counter(), busy_seconds(), seconds_of(worker.pid), await connection.fetchrow(_STATE))

        worker.go()
        async with producing(dsn, rate, batches=_BATCHES):
            await asyncio.sleep(_WARM_UP)
            first = await look()
            await asyncio.sleep(seconds)
            last = await look()
        behind = await connection.fetchval(_BEHIND, first.state["now"], last.state["now"]) or (0.0, 0.0)
    took = last.at - first.at
    completed = last.state["completed"] - first.state["completed"]
    ratio = completed / (rate * took)

    return (
        f"{rate:,}",
        f"{completed / took:,.0f}",
        f"{last.state['unfinished']:,}",
        f"{(last.busy - first.busy) / took:.2f}",
        f"{(last.worker - first.worker) / took:.2f}",
        f"{float(last.state['wal'] - first.state['wal']) / took / 1e6:.1f}",
        f"{float(last.state['archive'] - first.state['archive']) / max(1, completed):,.0f}",
        f"{behind[0]:.1f}",
        f"{behind[1]:.1f}",
    ), ratio
