"""Limits and order while everything happens at once, counted in a table that the runs write."""

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from uuid import uuid4

import asyncpg
import pytest

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import EARLIEST, Jobs
from aiopgq._store.limits import Limits
from aiopgq._store.workers import Workers
from aiopgq._words.clock import uuid7
from aiopgq._words.job import NewJob, Settlement, WorkerIdentity
from aiopgq._words.limit import Rule
from aiopgq._words.unique import UniqueKey

WORKERS, BATCHES = 8, 200
LIMIT_KEYS = [None, *(f"limit/{n}" for n in range(50))]
ORDER_KEYS = [None] * 10 + [f"order/{n}" for n in range(10)]
EFFECTS = """CREATE TABLE public.effects (
    claim_id uuid, job uuid, limit_key text, order_key text, began timestamptz, ended timestamptz)"""
BEGIN = """
    INSERT INTO public.effects SELECT j.claim_id, j.id, j.limit_key, j.order_key, clock_timestamp()
    FROM aiopgq.jobs j WHERE j.claim_id = $1"""
END = "UPDATE public.effects SET ended = clock_timestamp() WHERE job = ANY ($1) AND ended IS NULL"
TOO_MANY = """
    SELECT limit_key AS key FROM aiopgq.jobs WHERE held IS NULL AND place IS NOT NULL AND limit_key IS NOT NULL
    GROUP BY limit_key HAVING count(*) > 2
    UNION ALL SELECT order_key FROM aiopgq.jobs
    WHERE order_key IS NOT NULL AND coalesce(held, '') NOT IN ('order', 'new order')
    GROUP BY order_key HAVING count(*) > 1"""


class Hammer:
    """Producers that replace and postpone, workers that settle in every way, and die; each on a line of its own."""

    def __init__(self, dsn, dice):
        self.dsn, self.dice = dsn, dice
        self.lines = []
        self.produced = asyncio.Event()
        self.seen = Counter()

    def line(self):
        self.lines.append(Line(ConnectSettings(self.dsn, "aiopgq"), "test"))
        return self.lines[-1]

    def some_job(self):
        new = NewJob(
            id=uuid7(), queue="q", task="t", args="{}", priority=self.dice.choice([30, 100]),
            delay=self.dice.choice([None, None, 0.05]), run_at=None, max_attempts=3, timeout=None, headers=None,
            limit_key=self.dice.choice(LIMIT_KEYS), order_key=self.dice.choice(ORDER_KEYS), order_blocks=False,
        )  # fmt: skip
        if self.dice.random() < 0.7:
            on_conflict = self.dice.choice(["skip", "replace", "replace", "debounce"])
            new.unique = UniqueKey(str(self.dice.randint(0, 100)), on_conflict, None, None)
        return new

    async def produce(self):
        jobs = Jobs(self.line())
        for _ in range(BATCHES):
            answers = await jobs.enqueue_unique([self.some_job() for _ in range(self.dice.randint(1, 6))])
            self.seen.update(answer.verdict for answer in answers)

    async def work(self):
        line, effects = self.line(), await asyncpg.connect(self.dsn)
        jobs, limits, workers = Jobs(line), Limits(line), Workers(line)
        me, mine = await self.register(workers), []
        try:
            while (
                mine or not self.produced.is_set() or await effects.fetchval("SELECT EXISTS (SELECT FROM aiopgq.jobs)")
            ):
                claim_id = uuid4()
                taken = await jobs.claim(me, claim_id, 10, ["t"], {"q": 10}, None)
                if not taken and not (await jobs.promote(EARLIEST, 100, ["t"])).promoted:
                    await limits.let_in_stranded()
                await effects.execute(BEGIN, claim_id)
                mine += taken
                if self.dice.random() < 0.02:
                    self.seen["killed"] += 1
                    await effects.execute(END, [job.id for job in mine])
                    assert await workers.rescue(me, 0, keep=True) == len(mine)
                    me, mine = await self.register(workers), []
                self.dice.shuffle(mine)
                done, mine = mine[: len(mine) // 2 + 1], mine[len(mine) // 2 + 1 :]
                await effects.execute(END, [job.id for job in done])
                for kind, batch in self.outcomes(done).items():
                    assert len(await jobs.settle(kind, batch, keep=True)) == len(batch)
        finally:
            await effects.close()

    async def register(self, workers):
        worker = uuid4()
        await workers.register(WorkerIdentity(worker, "w", "h", 1, "0"), ["q"], ["t"], 5, 60.0, [])
        return worker

    def outcomes(self, done):
        """End half of them, and put the others back: untouched, at once, after a moment, or for another attempt."""
        batches = defaultdict(list)
        for job in done:
            more = {"delay": self.dice.choice([0.0, 0.02]), "refund": True}
            fate = self.dice.choice(["completed", "completed", "failed", "cancelled", "untouched", "later", "retry"])
            if fate == "retry" and job.attempts < job.max_attempts:
                more["refund"] = False
            elif fate == "untouched":
                more["untouched"] = True
            kind = fate if fate in ("completed", "failed", "cancelled") else "pending"
            batches[kind].append(Settlement(job, kind, reason="why", error="{}", **more))
            self.seen[fate] += 1
        return batches

    async def watch(self, sql):
        while not self.produced.is_set() or await sql.fetchval("SELECT EXISTS (SELECT FROM aiopgq.jobs)"):
            assert await sql.fetch(TOO_MANY) == []
            await asyncio.sleep(0)


@pytest.mark.slow
async def test_no_replacement_retry_or_death_lets_one_job_too_many_run(dsn, sql):
    await sql.execute(EFFECTS)
    hammer = Hammer(dsn, random.Random(1))
    await Limits(hammer.line()).declare({"limit": Rule(2, None, None, None)}, [])

    async def produce():
        await asyncio.gather(*(hammer.produce() for _ in range(3)))
        hammer.produced.set()

    try:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(hammer.watch(sql))
            for _ in range(WORKERS):
                group.create_task(hammer.work())
    finally:
        for line in hammer.lines:
            await line.close()

    runs = await sql.fetch("SELECT limit_key, order_key, began, ended FROM public.effects")
    assert (most_at_once(runs, "limit_key"), most_at_once(runs, "order_key")) == (2, 1)
    assert set(hammer.seen) >= {"new", "existing", "replaced", "debounced", "killed", "untouched", "retry"}


def most_at_once(runs, key):
    moments = defaultdict(list)
    for run in runs:
        if run[key] is not None:
            moments[run[key]] += [(run["began"], 1), (run["ended"], -1)]
    return max(max(itertools.accumulate(step for _, step in sorted(steps))) for steps in moments.values())
