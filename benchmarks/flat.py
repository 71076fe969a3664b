"""Flat: whether a claim stays as fast, whatever has happened to the tables."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from statistics import fmean
from typing import Final, NamedTuple

from benchmarks import raw
from benchmarks.hand import Hand, hand, timed
from benchmarks.report import heading, median, table
from benchmarks.server import Server

__all__ = ["PARTS", "run"]

QUESTION: Final = (
    "how much slower is a step when a million jobs have passed, millions wait, or the planner knows nothing?"
)
METHOD: Final = """\
A worker's own claimer, with its bounds and sweeps, claims ten jobs at a time in two databases, a fresh one with 1,000
pending jobs and an aged one, turn about; each batch is settled and replaced. Ratio: of the medians. Mean: of the means,
so with the sweeps, whose share of the time is bounded but not their share of the claims. Commits are asynchronous:
the disk would hide what the claim costs. The tables are filled in SQL. plain: the same line without lower bounds."""

_PENDING: Final = 1000
_SAMPLES: Final = 600
_WANTED: Final = "<= 1.30"

_PLAIN: Final = """
    CREATE SCHEMA plain;
    CREATE TABLE plain.jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, priority smallint NOT NULL,
        status text NOT NULL DEFAULT 'pending', args jsonb NOT NULL
    );
    CREATE INDEX jobs_line ON plain.jobs (queue, priority DESC, id) WHERE status = 'pending'
"""
_PLAIN_FILL: Final = """
    INSERT INTO plain.jobs (queue, priority, args)
    SELECT 'default', 100, '{"user_id": 1}' FROM generate_series(1, $1::integer)
