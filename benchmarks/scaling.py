"""Scaling: what more worker processes bring, and where it ends."""

import os
from math import sqrt
from time import monotonic
from typing import Final, NamedTuple

from benchmarks import raw
from benchmarks.cores import busy_seconds
from benchmarks.load import preload
from benchmarks.report import heading, median, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["Law", "fit", "run"]

QUESTION: Final = "how does the drain grow with the number of worker processes, and what ends it?"
METHOD: Final = """\
As in drain, 100 slots a process, workers and server on this machine. The law is Gunther's universal scalability law,
X(N) = first * N / (1 + contention * (N - 1) + coherence * N * (N - 1)), fitted by least squares to N / X(N).
Busy cores: all of this machine, between the first claim and the end, and the share of the worker processes in it."""

_SLOTS: Final = 100


class Law(NamedTuple):
    """The universal scalability law.

    Attributes:
        first: Jobs a second of one process, by the fit.
        contention: The share that waits its turn.
        coherence: What each pair of processes costs.
    """

    first: float
    contention: float
    coherence: float

    def rate(self, processes: float) -> float:
        """Return the jobs a second that so many processes drain."""
        others = processes - 1
        return self.first * processes / (1 + self.contention * others + self.coherence * processes * others)

    @property
    def peak(self) -> float:
        """How many processes drain most; infinite if more never harm."""
        if self.coherence <= 0:
            return float("inf")
        return sqrt(max(0.0, 1 - self.contention) / self.coherence)


def fit(rates: dict[int, float]) -> Law:
    """Fit the law to jobs a second by number of processes, three of them at least."""
    # N / X(N) is linear in 1, N - 1 and N (N - 1).
    rows = [((1.0, n - 1.0, n * (n - 1.0)), n / rate) for n, rate in rates.items()]
    equations = [
        [sum(x[i] * x[j] for x, _ in rows) for j in range(3)] + [sum(x[i] * y for x, y in rows)] for i in range(3)
    ]
    for i in range(3):
        equations[i] = [value / equations[i][i] for value in equations[i]]
        for j in range(3):
            if j != i:
                equations[j] = [a - equations[j][i] * b for a, b in zip(equations[j], equations[i], strict=True)]
    constant, contention, coherence = (equation[3] for equation in equations)

    return Law(1 / constant, contention / constant, coherence / constant)


class Round(NamedTuple):
    """Jobs a second, busy cores of the machine, and busy cores of the workers."""

    rate: float
    busy: float
    workers: float


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("scaling", QUESTION, METHOD)
    jobs, rounds, numbers = (300, 1, (1, 2, 3)) if quick else (60_000, 3, (1, 2, 3, 4, 6, 8))
    found = {n: [await _round(server, n, jobs) for _ in range(rounds)] for n in numbers}
    rates = {n: median(one.rate for one in of_n) for n, of_n in found.items()}
    law = fit(rates)
    rows = [
        (
            str(n),
            f"{rates[n]:,.0f}",
            f"{law.rate(n):,.0f}",
            f"{median(one.busy for one in of_n):.2f}",
            f"{median(one.workers for one in of_n):.2f}",
        )
        for n, of_n in found.items()
    ]
    table(("processes", "jobs/s", "by the law", "busy cores", "of the workers"), rows)
    alone, most, best = rates[numbers[0]], max(rates.values()), max(rates, key=lambda n: rates[n])
    print(
        f"Answer: one process drains {alone:,.0f} jobs/s, {best} drain most, {most:,.0f}, ratio {most / alone:.2f}; "
        f"contention {law.contention:.2f}, coherence {law.coherence:.3f}: "
        f"{law.peak:.1f} processes would be best on {os.cpu_count()} cores.",
        flush=True,
    )


async def _round(server: Server, processes: int, jobs: int) -> Round:
    async with server.database() as dsn:
        await preload(dsn, jobs)
        async with started_workers(dsn, _SLOTS, processes=processes, burst=True) as workers:
            began, busy = monotonic(), busy_seconds()
            for worker in workers:
                worker.go()
            cpu = sum([await worker.cpu_seconds() for worker in workers])
            took, busy = monotonic() - began, busy_seconds() - busy
        rate = await raw.drain_rate(dsn, jobs)

    return Round(rate, busy / took, cpu / took)
