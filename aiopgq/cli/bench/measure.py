"""The measurements: each takes the migrated schema it may fill, and returns figures."""

import asyncio
import os
import random
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic_ns, perf_counter
from typing import Final, NamedTuple

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq.cli.bench.load import jobs, noop, stamp
from aiopgq.errors import StoreError

__all__ = ["Figure", "Size", "measure"]

_BULK: Final = 1000
_CALLERS: Final = 50
_GAP: Final = 0.1
_LAST_WORD: Final = 15.0


class Size(NamedTuple):
    """How much is measured.

    Attributes:
        jobs: How many are drained.
        processes: Worker processes that drain.
        concurrency: Slots of each.
        seconds: How long each way to enqueue is tried.
        samples: How often the latency is measured.
    """

    jobs: int
    processes: int
    concurrency: int
    seconds: float
    samples: int


class Figure(NamedTuple):
    """What came out: its name, number, unit, and what was done."""

    name: str
    number: float
    unit: str
    how: str


async def measure(settings: ConnectSettings, size: Size) -> AsyncIterator[Figure]:
    """Measure in a migrated schema that nobody else uses.

    Raises:
        StoreError: PostgreSQL refused, or did not answer; or a worker failed.
    """
    line = Line(settings, "bench")
    try:
        async with jobs:
            # The line is empty before each of the first two; what the others leave in it is dropped with the schema.
            yield await _drain(line, settings, size)
            for figure in await _latency(settings, size):
                yield figure
            for way in (_one_caller, _many_callers, _bulk):
                yield await way(size)
    finally:
        await line.close()


# enqueue


async def _one_caller(size: Size) -> Figure:
    rate = await _calls(lambda: noop.enqueue(12345, "welcome", 0.125), 1, size.seconds)
    return Figure("enqueue, one caller", rate, "jobs/s", "one call after the other, each returns when committed")


async def _many_callers(size: Size) -> Figure:
    rate = await _calls(lambda: noop.enqueue(12345, "welcome", 0.125), _CALLERS, size.seconds)
    return Figure(f"enqueue, {_CALLERS} callers", rate, "jobs/s", "calls at the same time share a commit")


async def _bulk(size: Size) -> Figure:
    calls = await _calls(
        lambda: jobs.enqueue_many(noop.call(number, "welcome", 0.125) for number in range(_BULK)), 1, size.seconds
    )
    return Figure("enqueue in bulk", calls * _BULK, "jobs/s", f"enqueue_many with {_BULK:,} calls from a generator")


async def _calls(call: Callable[[], Awaitable[object]], callers: int, seconds: float) -> float:
    """Return the calls a second."""
    done = 0

    async def caller(until: float) -> None:
        nonlocal done
        while perf_counter() < until:
            await call()
            done += 1

    await call()
    began = perf_counter()
    await asyncio.gather(*(caller(began + seconds) for _ in range(callers)))

    return done / (perf_counter() - began)


# drain


async def _drain(line: Line, settings: ConnectSettings, size: Size) -> Figure:
    for first in range(0, size.jobs, _BULK):
        numbers = range(first, min(first + _BULK, size.jobs))
        await jobs.enqueue_many([noop.call(number, "welcome", number / 8) for number in numbers])
    options = ("--burst", "--processes", str(size.processes), "--concurrency", str(size.concurrency))
    async with _worker(settings, *options) as worker:
        await worker.wait()
        await _check(worker)
    rate, done = await Jobs(line).drain_rate()
    if done != size.jobs:
        raise StoreError(f"Of {size.jobs} jobs {done} were found completed after the drain.")
    workers = f"{size.processes} worker process{'es' if size.processes > 1 else ''} x {size.concurrency} slots"

    return Figure("drain", rate, "jobs/s", f"{size.jobs:,} jobs that do nothing, {workers}")


# latency


async def _latency(settings: ConnectSettings, size: Size) -> list[Figure]:
    took = []
    async with _worker(settings):
        # The first ones wait for the worker, and prepare statements.
        for number in range(-3, size.samples):
            await asyncio.sleep(_GAP * random.uniform(1.0, 1.5))  # noqa: S311  # no rhythm with anything else
            began = monotonic_ns()
            started = await (await stamp.enqueue()).result()
            if number >= 0:
                took.append((started - began) / 1e6)
    took.sort()
    how = f"from the call to the handler's first line, worker asleep, {size.samples} samples"

    return [
        Figure("latency, p50", statistics.median(took), "ms", how),
        Figure("latency, p95", took[int(len(took) * 0.95)], "ms", ""),
    ]


@asynccontextmanager
async def _worker(settings: ConnectSettings, *options: str) -> AsyncIterator[Process]:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiopgq", "run", "-A", "aiopgq.cli.bench.load", "--no-job-log", *options),
        env=_environment(settings),
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.terminate()
        try:
            async with asyncio.timeout(_LAST_WORD):
                await worker.communicate()
        except TimeoutError:
            worker.kill()
            await worker.wait()


def _environment(settings: ConnectSettings) -> Mapping[str, str]:
    # What is set for workers of the user's own does not count here.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AIOPGQ_")}
    return ours | {"AIOPGQ_DSN": settings.dsn, "AIOPGQ_SCHEMA": settings.schema}


async def _check(worker: Process) -> None:
    if worker.returncode:
        said, _ = await worker.communicate()
        raise StoreError(f"The worker ended with code {worker.returncode}: {said.decode(errors='replace')[-2000:]}")
