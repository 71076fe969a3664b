"""Prefetch: while runs are short a few jobs wait in the worker, but not for long, and not for their harm."""

import asyncio
from collections import defaultdict

import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Limit
from aiopgq._store.jobs import Jobs

# Slots of the worker, which jobs that stay occupy; before them quick ones, behind them those that wait.
SLOTS = 2
QUICK = 20
BEHIND = 30
STATUSES = "SELECT task, status, attempts, count(*) AS jobs FROM aiopgq.all_jobs GROUP BY 1, 2, 3"
PLACES = "SELECT array_agg(place ORDER BY (args ->> 'n')::integer) FROM aiopgq.jobs WHERE task = 'behind'"
DECLARE_DEAD = "UPDATE aiopgq.workers SET dead_at = clock_timestamp() WHERE dead_at IS NULL RETURNING id"


@pytest.fixture(autouse=True)
def any_run_is_short(monkeypatch):
    """On a busy machine a run that does nothing may take long."""
    monkeypatch.setattr("aiopgq._words.prefetch._SOON", 1000.0)


@pytest.fixture
def time_stands_still(monkeypatch):
    """What waits is not given away because it waits."""
    monkeypatch.setattr("aiopgq.workshop.TICK", 1000.0)


@pytest.fixture
def limits(monkeypatch):
    """How many jobs each claim asked for."""
    asked, claim = [], Jobs.claim

    async def recorded(self, worker, claim_id, limit, *others):
        asked.append(limit)
        return await claim(self, worker, claim_id, limit, *others)

    monkeypatch.setattr(Jobs, "claim", recorded)
    return asked


class Crowd:
    """An App whose jobs note in which incarnation of the worker they ran."""

    def __init__(self, dsn, journal):
        self.jobs = App(dsn)
        self.worker = None
        self.may_end = asyncio.Event()
        self.staying = 0
        self.ran = defaultdict(list)

        @self.jobs.task(name="quick")
        async def quick(n: int) -> None:
            with journal.run():
                self.note("quick", n)

        @self.jobs.task(name="stays")
        async def stays(n: int) -> None:
            self.staying += 1
            with journal.run():
                self.note("stays", n)
                await self.may_end.wait()

        @self.jobs.task(name="behind")
        async def behind(n: int) -> None:
            with journal.run():
                self.note("behind", n)

        self.quick, self.stays, self.behind = quick, stays, behind

    def note(self, task, n):
        self.ran[task].append((self.worker and self.worker._incarnation.identity.id, n))

    def numbers(self, task):
        return [n for _, n in self.ran[task]]

    async def line_up(self, behind=None):
        """Enqueue; return handles of those behind."""
        calls = [self.quick.call(n) for n in range(QUICK)]
        calls += [self.stays.call(n) for n in range(SLOTS)]
        calls += [(behind or self.behind).call(n) for n in range(BEHIND)]
        return (await self.jobs.enqueue_many(calls))[-BEHIND:]

    def begin(self, **options):
        self.worker = self.jobs.worker(concurrency=SLOTS, **options)
        return self.worker

    @property
    def waiting(self):
        return len(self.worker._workshop.prefetch)

    async def wait(self):
        """Wait until those behind wait in the worker."""
        await eventually(lambda: self.staying == SLOTS and self.waiting == BEHIND, within=30, what="they wait")


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


@pytest.fixture
def crowd(dsn, journal):
    return Crowd(dsn, journal)


async def statuses(sql, task):
    rows = await sql.fetch(STATUSES)
    return {(row["status"], row["attempts"]): row["jobs"] for row in rows if row["task"] == task}


async def test_short_jobs_are_claimed_ahead_and_run_in_their_order(crowd, limits, time_stands_still):
    async with crowd.jobs:
        await crowd.line_up()
        async with crowd.begin() as worker:
            await crowd.wait()
            assert worker.health().running == SLOTS
            crowd.may_end.set()
            await eventually(lambda: len(crowd.ran["behind"]) == BEHIND, within=30, what="they run")

    assert crowd.numbers("behind") == list(range(BEHIND))
    # As many as may wait; those that find slots are not claimed on top.
    assert max(limits) == 100


async def test_a_drain_ends_when_none_waits_any_more(crowd):
    async with crowd.jobs:
        await crowd.jobs.enqueue_many([crowd.quick.call(n) for n in range(500)])
        drained = await crowd.jobs.drain(concurrency=SLOTS)

    assert drained.completed == 500
    assert crowd.numbers("quick") == list(range(500))


async def test_what_waits_at_shutdown_is_released_and_has_spent_no_attempt(crowd, sql, time_stands_still):
    async with crowd.jobs:
        await crowd.line_up()
        async with crowd.begin() as worker:
            await crowd.wait()
            worker.stop()
            crowd.may_end.set()

    assert crowd.ran["behind"] == []
    assert await statuses(sql, "behind") == {("pending", 0): BEHIND}
    assert await statuses(sql, "stays") == {("completed", 1): SLOTS}


