"""Latency: how long from the enqueue call to the first line of the handler."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Final

from benchmarks import raw
from benchmarks.load import declare
from benchmarks.report import heading, median, percentile, table
from benchmarks.server import Server
from benchmarks.workers import WorkerProcess, started_process, started_workers

__all__ = ["run"]

QUESTION: Final = "how long does it take from the enqueue call to the first line of the handler?"
METHOD: Final = """\
The worker is a process of its own and has fallen asleep: at least 100 ms pass between two jobs. Both ends read
CLOCK_MONOTONIC. Floor: INSERT and NOTIFY in one statement; another process LISTENs and claims by the same SQL function
on a second connection. Samples of both alternate, each in a database of its own."""

_SAMPLES: Final = 200
_GAP: Final = 0.1
# Milliseconds a bar of the histogram is wide, and how many bars there may be.
_BIN: Final = 0.25
_BINS: Final = 24


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("latency", QUESTION, METHOD)
    floor: list[float] = []
    ours: list[float] = []
    async with server.database() as raw_dsn, server.database() as dsn:
        load = declare(dsn)
        async with (
            raw.connected(raw_dsn) as connection,
            load.jobs,
            started_process("benchmarks.raw", raw_dsn) as listener,
            started_workers(dsn, 10) as [worker],
        ):
            worker.go()
            number = 0

            async def enqueue() -> None:
                await load.stamp.enqueue(number)

            async def insert() -> None:
                await raw.insert_notifying(connection)

            # The first ones prepare statements.
            for number in range(-3, 5 if quick else _SAMPLES):
                for process, send, took in ((listener, insert, floor), (worker, enqueue, ours)):
                    await asyncio.sleep(_GAP * random.uniform(1.0, 1.5))
                    milliseconds = await _sample(process, send)
                    if number >= 0:
                        took.append(milliseconds)
    percents = (50, 95, 99)
    rows = [
        (name, *(f"{percentile(took, percent):.2f}" for percent in percents), f"{max(took):.2f}")
        for name, took in (("raw", floor), ("aiopgq", ours))
    ]
    table(("ms", *(f"p{percent}" for percent in percents), "max"), rows)
    _histogram(floor, ours)
    ratio = median(ours) / median(floor)
    print(f"Answer: p50 {median(ours):.2f} ms, ratio {ratio:.2f} to the raw floor (wanted: <= 1.50).", flush=True)


def _histogram(floor: list[float], ours: list[float]) -> None:
    """Print how many samples took how long."""
    counts = [Counter(min(_BINS - 1, int(ms / _BIN)) for ms in took) for took in (floor, ours)]
    table(
        ("ms", "raw", "aiopgq"),
        [
            (f"{number * _BIN:.2f}{' or more' if number == _BINS - 1 else ''}", *(f"{of[number]}" for of in counts))
            for number in range(min(map(min, counts)), max(map(max, counts)) + 1)
        ],
    )


async def _sample(process: WorkerProcess, send: Callable[[], Awaitable[None]]) -> float:
    """Return the milliseconds from a call to the handler."""
    began = monotonic_ns()
    await send()
    _, at = await process.line()

    return (int(at) - began) / 1e6
