"""Drain: how fast workers empty a line of no-op jobs."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from benchmarks import raw
from benchmarks.load import preload
from benchmarks.report import heading, median, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["run"]

QUESTION: Final = "how fast do one or two worker processes empty a line of no-op jobs with three typed arguments?"
METHOD: Final = """\
The jobs are preloaded, then ANALYZE and CHECKPOINT; the archive is on. Time runs by the database's clock, from the
first claim to the moment the last settlement begins, whose jobs are not counted; starting up is not in it.
Floor: asyncpg alone with the same two SQL functions, in batches of the concurrency, a loop for each process; in turn
on one connection, or overlapped on two. The ratio is to the better of both in the same round.
CPU: of the worker processes, from their first claim to their end."""


class Setting(NamedTuple):
    """One line of the table."""

    processes: int
    concurrency: int
    jobs: int


class Round(NamedTuple):
    """Jobs a second, and microseconds of CPU a job."""

    in_turn: float
    overlapped: float
    ours: float
    cpu: float

    @property
    def floor(self) -> float:
        """The better floor."""
        return max(self.in_turn, self.overlapped)


_SETTINGS: Final = [
    Setting(processes, concurrency, min(50_000, 2_000 * concurrency))
    for processes, concurrencies in ((1, (1, 10, 50, 100, 200, 1000, 500)), (2, (10, 100, 500)))
    for concurrency in concurrencies
]
_QUICK: Final = [Setting(1, 10, 300), Setting(2, 10, 300)]
_ROUNDS: Final = 5


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("drain", QUESTION, METHOD)
    rows = []
    answer = ""
    for setting in _QUICK if quick else _SETTINGS:
        rounds = [await _round(server, setting) for _ in range(1 if quick else _ROUNDS)]
        ours = median(one.ours for one in rounds)
        ratio = median(one.ours / one.floor for one in rounds)
        rows.append(
            (
                f"{setting.processes} x {setting.concurrency}",
                f"{setting.jobs:,}",
                f"{median(one.in_turn for one in rounds):,.0f}",
                f"{median(one.overlapped for one in rounds):,.0f}",
                f"{ours:,.0f}",
                f"{min(one.ours for one in rounds):,.0f} to {max(one.ours for one in rounds):,.0f}",
                f"{median(one.cpu for one in rounds):.1f}",
                f"{ratio:.2f}",
            )
        )
        if setting.processes == 1:
            answer = f"one process at concurrency {setting.concurrency} drains {ours:,.0f} jobs/s, ratio {ratio:.2f}"
    head = (
        "processes x slots",
        "jobs",
        "raw in turn/s",
        "raw overlapped/s",
        "aiopgq/s",
        "range",
        "CPU us/job",
        "ratio",
    )
    table(head, rows)
    print(f"Answer: {answer} to the raw floor (wanted: 30,000 jobs/s or 0.50, whichever is more).", flush=True)


async def _round(server: Server, setting: Setting) -> Round:
    cpu = 0.0

    async def in_turn(dsn: str) -> None:
        await raw.drain(dsn, setting.concurrency, setting.processes, overlapped=False)

    async def overlapped(dsn: str) -> None:
        await raw.drain(dsn, setting.concurrency, setting.processes, overlapped=True)

    async def ours(dsn: str) -> None:
        nonlocal cpu
        async with started_workers(dsn, setting.concurrency, processes=setting.processes, burst=True) as workers:
            for worker in workers:
                worker.go()
            cpu = sum([await worker.cpu_seconds() for worker in workers])

    return Round(
        in_turn=await _rate(server, setting.jobs, in_turn),
        overlapped=await _rate(server, setting.jobs, overlapped),
        ours=await _rate(server, setting.jobs, ours),
        cpu=cpu / setting.jobs * 1e6,
    )


async def _rate(server: Server, jobs: int, drain: Callable[[str], Awaitable[None]]) -> float:
    async with server.database() as dsn:
        await preload(dsn, jobs)
        await drain(dsn)

        return await raw.drain_rate(dsn, jobs)
