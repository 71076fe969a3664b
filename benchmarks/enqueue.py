"""Enqueue: how fast calls become committed rows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter
from typing import Final, NamedTuple

import asyncpg

from benchmarks import raw
from benchmarks.load import declare
from benchmarks.report import heading, median, percentile, table
from benchmarks.server import Server

__all__ = ["run"]

QUESTION: Final = "how fast do calls become committed rows, from one caller, from fifty, and in bulk?"
METHOD: Final = """\
Each line runs for some seconds in a fresh database; a call ends when its row is committed. No worker listens.
Floors: the SQL function of aiopgq or the plainest INSERT, on one held connection (ids are made in the loop, the
encoded arguments are given); and for fifty callers, one INSERT a call on a pool of ten connections."""

_POOL: Final = 10
_CALLERS: Final = 50
_BULK: Final = 1000
_ROUNDS: Final = 5
_SECONDS: Final = 2.0

Call = Callable[[], Awaitable[object]]
Way = Callable[[str], AbstractAsyncContextManager[Call]]


class Speed(NamedTuple):
    """Jobs a second, and milliseconds a call took."""

    rate: float
    p50: float
    p99: float


class Program(NamedTuple):
    """Something measured: its floor is measured in the same round.

    Attributes:
        callers: How many call at once.
        size: How many jobs a call enqueues.
        floors: Ways without aiopgq.
        ours: The way with it.
        wanted: What the ratio to the first floor should reach.
    """

    name: str
    callers: int
    size: int
    floors: dict[str, Way]
    ours: Way
    wanted: str


@asynccontextmanager
async def _function(dsn: str, size: int) -> AsyncIterator[Call]:
    async with raw.connected(dsn) as connection:
        yield lambda: raw.enqueue_batch(connection, size)


@asynccontextmanager
async def _plain(dsn: str, size: int) -> AsyncIterator[Call]:
    async with raw.connected(dsn) as connection:
        yield lambda: raw.insert_batch(connection, size)


@asynccontextmanager
async def _pool(dsn: str) -> AsyncIterator[Call]:
    async with asyncpg.create_pool(dsn, min_size=_POOL, max_size=_POOL) as pool:
        yield lambda: raw.insert_one(pool)


@asynccontextmanager
async def _enqueue(dsn: str) -> AsyncIterator[Call]:
    load = declare(dsn)
    async with load.jobs:
        yield lambda: load.noop.enqueue(12345, "welcome", 0.125)


@asynccontextmanager
async def _enqueue_many(dsn: str) -> AsyncIterator[Call]:
    load = declare(dsn)
    async with load.jobs:
        yield lambda: load.jobs.enqueue_many(load.noop.call(12345, "welcome", 0.125) for _ in range(_BULK))


_PROGRAMS: Final = [
    Program(
        "one caller",
        1,
        1,
        {"SQL function": lambda dsn: _function(dsn, 1), "plain INSERT": lambda dsn: _plain(dsn, 1)},
        _enqueue,
        "",
    ),
    Program(f"{_CALLERS} callers", _CALLERS, 1, {f"pool of {_POOL}, an INSERT a call": _pool}, _enqueue, ">= 5.00"),
    Program(
        f"bulk of {_BULK:,}",
        1,
        _BULK,
        {"SQL function": lambda dsn: _function(dsn, _BULK), "plain INSERT": lambda dsn: _plain(dsn, _BULK)},
        _enqueue_many,
        ">= 0.80",
    ),
]


async def run(server: Server, quick: bool) -> None:
    """Measure and print."""
    heading("enqueue", QUESTION, METHOD)
    rows = []
    answers = []
    for program in _PROGRAMS:
        rounds = [
            {
                name: await _speed(server, way, program, 0.2 if quick else _SECONDS)
                for name, way in {**program.floors, "aiopgq": program.ours}.items()
            }
            for _ in range(1 if quick else _ROUNDS)
        ]
        for name in rounds[0]:
            speeds = [one[name] for one in rounds]
            ratio = median(one["aiopgq"].rate / one[name].rate for one in rounds)
            rows.append(
                (
                    f"{program.name}: {name}",
                    f"{median(speed.rate for speed in speeds):,.0f}",
                    f"{median(speed.p50 for speed in speeds):.2f}",
                    f"{median(speed.p99 for speed in speeds):.2f}",
                    "" if name == "aiopgq" else f"{ratio:.2f}",
                    "" if name == "aiopgq" else program.wanted,
                )
            )
            if name in list(program.floors)[:1]:
                answers.append(f"{program.name} ratio {ratio:.2f}")
    table(("", "jobs/s", "call p50 ms", "p99 ms", "aiopgq's ratio", "wanted"), rows)
    print(f"Answer: {', '.join(answers)}.", flush=True)


async def _speed(server: Server, way: Way, program: Program, seconds: float) -> Speed:
    took: list[float] = []

    async def caller(call: Call, until: float) -> None:
        while (began := perf_counter()) < until:
            await call()
            took.append(perf_counter() - began)

    async with server.database() as dsn, way(dsn) as call:
        # Statements are prepared and connections made before the clock runs.
        await asyncio.gather(*(call() for _ in range(program.callers)))
        began = perf_counter()
        await asyncio.gather(*(caller(call, began + seconds) for _ in range(program.callers)))
        elapsed = perf_counter() - began

    return Speed(len(took) * program.size / elapsed, percentile(took, 50) * 1000, percentile(took, 99) * 1000)
