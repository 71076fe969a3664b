"""Order: of the jobs of one key one runs at a time, in the order in which they were enqueued, whatever happens."""

import asyncio
import random
from collections import defaultdict

import asyncpg
import pytest
from invariants import in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Backoff, Limit, Retry, Snooze, current_job
from aiopgq.errors import ConfigError

# Polling shall not be what helps.
NEVER = 300


@pytest.fixture
def jobs(dsn):
    return App(dsn)


class Ledger:
    """What ran of each key, in order, and whether two ever ran at once."""

    def __init__(self):
        self.ran = defaultdict(list)
        self.inside = set()
        self.together = []

    async def run(self, key, n, turns=1):
        if key in self.inside:
            self.together.append(key)
        self.inside.add(key)
        self.ran[key].append(n)
        for _ in range(turns):
            await asyncio.sleep(0)
        self.inside.discard(key)


@pytest.fixture
def ledger():
    ledger = Ledger()
    yield ledger
    assert ledger.together == []


async def test_jobs_of_a_key_run_one_at_a_time_in_order_and_keys_beside_each_other(jobs, ledger):
    most = 0

    @jobs.task(name="t", ordered_by="order")
    async def task(order: int, n: int) -> None:
        nonlocal most
        most = max(most, len(ledger.inside) + 1)
        await ledger.run(order, n, 20)

    dice = random.Random(5)
    async with jobs, jobs.worker(concurrency=20), jobs.worker(concurrency=20):
        calls = [task.options(priority=dice.choice([1, 100, 200])).call(n % 6, n) for n in range(120)]
        await jobs.enqueue_many(calls)
        await eventually(lambda: sum(map(len, ledger.ran.values())) == 120, within=30, what="all have run")

    assert ledger.ran == {key: list(range(key, 120, 6)) for key in range(6)}
    assert most > 1


async def test_a_retry_keeps_its_turn_also_while_it_waits(jobs, ledger, sql):
    @jobs.task(name="t", ordered_by="order", backoff=Backoff(base=0.05, factor=1, jitter=0))
    async def task(order: str, n: int) -> Retry | Snooze | None:
        await ledger.run(order, (n, current_job().attempt))
        if n == 0 and len(ledger.ran[order]) == 1:
            raise ValueError
        if n == 0 and len(ledger.ran[order]) == 2:
            return Snooze(0.05)
        if n == 1 and len(ledger.ran[order]) == 4:
            return Retry(after=0)
        return None

    async with jobs, jobs.worker(poll_interval=NEVER):
        for one in await jobs.enqueue_many([task.call("a", n) for n in range(3)]):
            await one.result(timeout=20)

    assert ledger.ran["a"] == [(0, 1), (0, 2), (0, 2), (1, 1), (1, 2), (2, 1)]


async def test_a_delayed_job_stops_those_behind_it(jobs, ledger, sql):
    @jobs.task(name="t", ordered_by="order")
    async def task(order: str, n: int) -> None:
        await ledger.run(order, n)

    async with jobs:
        await task.options(delay=3600).enqueue("a", 0)
        await task.enqueue("a", 1)
        await task.enqueue("b", 2)
        await jobs.worker(burst=True).run()
        assert ledger.ran == {"b": [2]}
        await sql.execute("UPDATE aiopgq.jobs SET run_at = now() WHERE place IS NULL")
        await jobs.worker(burst=True).run()

    assert ledger.ran["a"] == [0, 1]


async def test_a_dead_letter_lets_the_next_pass(jobs, ledger):
    @jobs.task(name="t", ordered_by="order", max_attempts=1)
    async def task(order: str, n: int) -> None:
        await ledger.run(order, n)
        if n == 0:
            raise ValueError

    async with jobs:
        await jobs.enqueue_many([task.call("a", n) for n in range(3)])
        await jobs.worker(burst=True).run()

    assert ledger.ran["a"] == [0, 1, 2]


