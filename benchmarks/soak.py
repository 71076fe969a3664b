"""Soak: whether the tables stay small and a claim stays fast while jobs pass for a long time."""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from benchmarks import raw
from benchmarks.hand import TASK, Hand, hand, timed
from benchmarks.load import producing
from benchmarks.report import heading, median, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["run"]

QUESTION: Final = "how do tables, dead rows and claims change while jobs pass for minutes at half the drain rate?"
METHOD: Final = """\
First a drain says how fast one worker process is. Then a producer enqueues half of that, in batches ten times a second,
for as many minutes as asked, and the worker runs it. Autovacuum runs as the server has it. Every minute (six times in
a short run) PostgreSQL is asked for dead rows, sizes and autovacuum runs of the table of jobs, and a second claimer of
the same line times fifty claims from its start, past all that is dead there. Ratio: the median of the last third of
these times to the first third, the work being under way in both."""

_CONCURRENCY: Final = 100
_CALIBRATION: Final = 50_000
_BATCHES: Final = 10.0
_PROBES: Final = 50
_FEWEST_LOOKS: Final = 6
_WANTED: Final = 1.3
# Jobs of a claimer that nobody has heard of would be rescued.
_REGISTER: Final = """
    INSERT INTO aiopgq.workers (id, lease, pid, concurrency, name, host, version, queues, tasks)
    VALUES ($1, '1 day', 1, 1, 'probe', 'bench', '0', '{default}', $2)
"""
_STATE: Final = """
    SELECT
        s.n_dead_tup AS dead, s.autovacuum_count AS vacuums, s.autoanalyze_count AS analyzes,
        pg_relation_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes,
        pg_relation_size('aiopgq.jobs_line') AS line,
        (SELECT count(*) FROM aiopgq.jobs) AS unfinished
    FROM pg_stat_user_tables s WHERE s.relid = 'aiopgq.jobs'::regclass
"""
_MB: Final = 1 << 20


class _Look(NamedTuple):
    """What was seen at one moment."""

    minutes: float
    state: Any
    claims: list[float]

    @property
    def cells(self) -> tuple[str, ...]:
        """As it is printed."""
        state = self.state
        return (
            f"{self.minutes:.1f}",
            f"{state['unfinished']:,}",
            f"{state['dead']:,}",
            f"{state['heap'] / _MB:.1f}",
            f"{state['indexes'] / _MB:.1f}",
            f"{state['line'] / _MB:.1f}",
            f"{state['vacuums']}",
            f"{state['analyzes']}",
            f"{median(self.claims):.2f}",
        )


_HEAD: Final = (
    "minutes", "unfinished", "dead rows", "table MB", "indexes MB", "line MB", "vacuums", "analyzes", "claim ms",
)  # fmt: skip


async def run(server: Server, quick: bool, minutes: float = 20.0) -> None:
    """Measure and print."""
    heading("soak", QUESTION, METHOD)
    minutes = 0.1 if quick else minutes
    rate = await _drain_rate(server, 1000 if quick else _CALIBRATION) / 2
    async with (
        server.database() as dsn,
        hand(dsn, batch=1) as probe,
        started_workers(dsn, _CONCURRENCY) as [worker],
    ):
        await probe.execute(_REGISTER, probe.claimer.worker, [TASK])
        worker.go()
        async with producing(dsn, rate, batches=_BATCHES):
            looks = await _watched(probe, minutes)
    table(_HEAD, [look.cells for look in looks])
    third = max(1, len(looks) // 3)
    busy = looks[1:]
    first, last = ([took for look in some for took in look.claims] for some in (busy[:third], busy[-third:]))
    most = max(look.state["dead"] for look in looks)
    print(
        f"Answer: {rate:,.0f} jobs/s for {minutes:g} minutes left at most {most:,} dead rows and "
        f"{looks[-1].state['heap'] / _MB:.0f} MB; claims at the end to those at the beginning: "
        f"ratio {median(last) / median(first):.2f} (wanted: <= {_WANTED:.2f}).",
        flush=True,
    )


async def _drain_rate(server: Server, jobs: int) -> float:
    """Return how many jobs a second one worker process drains."""
    async with server.database() as dsn, hand(dsn) as one:
        await one.fill(jobs)
        await one.execute("ANALYZE")
        async with started_workers(dsn, _CONCURRENCY, burst=True) as [worker]:
            worker.go()
            await worker.cpu_seconds()

        return await raw.drain_rate(dsn, jobs)


async def _watched(probe: Hand, minutes: float) -> list[_Look]:
    """Look at the tables and claim, now and then."""
    looks = []
    began = perf_counter()
    count = max(_FEWEST_LOOKS, round(minutes))
    for number in range(count + 1):
        await asyncio.sleep(max(0.0, began + number * minutes * 60 / count - perf_counter()))
        claims: list[float] = []
        for _ in range(_PROBES):
            await probe.complete(await timed(partial(probe.claim, sweep=True), claims))
        [state] = await probe.execute(_STATE)
        looks.append(_Look((perf_counter() - began) / 60, state, claims))

    return looks
