"""Limits: what jobs over their limit cost the others, and what a limit costs the jobs that have one."""

from typing import Final

import asyncpg

from benchmarks import raw
from benchmarks.load import declare, declare_limited, enqueue_in_chunks, preload
from benchmarks.report import heading, median, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["run"]

QUESTION: Final = (
    "how much slower do jobs without a limit drain beside 100,000 jobs of the same queue that are over theirs?"
)
METHOD: Final = """\
One worker process at concurrency 100 drains no-op jobs, alone and beside jobs whose limit lets one begin a day, in turn
on fresh databases; time as in `drain`. Then it drains jobs of 50 keys of which two run at once each. The ratio is to
the drain alone in the same round."""

_CONCURRENCY: Final = 100
_ROUNDS: Final = 5
_BATCH: Final = 10_000
_KEYS: Final = 50


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("limits", QUESTION, METHOD)
    jobs, blocked, limited = (300, 1000, 300) if quick else (30_000, 100_000, 10_000)
    alone, beside, keyed = [], [], []
    for _ in range(1 if quick else _ROUNDS):
        alone.append(await _unlimited(server, jobs, 0))
        beside.append(await _unlimited(server, jobs, blocked))
        keyed.append(await _limited(server, limited))
    ratio = median(one / other for one, other in zip(beside, alone, strict=True))
    share = median(one / other for one, other in zip(keyed, alone, strict=True))
    table(
        ("jobs", "jobs/s", "range", "ratio"),
        [
            ("without a limit, alone", *_figures(alone), "1.00"),
            (f"without a limit, beside {blocked:,} blocked ones", *_figures(beside), f"{ratio:.2f}"),
            (f"{_KEYS} keys, 2 at once each", *_figures(keyed), f"{share:.2f}"),
        ],
    )
    print(f"Answer: beside {blocked:,} blocked jobs the others drain at ratio {ratio:.2f} (wanted: 0.90).", flush=True)


def _figures(rates: list[float]) -> tuple[str, str]:
    return f"{median(rates):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"


async def _unlimited(server: Server, jobs: int, blocked: int) -> float:
    async with server.database() as dsn:
        if blocked:
            await _block(dsn, blocked)
        await preload(dsn, jobs)
        return await _drained(dsn, "bench.noop", jobs)


async def _limited(server: Server, jobs: int) -> float:
    async with server.database() as dsn:
        app = declare(dsn).jobs
        keyed = declare_limited(app).keyed
        async with app:
            await enqueue_in_chunks(app, (keyed.call(number % _KEYS) for number in range(jobs)))
        await preload(dsn, 0)
        return await _drained(dsn, "bench.keyed", jobs)


async def _block(dsn: str, count: int) -> None:
    """Fill the queue with jobs over their limit, which somebody has looked at."""
    app = declare(dsn).jobs
    daily = declare_limited(app).daily
    async with app:
        await enqueue_in_chunks(app, (daily.call(number) for number in range(count)))
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("INSERT INTO aiopgq.limits VALUES ('bench.daily', NULL, 1, 1, 86400)")
        while await connection.fetchval("SELECT moved FROM aiopgq.admit_jobs($1, $2)", ["bench.daily"], _BATCH):
            pass
        # Else autovacuum does it in some of the drains, and takes a processor from them.
        await connection.execute("VACUUM aiopgq.jobs")
    finally:
        await connection.close()


async def _drained(dsn: str, task: str, jobs: int) -> float:
    async with started_workers(dsn, _CONCURRENCY, burst=True, limited=True) as [worker]:
        worker.go()
        await worker.cpu_seconds()

    return await raw.drain_rate(dsn, jobs, task)