"""
_PLAIN_CLAIM: Final = """
    UPDATE plain.jobs SET status = 'claimed'
    WHERE id = ANY (ARRAY(
        SELECT id FROM plain.jobs WHERE status = 'pending' AND queue = 'default' ORDER BY priority DESC, id LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""
_PLAIN_COMPLETE: Final = "DELETE FROM plain.jobs WHERE id = ANY ($1::bigint[])"

_SOME_ARCHIVED: Final = "SELECT id FROM aiopgq.archive ORDER BY random() LIMIT $1"


class Figure(NamedTuple):
    """A line of the table: milliseconds of a step in the fresh database and in the aged one."""

    name: str
    fresh: list[float]
    aged: list[float]
    wanted: str = _WANTED

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return median(self.aged) / median(self.fresh)

    @property
    def cells(self) -> tuple[str, ...]:
        """As it is printed."""
        return (
            self.name,
            f"{median(self.fresh):.3f}",
            f"{median(self.aged):.3f}",
            f"{self.ratio:.2f}",
            f"{fmean(self.aged) / fmean(self.fresh):.2f}",
            f"{max(self.aged):.1f}",
            self.wanted,
        )


class Size(NamedTuple):
    """How much there is in a full run, or in a quick one."""

    samples: int
    passed: int
    pending: int
    archived: int
    delayed: int
    loaded: int


_FULL: Final = Size(_SAMPLES, 1_000_000, 5_000_000, 10_000_000, 100_000, 200_000)
_QUICK: Final = Size(5, 2000, 2000, 2000, 1000, 1000)


async def run(server: Server, quick: bool, only: str | None = None) -> None:
    """Measure and print, one part or all of them."""
    heading("flat", QUESTION, METHOD)
    size = _QUICK if quick else _FULL
    figures: list[Figure] = []
    for name, part in PARTS.items():
        if only in (None, name):
            figures += await part(server, size)
    head = ("a step of ten jobs", "fresh ms", "aged ms", "ratio", "mean", "longest", "wanted")
    table(head, [figure.cells for figure in figures])
    held = [figure for figure in figures if figure.wanted]
    worst = max(held, key=lambda figure: figure.ratio)
    print(f"Answer: the worst is {worst.name}, ratio {worst.ratio:.2f} (wanted: {_WANTED}).", flush=True)


async def held_xmin(server: Server, size: Size) -> list[Figure]:
    """A transaction with an old snapshot is open while many jobs pass; beside it a queue without bounds."""
    async with _two(server) as (fresh, aged), raw.connected(aged.dsn) as holder:
        for one in (fresh, aged):
            async with raw.connected(one.dsn) as connection:
                await connection.execute(_PLAIN)
        async with holder.transaction(isolation="repeatable_read", readonly=True):
            await holder.fetchval("SELECT count(*) FROM aiopgq.jobs")
            await _pass(aged, size.passed)
            await aged.execute(_PLAIN_FILL, size.passed)
            await aged.execute("UPDATE plain.jobs SET status = 'claimed'")
            await aged.execute("DELETE FROM plain.jobs")
            await _settle_down(fresh, aged)
            passed = f"{size.passed:,} jobs passed"
            figures = await _compared(fresh, aged, size.samples, f"claim, {passed}, xmin held")
            figures.append(await _plain(fresh, aged, max(5, size.samples // 4), f"plain: claim, {passed}, xmin held"))
            figures.append(await _wakes(fresh, aged, max(5, size.samples // 4), f"first claim when woken, {passed}"))

    return figures


async def pending(server: Server, size: Size) -> list[Figure]:
    """Very many jobs are in the line."""
    async with _two(server) as (fresh, aged):
        await aged.fill(size.pending)
        await _settle_down(fresh, aged)
        return await _compared(fresh, aged, size.samples, f"claim, {size.pending:,} pending", settle=True)


async def archived(server: Server, size: Size) -> list[Figure]:
    """Very many jobs are in the archive."""
    async with _two(server) as (fresh, aged):
        for one, count in ((fresh, _PENDING), (aged, size.archived)):
            await one.execute("SELECT aiopgq.make_partitions(14)")
            await one.fill_archive(count)
        await _settle_down(fresh, aged)
        name = f"{size.archived:,} archived"
        figures = await _compared(fresh, aged, size.samples, f"claim, {name}", settle=True)
        lookups = Figure(f"look up a result, {name}", [], [])
        known = [await one.execute(_SOME_ARCHIVED, size.samples) for one in (fresh, aged)]
        for rows in zip(*known, strict=True):
            for one, row, took in zip((fresh, aged), rows, (lookups.fresh, lookups.aged), strict=True):
                await timed(partial(one.status, row["id"]), took)

        return [*figures, lookups]


async def lanes(server: Server, size: Size) -> list[Figure]:
    """Four queues of four priorities each, whose jobs are interleaved."""
    priorities = [30, 100, 150, 200]
    async with _two(server, [f"queue{n}" for n in range(4)], priorities) as (fresh, aged):
        await aged.fill(size.loaded, priorities)
        await _settle_down(fresh, aged)
        name = f"claim, {size.loaded:,} pending in 16 lanes"
        return await _compared(fresh, aged, size.samples, name, priorities, settle=True)


async def delayed(server: Server, size: Size) -> list[Figure]:
    """Many jobs wait for a later moment."""
    async with _two(server) as (fresh, aged):
        await aged.fill(size.delayed, delay=timedelta(days=1))
        await _settle_down(fresh, aged)
        name = f"{size.delayed:,} for later"
        figures = await _compared(fresh, aged, size.samples, f"claim, {name}", settle=True)
        promote = Figure(f"look for due jobs, {name}", [], [])
        for number in range(-5, size.samples):
            for one, took in ((fresh, promote.fresh), (aged, promote.aged)):
                await timed(one.claimer.promote, took if number >= 0 else [])

        return [*figures, promote]


async def stale(server: Server, size: Size) -> list[Figure]:
    """The planner knows nothing, or what was true a moment ago; prepared statements keep their plans."""
    figures = []
    for kind in ("generic", "custom"):
        for flips, name in ((0, "loaded, never analyzed"), (5, "full again, analyzed while empty")):
            async with _two(server, plans=f"force_{kind}_plan") as (fresh, aged):
                await aged.execute("ALTER TABLE aiopgq.jobs SET (autovacuum_enabled = off)")
                await _plan_while_empty(aged)
                for _ in range(flips):
                    await _pass(aged, size.loaded // 10)
                    await aged.execute("ANALYZE")
                    await _plan_while_empty(aged)
                await aged.fill(size.loaded)
                figures += await _compared(fresh, aged, size.samples, f"claim, {name}, {kind} plans", settle=True)

    return figures


PARTS: Final[dict[str, Callable[[Server, Size], Awaitable[list[Figure]]]]] = {
    "held-xmin": held_xmin,
    "pending": pending,
    "archived": archived,
    "lanes": lanes,
    "delayed": delayed,
    "stale": stale,
}


@asynccontextmanager
async def _two(
    server: Server, queues: Sequence[str] = ("default",), priorities: Sequence[int] = (100,), plans: str = "auto"
) -> AsyncIterator[tuple[Hand, Hand]]:
    """Lend hands in a fresh database with a few jobs, and in one to be aged."""
    async with AsyncExitStack() as stack:
        fresh, aged = [
            await stack.enter_async_context(
                hand(await stack.enter_async_context(server.database()), queues, plans=plans)
            )
            for _ in range(2)
        ]
        await fresh.fill(_PENDING, priorities)
        await fresh.execute("ANALYZE")
        yield fresh, aged


async def _pass(one: Hand, count: int) -> None:
    """Let jobs pass through the line, in large batches."""
    await one.fill(count)
    async with hand(one.dsn, one.queues, batch=1000) as worker:
        await worker.drain()


async def _settle_down(*hands: Hand) -> None:
    """Leave statistics, and no backlog of writes."""
    for one in hands:
        await one.execute("ANALYZE")
        await one.execute("CHECKPOINT")


async def _plan_while_empty(one: Hand) -> None:
    """Run the statements on nothing, so often that their plans are kept."""
    for _ in range(8):
        await one.claim(sweep=True)
        await one.claimer.promote()
        await one.complete([])


async def _compared(
    fresh: Hand, aged: Hand, samples: int, name: str, priorities: Sequence[int] = (100,), *, settle: bool = False
) -> list[Figure]:
    """Claim, settle and refill in both databases, turn about."""
    claims, settles = Figure(name, [], []), Figure(name.replace("claim", "settle", 1), [], [])
    await aged.fill(_PENDING, priorities)
    # The first claims prepare statements and find the lanes.
    for number in range(-5, samples):
        for one, claimed, settled in ((fresh, claims.fresh, settles.fresh), (aged, claims.aged, settles.aged)):
            jobs = await timed(one.claim, claimed if number >= 0 else [])
            if len(jobs) != one.batch:
                raise RuntimeError(f"a claim took {len(jobs)} jobs")
            await timed(partial(one.complete, jobs), settled if number >= 0 else [])
            await one.refill(jobs)

    return [claims, settles] if settle else [claims]


async def _plain(fresh: Hand, aged: Hand, samples: int, name: str) -> Figure:
    """Do the same with a line that is always read from its head."""
    claims = Figure(name, [], [], "")
    for one in (fresh, aged):
        await one.execute(_PLAIN_FILL, _PENDING)
    for number in range(-5, samples):
        for one, took in ((fresh, claims.fresh), (aged, claims.aged)):
            rows = await timed(partial(one.execute, _PLAIN_CLAIM, one.batch), took if number >= 0 else [])
            await one.execute(_PLAIN_COMPLETE, [row["id"] for row in rows])
            await one.execute(_PLAIN_FILL, one.batch)

    return claims


async def _wakes(fresh: Hand, aged: Hand, samples: int, name: str) -> Figure:
    """Wake up to one job in a line that was empty."""
    claims = Figure(name, [], [], "")
    for one in (fresh, aged):
        await one.drain()
    for number in range(-5, samples):
        for one, took in ((fresh, claims.fresh), (aged, claims.aged)):
            await one.fill(1)
            await one.complete(await timed(partial(one.claim, sweep=True), took if number >= 0 else []))
            await one.claim(sweep=True)

    return claims