async def test_what_waits_for_a_slow_job_is_left_to_an_idle_worker(dsn, crowd, journal, sql):
    other = Crowd(dsn, journal)
    async with crowd.jobs, other.jobs:
        await crowd.line_up()
        async with crowd.begin():
            await eventually(lambda: crowd.staying == SLOTS, within=30, what="the slots are taken")

            async def released():
                return await statuses(sql, "behind") == {("pending", 0): BEHIND}

            await eventually(released, within=30, what="the others may have them")
            before = QUICK + SLOTS
            places = await sql.fetchval(PLACES)
            assert places == list(range(before + 1, before + BEHIND + 1))
            async with other.begin():
                await eventually(lambda: len(other.ran["behind"]) == BEHIND, within=30, what="the other runs them")
            crowd.may_end.set()

    assert crowd.ran["behind"] == []


@pytest.mark.parametrize(
    ("options", "queue_limit", "ahead"),
    [
        ({}, None, True),
        ({"transactional": True}, None, False),
        ({"limit": Limit(running=1)}, None, False),
        ({"ordered_by": "key"}, None, False),
        ({}, Limit(running=100), False),
    ],
    ids=["plain", "transactional", "limited", "ordered", "queue limited"],
)
async def test_nothing_is_claimed_ahead_where_a_job_may_keep_others_waiting(
    crowd, limits, sql, options, queue_limit, ahead
):
    @crowd.jobs.task(name="writes", **options)
    async def writes(key: int = 0) -> None:
        pass

    if queue_limit is not None:
        crowd.jobs.limit_queue("default", queue_limit)

    async with crowd.jobs:
        await crowd.line_up()
        crowd.may_end.set()
        await crowd.begin(burst=True).run()

    assert (max(limits) > SLOTS) == ahead
    assert await statuses(sql, "behind") == {("completed", 1): BEHIND}


async def test_a_job_in_its_last_attempt_does_not_wait_in_a_worker_that_may_die(crowd, sql, time_stands_still):
    async with crowd.jobs:
        await crowd.line_up(crowd.behind.options(max_attempts=1))
        async with crowd.begin():
            await eventually(lambda: crowd.staying == SLOTS, within=30, what="the slots are taken")

            async def released():
                return await statuses(sql, "behind") == {("pending", 0): BEHIND}

            await eventually(released, within=30, what="they are back in line")
            crowd.may_end.set()
            await eventually(lambda: len(crowd.ran["behind"]) == BEHIND, within=30, what="they run")


async def test_none_that_waits_begins_when_the_lease_is_over(crowd, sql, time_stands_still):
    async with crowd.jobs:
        await crowd.line_up()
        async with crowd.begin() as worker:
            await crowd.wait()
            first = worker._incarnation
            # Before anybody has told the loop, as when a handler keeps it busy at that moment.
            first.pulse.holds_until = 0.0
            crowd.may_end.set()
            await eventually(lambda: len(crowd.ran["behind"]) == BEHIND, within=30, what="its successor runs them")

    assert first.identity.id not in {incarnation for incarnation, _ in crowd.ran["behind"]}


async def test_what_waits_is_released_when_the_incarnation_was_declared_dead(crowd, sql, time_stands_still):
    async with crowd.jobs:
        await crowd.line_up()
        async with crowd.begin(lease=2) as worker:
            await crowd.wait()
            first = worker._incarnation
            assert await sql.fetchval(DECLARE_DEAD) == first.identity.id
            await eventually(lambda: first.lost, within=30, what="it has heard of it")
            assert crowd.waiting == 0
            crowd.may_end.set()
            await eventually(lambda: len(crowd.ran["behind"]) == BEHIND, within=30, what="its successor runs them")

    assert first.identity.id not in {incarnation for incarnation, _ in crowd.ran["behind"]}


async def test_a_job_that_waits_is_cancelled_without_having_run(crowd, sql, time_stands_still):
    async with crowd.jobs:
        handles = await crowd.line_up()
        async with crowd.begin():
            await crowd.wait()
            assert await handles[7].cancel() == "requested"

            async def cancelled():
                return (await handles[7].info()).status == "cancelled"

            await eventually(cancelled, within=30, what="it is cancelled while the slots are taken")
            crowd.may_end.set()
            await eventually(lambda: len(crowd.ran["behind"]) == BEHIND - 1, within=30, what="the others run")

    assert 7 not in crowd.numbers("behind")
    assert await statuses(sql, "behind") == {("completed", 1): BEHIND - 1, ("cancelled", 1): 1}
