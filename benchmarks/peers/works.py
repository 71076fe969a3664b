"""The works: what is measured of each peer."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from benchmarks.peers.programs import Contender, Program, Trial
from benchmarks.report import median, percentile

__all__ = ["FULL", "QUICK", "Figures", "Pace", "Work", "bulk", "checked", "concurrent", "drain", "latency"]

OUR_CONCURRENCY: Final = 500
CONCURRENCIES: Final = (10, 100, 500, 1000)
_CALLERS: Final = 50
_POOL: Final = 10
_BULK: Final = 1000
_GAP: Final = 0.1


class Figures(NamedTuple):
    """One measurement.

    Attributes:
        figure: Jobs a second, or milliseconds for half of the jobs.
        beside: What else is worth a column.
    """

    figure: float
    beside: str = ""


class Pace(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: Times that each work is done by each peer.
        probe: Jobs of the first drain, which finds out how many the others need.
        seconds: How long a drain should last, and a run of enqueuing does.
        most: Jobs of a drain at most.
        samples: Latencies in all.
        concurrencies: Where a peer's best is looked for.
    """

    rounds: int
    probe: int
    seconds: float
    most: int
    samples: int
    concurrencies: tuple[int, ...]


FULL: Final = Pace(rounds=3, probe=2_000, seconds=3.0, most=50_000, samples=200, concurrencies=CONCURRENCIES)
QUICK: Final = Pace(rounds=1, probe=300, seconds=0.2, most=300, samples=30, concurrencies=(10, 100))

Work = Callable[[Contender, Pace], Awaitable[Figures]]


def drain(processes: int, concurrency: int | None = None) -> Work:
    """Drain with so many processes, at a concurrency or at the best one."""

    async def work(contender: Contender, pace: Pace) -> Figures:
        slots = concurrency or await _best(contender, processes, pace)
        jobs, _ = await _tried(contender, processes, slots, pace)
        rate, cpu = await _drained(contender, processes, slots, jobs)
        return Figures(rate, f"{slots:,} slots, {jobs:,} jobs, CPU {cpu:.1f} us/job")

    return work


async def _best(contender: Contender, processes: int, pace: Pace) -> int:
    """Return the concurrency that a peer drains fastest at; with more processes, the better of the two best of one."""
    if contender.kind.role != "peer":
        return OUR_CONCURRENCY

    rates = {slots: (await _tried(contender, 1, slots, pace)).rate for slots in pace.concurrencies}
    fast = sorted(rates, key=lambda slots: rates[slots])
    if processes > 1:
        rates = {slots: (await _tried(contender, processes, slots, pace)).rate for slots in fast[-2:]}

    return max(rates, key=lambda slots: rates[slots])


async def _tried(contender: Contender, processes: int, slots: int, pace: Pace) -> Trial:
    """Find out once how fast a peer drains, and how many jobs make that last.

    A short drain says too little of a peer that settles once a second, so a longer one is tried too.
    """
    setting = processes, slots
    if setting not in contender.trials:
        jobs = pace.probe
        rate, _ = await _drained(contender, processes, slots, jobs)
        lasting = min(pace.most, int(rate * pace.seconds))
        if lasting > jobs:
            rate, _ = await _drained(contender, processes, slots, lasting)
            jobs = max(pace.probe, min(pace.most, int(rate * pace.seconds)))
        contender.trials[setting] = Trial(jobs, rate)

    return contender.trials[setting]


class Drained(NamedTuple):
    """A drain.

    Attributes:
        rate: Jobs a second, from the first handler's start until the database holds no unfinished job.
        cpu: Microseconds of the workers' CPU a job, until the last handler's start.
    """

    rate: float
    cpu: float


async def _drained(contender: Contender, processes: int, slots: int, jobs: int) -> Drained:
    async with (
        contender.database() as dsn,
        contender.programs(dsn, 1) as [looking],
        contender.programs(dsn, processes) as workers,
    ):
        await looking.ask("open", connections=1)
        await looking.ask("preload", jobs=jobs)
        await contender.calm(dsn)
        ran = dict.fromkeys(workers, 0)
        cpu = dict.fromkeys(workers, 0.0)
        first: list[int] = []
        enough = asyncio.Event()

        async def listen(worker: Program) -> None:
            while True:
                told = await worker.line()
                if not ran[worker]:
                    first.append(told["first"])
                ran[worker], cpu[worker] = told["ran"], told["cpu"]
                if sum(ran.values()) >= jobs:
                    enough.set()

        for worker in workers:
            await worker.ask("work", concurrency=slots, stamping=False)
        async with asyncio.TaskGroup() as group:
            listeners = [group.create_task(listen(worker)) for worker in workers]
            await enough.wait()
            settled = await looking.ask("settled")
            for listener in listeners:
                listener.cancel()
    checked(contender.kind.name, jobs, settled["finished"])

    return Drained(jobs / (settled["at"] - min(first)) * 1e9, sum(cpu.values()) / jobs * 1e6)


def checked(name: str, jobs: int, found: int | None) -> None:
    """Refuse a figure that was reached with jobs missing.

    Raises:
        RuntimeError: The database knows another number of jobs.
    """
    if found is not None and found != jobs:
        raise RuntimeError(f"{name}: of {jobs:,} jobs the database knows {found:,}")


def _enqueue(callers: int, size: int, connections: int) -> Work:
    async def work(contender: Contender, pace: Pace) -> Figures:
        async with contender.database() as dsn, contender.programs(dsn, 1) as [program]:
            await program.ask("open", connections=connections)
            await contender.calm(dsn)
            answer = await program.ask("enqueue", callers=callers, size=size, seconds=pace.seconds)
            standing = await program.ask("standing")
        checked(contender.kind.name, answer["jobs"], standing["unfinished"])
        return Figures(answer["rate"], f"CPU {answer['cpu'] * 1e6:.1f} us/job")

    return work


concurrent: Final = _enqueue(_CALLERS, 1, _POOL)
bulk: Final = _enqueue(1, _BULK, 1)


async def latency(contender: Contender, pace: Pace) -> Figures:
    """Measure from the enqueue call to the handler's first line, with a worker that has fallen asleep."""
    took: list[float] = []
    samples = -(-pace.samples // pace.rounds)
    async with (
        contender.database() as dsn,
        contender.programs(dsn, 1) as [producer],
        contender.programs(dsn, 1) as [worker],
    ):
        await producer.ask("open", connections=1)
        await contender.calm(dsn)
        await worker.ask("work", concurrency=10, stamping=True)
        # Until it listens a worker may be slow; the first ones also prepare statements.
        await asyncio.sleep(1.0)
        for number in range(-3, samples):
            await asyncio.sleep(_GAP * random.uniform(1.0, 1.5))
            began, at = await asyncio.gather(producer.ask("one", number=abs(number)), worker.line())
            if number >= 0:
                took.append((at["at"] - began["began"]) / 1e6)
        # The last one's settlement may be under way.
        settled = await producer.ask("settled")
    checked(contender.kind.name, samples + 3, settled["finished"])

    return Figures(median(took), f"p95 {percentile(took, 95):.2f}, p99 {percentile(took, 99):.2f}")