@pytest.mark.parametrize("remedy", ["replay", "purge"])
async def test_a_dead_letter_blocks_its_key_until_it_is_replayed_or_purged(jobs, ledger, remedy):
    broken = True

    @jobs.task(name="t", ordered_by="order", on_dead="block", max_attempts=1)
    async def task(order: str, n: int) -> None:
        await ledger.run(order, n)
        if n == 1 and broken:
            raise ValueError

    async with jobs:
        await jobs.enqueue_many([task.call(key, n) for n in range(4) for key in ("a", "b") if (key, n) != ("b", 1)])
        await jobs.worker(burst=True).run()
        assert ledger.ran == {"a": [0, 1], "b": [0, 2, 3]}
        late = await task.enqueue("a", 4)
        await jobs.worker(burst=True).run()
        assert ledger.ran["a"] == [0, 1]
        assert (await late.info()).held == "order"

        broken = False
        dead = await jobs.inspector.dead()
        async with jobs.worker(poll_interval=NEVER):
            assert await getattr(jobs.inspector, remedy)(dead) == ((1, {}) if remedy == "replay" else 1)
            await late.result(timeout=10)

    assert ledger.ran["a"] == ([0, 1, 1, 2, 3, 4] if remedy == "replay" else [0, 1, 2, 3, 4])


async def test_a_cancelled_job_gives_its_turn_to_the_next(jobs, ledger):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t", ordered_by="order")
    async def task(order: str, n: int) -> None:
        if n == 0:
            going.set()
            await may_end.wait()
        await ledger.run(order, n)

    async with jobs, jobs.worker(poll_interval=NEVER):
        handles = await jobs.enqueue_many([task.call("a", n) for n in range(4)])
        await going.wait()
        assert (await handles[1].info()).held in ("order", "new order")
        await handles[1].cancel()
        await handles[0].cancel()
        await handles[3].result(timeout=10)

    assert ledger.ran["a"] == [2, 3]


async def test_an_ordered_job_may_have_a_limit_as_well(jobs, ledger):
    inside = most = 0

    @jobs.task(name="t", ordered_by="order", limit=Limit(running=2))
    async def task(order: int, n: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await ledger.run(order, n, 20)
        inside -= 1

    async with jobs:
        await jobs.enqueue_many([task.call(n % 5, n) for n in range(40)])
        await jobs.worker(burst=True, concurrency=20).run()

    assert ledger.ran == {key: list(range(key, 40, 5)) for key in range(5)}
    assert most == 2


async def test_the_order_of_transactions_that_overlap_is_that_of_their_inserts_and_one_still_runs_at_a_time(
    jobs, ledger, dsn
):
    @jobs.task(name="t", ordered_by="order")
    async def task(order: str, n: int) -> None:
        await ledger.run(order, n, 20)

    connection = await asyncpg.connect(dsn)
    try:
        async with jobs, jobs.worker(poll_interval=NEVER):
            transaction = connection.transaction()
            await transaction.start()
            # Inserted first, committed later: who commits while it is open does not wait for it.
            first = await task.options(connection=connection).enqueue("a", 0)
            await (await task.enqueue("a", 1)).result(timeout=10)
            await transaction.commit()
            await first.result(timeout=10)
    finally:
        await connection.close()

    assert ledger.ran["a"] == [1, 0]


async def test_an_order_that_cannot_be_is_refused_at_the_declaration(jobs):
    with pytest.raises(ConfigError, match="no parameter 'ordre'"):

        @jobs.task(ordered_by="ordre")
        async def one(order: str) -> None: ...

    with pytest.raises(ConfigError, match='"pass" or "block"'):

        @jobs.task(ordered_by="order", on_dead="wait")
        async def two(order: str) -> None: ...


async def test_jobs_that_arrive_in_no_order_are_let_in_by_their_numbers(jobs, ledger, sql):
    @jobs.task(name="t", ordered_by="order")
    async def task(order: str, n: int) -> None:
        await ledger.run(order, n)

    async with jobs:
        await jobs.enqueue_many([task.call("a", n) for n in range(2)])
        # The later one was looked at, the earlier one not yet, as with a batch that is larger than a look.
        await sql.execute(
            "UPDATE aiopgq.jobs SET held = 'order' WHERE order_no = (SELECT max(order_no) FROM aiopgq.jobs)"
        )
        await jobs.worker(burst=True).run()

    assert ledger.ran["a"] == [0, 1]
