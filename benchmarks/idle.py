"""Idle: what a worker costs that has nothing to do, and what it keeps after much work."""

import asyncio
from pathlib import Path
from typing import Final

from benchmarks import raw
from benchmarks.load import preload
from benchmarks.report import heading, table
from benchmarks.server import Server
from benchmarks.workers import WorkerProcess, started_workers

__all__ = ["run"]

QUESTION: Final = "what does an idle worker cost, and does its memory stop growing?"
METHOD: Final = """\
One worker process with 100 slots. Statements: transactions PostgreSQL counts in the worker's database, which nobody
else uses, while it sits idle; each statement of a worker is a transaction of its own. (PostgreSQL's own vacuum may add
a few.) Memory: resident set, from /proc, after each batch of no-op jobs is drained."""

_CONCURRENCY: Final = 100
# PostgreSQL reports what it counted up to ten seconds late; starting up is not idling.
_SETTLING: Final = 12.0
_SECONDS: Final = 20.0
_BATCH: Final = 50_000
_BATCHES: Final = 6
_STATS: Final = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1"


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("idle", QUESTION, METHOD)
    async with server.database() as dsn, started_workers(dsn, _CONCURRENCY) as [worker]:
        worker.go()
        async with raw.connected(dsn) as connection:
            database = await connection.fetchval("SELECT current_database()")
        await asyncio.sleep(1.0 if quick else _SETTLING)
        before = await server.control.fetchval(_STATS, database)
        seconds = 2.0 if quick else _SECONDS
        await asyncio.sleep(seconds)
        after = await server.control.fetchval(_STATS, database)
        rate = (after - before) / seconds
        memory = [_resident_mb(worker)]
        batch, batches = (500, 2) if quick else (_BATCH, _BATCHES)
        for _ in range(batches):
            await preload(dsn, batch)
            await _drained(dsn)
            memory.append(_resident_mb(worker))

    rows = [(f"{number * batch:,}", f"{size:.1f}", f"{size / memory[0]:.2f}") for number, size in enumerate(memory)]
    table(("after jobs", "MB", "ratio to idle"), rows)
    print(
        f"Answer: {rate:.1f} statements/s (wanted: <= 2), {memory[0]:.1f} MB idle (wanted: < 60); "
        f"the last {2 * batch:,} jobs added {memory[-1] - memory[-3]:+.1f} MB, ratio {memory[-1] / memory[-3]:.2f} "
        "(wanted: 1.00).",
        flush=True,
    )


async def _drained(dsn: str) -> None:
    async with raw.connected(dsn) as connection:
        while await connection.fetchval("SELECT EXISTS (SELECT FROM aiopgq.jobs)"):  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.05)


def _resident_mb(process: WorkerProcess) -> float:
    """Return the resident memory of a process (Linux only)."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]

    return int(kilobytes) / 1024
