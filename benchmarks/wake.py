"""Wake: what a notification costs the fleet that hears it, and the producers that may have to send it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any, Final, NamedTuple
from uuid import uuid4

import asyncpg

from aiopgq._flow.claim import Claimer
from aiopgq._flow.listen import keep_listening
from aiopgq._flow.wake import Sleeper
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.statements import DEFAULT_SCHEMA, channel
from aiopgq._words.job import Settlement
from aiopgq._words.slots import Group
from benchmarks import raw
from benchmarks.hand import TASK, hand
from benchmarks.report import heading, median, percentile, table
from benchmarks.server import Server
from benchmarks.workers import started_workers

__all__ = ["PARTS", "run"]

QUESTION: Final = "what does one job cost a sleeping fleet, and what does the wake-up cost those who enqueue?"
METHOD: Final = """\
Herd: up to 50 sleepers (as the server's max_connections allows), each with its own claimer, listener and connection,
are asleep when one job is inserted; their statements are counted until all are asleep again.
Producers: 64 connections commit single INSERTs while a worker process drains a backlog that lasts; the same without
the trigger wake_workers. Then without a backlog, so that the worker keeps up and might fall asleep after every job.
Notifications are counted by a connection that listens."""

_FLEET: Final = 50
_SPARE: Final = 15
_JOBS: Final = 20
_PRODUCERS: Final = 64
_ROUNDS: Final = 5
_SECONDS: Final = 3.0
_BACKLOG: Final = 300_000
_QUEUE: Final = "default"


async def run(server: Server, quick: bool, only: str | None = None) -> None:
    """Measure and print, one part or all of them."""
    heading("wake", QUESTION, METHOD)
    answers = [await part(server, quick) for name, part in PARTS.items() if only in (None, name)]
    print(f"Answer: {'; '.join(answers)}.", flush=True)


# herd


class _CountingLine(Line):
    """A line that counts its statements by what they are for."""

    def __init__(self, settings: ConnectSettings, counts: Counter[str]) -> None:
        super().__init__(settings, "bench")
        self._counts = counts

    async def fetch(self, doing: str, sql: str, *args: Any) -> list[Any]:
        self._counts[doing] += 1
        return await super().fetch(doing, sql, *args)


class _Dozer:
    """A worker's way from sleep to claim and back, with one slot that is always free again."""

    def __init__(self, dsn: str, fleet: int, counts: Counter[str]) -> None:
        self._settings = ConnectSettings(dsn, DEFAULT_SCHEMA)
        self.line = _CountingLine(self._settings, counts)
        self._jobs = Jobs(self.line)
        self._claimer = Claimer(self._jobs, uuid4(), [TASK], lambda: fleet)
        self.sleeper = Sleeper(self._jobs, [_QUEUE], 60.0, self._claimer.seconds_until_due, lambda: fleet)
        self._stop = asyncio.Event()
        self.claimed_at: list[float] = []

    async def run(self) -> None:
        """Sleep and claim until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(
                keep_listening(
                    self._settings,
                    ("", "cancel"),
                    lambda _, queue: self.sleeper.heard(queue),
                    lambda hears: self.sleeper.hearing(deaf=not hears),
                    self._stop,
                )
            )
            while True:
                if not await self._look():
                    await self.sleeper.rest(self._look)

    async def _look(self) -> bool:
        self.sleeper.looking()
        taken = await self._claimer.claim(Group({_QUEUE: 1}, 1), sweep=True)
        self.sleeper.lower_flags(found=bool(taken))
        if taken:
            self.claimed_at.append(perf_counter())
            await self._jobs.settle("completed", [Settlement(job, "completed") for job in taken], keep=True)
            return True

        return await self._claimer.promote()


@asynccontextmanager
async def _dozers(dsn: str, fleet: int, counts: Counter[str]) -> AsyncIterator[list[_Dozer]]:
    dozers = [_Dozer(dsn, fleet, counts) for _ in range(fleet)]
    tasks = [asyncio.create_task(dozer.run()) for dozer in dozers]
    try:
        yield dozers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for dozer in dozers:
            await dozer.line.close()


async def herd(server: Server, quick: bool) -> str:
    """Count what one job makes a sleeping fleet do."""
    allowed = (int(await server.control.fetchval("SHOW max_connections")) - _SPARE) // 2
    fleet = 3 if quick else min(_FLEET, allowed)
    rows = []
    claims: list[float] = []
    for size in (1, fleet):
        counts: Counter[str] = Counter()
        took, everything, claims = [], Counter[str](), []
        async with server.database() as dsn, hand(dsn, durable=True) as producer, _dozers(dsn, size, counts) as dozers:
            await producer.execute("SELECT aiopgq.make_partitions(1)")
            await _all_asleep(dozers)
            for number in range(-1, 2 if quick else _JOBS):
                counts.clear()
                seen = sum(len(dozer.claimed_at) for dozer in dozers)
                began = perf_counter()
                await producer.fill(1)
                while sum(len(dozer.claimed_at) for dozer in dozers) == seen:  # noqa: ASYNC110  # any of many
                    await asyncio.sleep(0.0005)
                at = max(dozer.claimed_at[-1] for dozer in dozers if dozer.claimed_at)
                await _all_asleep(dozers)
                if number >= 0:
                    took.append((at - began) * 1000)
                    claims.append(counts["claim jobs"])
                    everything.update(counts)
        jobs = len(took)
        rows.append(
            (
                str(size),
                f"{median(took):.2f}",
                f"{percentile(took, 95):.2f}",
                f"{median(claims):.0f}",
                f"{everything.total() / jobs:.1f}",
                f"{everything.total() / jobs / size:.1f}",
            )
        )
        kinds = ", ".join(f"{doing} {count / jobs:.1f}" for doing, count in everything.most_common())
        print(f"{size} asleep, a job: {kinds}")
    print(flush=True)
    table(("asleep", "claimed after ms p50", "p95", "claims", "statements", "a worker"), rows)
    per_worker = median(claims) / fleet

    return f"one job makes {fleet} sleepers claim {median(claims):.0f} times, ratio {per_worker:.2f} to the fleet"


async def _all_asleep(dozers: Sequence[_Dozer]) -> None:
    """Wait until all sleep, and what was sent meanwhile has come."""
    quiet = 0
    while quiet < 10:
        await asyncio.sleep(0.01)
        quiet = quiet + 1 if all(dozer.sleeper.asleep for dozer in dozers) else 0


# producers


class _Enqueued(NamedTuple):
    """Commits a second, and notifications meanwhile."""

    rate: float
    notified: int


async def producers(server: Server, quick: bool) -> str:
    """Measure single commits beside a busy worker, with the trigger and without."""
    count, seconds, backlog, rounds = (4, 0.3, 40_000, 1) if quick else (_PRODUCERS, _SECONDS, _BACKLOG, _ROUNDS)
    ways: dict[str, list[_Enqueued]] = {"no trigger": [], "aiopgq": [], "aiopgq, worker keeps up": []}
    for _ in range(rounds):
        for name, found in ways.items():
            async with server.database() as dsn:
                if name == "no trigger":
                    async with raw.connected(dsn) as connection:
                        await connection.execute("DROP TRIGGER wake_workers ON aiopgq.jobs")
                found.append(await _enqueue(dsn, count, seconds, 0 if name.endswith("keeps up") else backlog))
    floor = ways["no trigger"]
    rows = []
    for name, found in ways.items():
        ratio = median(one.rate / other.rate for one, other in zip(found, floor, strict=True))
        rates = [one.rate for one in found]
        rows.append(
            (
                name,
                f"{median(rates):,.0f}",
                f"{min(rates):,.0f} to {max(rates):,.0f}",
                f"{median(one.notified for one in found) / seconds:.1f}",
                f"{ratio:.2f}",
            )
        )
    table((f"{count} producers", "commits/s", "range", "NOTIFY/s", "ratio"), rows)
    ratio = median(one.rate / other.rate for one, other in zip(ways["aiopgq"], floor, strict=True))
    notified = max(one.notified for one in ways["aiopgq"])

    return (
        f"{count} producers beside a busy worker, ratio {ratio:.2f} to the same without the trigger "
        f"(wanted: >= 0.95), with at most {notified} notifications a round (wanted: 0)"
    )


async def _enqueue(dsn: str, producers: int, seconds: float, backlog: int) -> _Enqueued:
    notified = 0
    committed = 0

    def hear(*_: object) -> None:
        nonlocal notified
        notified += 1

    async def produce(pool: asyncpg.Pool) -> None:
        nonlocal committed
        while perf_counter() < until:
            await raw.insert_one(pool)
            committed += 1

    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(hand(dsn))
        await worker.fill(backlog)
        await worker.execute("CHECKPOINT")
        pool = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=producers, max_size=producers))
        listener = await stack.enter_async_context(raw.connected(dsn))
        [process] = await stack.enter_async_context(started_workers(dsn, 10))
        process.go()
        # Statements are prepared and the worker is at work before the clock runs.
        until = perf_counter() + min(1.0, seconds)
        await asyncio.gather(*(produce(pool) for _ in range(producers)))
        await listener.add_listener(channel(DEFAULT_SCHEMA), hear)
        committed, began = 0, perf_counter()
        until = began + seconds
        await asyncio.gather(*(produce(pool) for _ in range(producers)))
        elapsed = perf_counter() - began
        if backlog and not await worker.execute("SELECT FROM aiopgq.jobs WHERE status = 'pending' LIMIT 1"):
            raise RuntimeError("the backlog did not last: the worker was not busy all the time")

    return _Enqueued(committed / elapsed, notified)


PARTS: Final = {"herd": herd, "producers": producers}
