"""Wake: whatever makes a job pending, a sleeping worker has it within moments, and only sleepers are notified."""

import asyncio
import itertools
import random
from uuid import uuid4

import asyncpg
import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Backoff, Snooze
from aiopgq._flow.wake import slot
from aiopgq._store.jobs import Jobs
from aiopgq.errors import JobFailed

# Polling shall not be what helps.
NEVER = 300
ANY = "SELECT coalesce(pg_sequence_last_value('aiopgq.sleepers_any'), 0)"


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


@pytest.fixture
async def producers(dsn):
    """Two connections that will enqueue."""
    connections = [await asyncpg.connect(dsn) for _ in range(2)]
    yield connections
    for connection in connections:
        await connection.close()


@pytest.fixture
async def other(dsn):
    """A second connection."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def asleep(worker):
    """Wait until a worker sleeps, which old transactions anywhere on the server may hold up."""
    await eventually(lambda: worker._incarnation.sleeper.asleep, within=30, what="the worker sleeps")


class Notifications:
    """What a connection hears on the channel of the schema."""

    def __init__(self, connection):
        self._connection = connection
        self.heard = []
        self._marks = set()

    @classmethod
    async def on(cls, connection):
        self = cls(connection)
        await connection.add_listener("aiopgq", lambda *about: self.heard.append(about[3]))
        await connection.add_listener("mark", lambda *about: self._marks.add(about[3]))
        return self

    async def all(self):
        """Return all that were sent so far: a mark comes after them."""
        mark = uuid4().hex
        await self._connection.execute("SELECT pg_notify('mark', $1)", mark)
        await eventually(lambda: mark in self._marks)
        return self.heard


# every way to pending wakes


async def enqueue(jobs, sql):
    await jobs.task_named("t").enqueue()


async def enqueue_many(jobs, sql):
    await jobs.enqueue_many([jobs.task_named("t").call()])


async def enqueue_in_a_transaction(jobs, sql):
    async with sql.transaction():
        await sql.fetchval("SELECT 1")
        await jobs.task_named("t").options(connection=sql).enqueue()


async def enqueue_in_a_savepoint(jobs, sql):
    async with sql.transaction():
        async with sql.transaction():
            await jobs.task_named("t").options(connection=sql).enqueue()
        await sql.fetchval("SELECT 1")


async def enqueue_in_sql(jobs, sql):
    await sql.execute("SELECT aiopgq.enqueue('t')")


async def plain_insert(jobs, sql):
    await sql.execute("INSERT INTO aiopgq.jobs (id, task) VALUES (gen_random_uuid(), 't')")


async def insert_into_the_line(jobs, sql):
    await sql.execute(
        "INSERT INTO aiopgq.jobs (id, task, place) VALUES (gen_random_uuid(), 't', nextval('aiopgq.places'))"
    )


async def copy(jobs, sql):
    await sql.copy_records_to_table("jobs", schema_name="aiopgq", columns=["id", "task"], records=[(uuid4(), "t")])


async def trigger_of_another_table(jobs, sql):
    await sql.execute("""
        CREATE TABLE users (id integer);
        CREATE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM aiopgq.enqueue('t'); RETURN NULL; END $$;
        CREATE TRIGGER greet AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION greet()""")
    await sql.execute("INSERT INTO users VALUES (1)")


async def delay(jobs, sql):
    await jobs.task_named("t").options(delay=0.3).enqueue()


async def plain_insert_for_later(jobs, sql):
    await sql.execute(
        "INSERT INTO aiopgq.jobs (id, task, run_at) VALUES (gen_random_uuid(), 't', now() + interval '0.3 s')"
    )


async def replay(jobs, sql):
    [dead] = await jobs.inspector.dead(task="t")
    await jobs.inspector.replay([dead])


WAYS = [
    enqueue,
    enqueue_many,
    enqueue_in_a_transaction,
    enqueue_in_a_savepoint,
    enqueue_in_sql,
    plain_insert,
    insert_into_the_line,
    copy,
    trigger_of_another_table,
    delay,
    plain_insert_for_later,
    replay,
]


async def test_every_way_to_pending_wakes_a_sleeping_worker(jobs, journal, sql):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        with journal.run():
            if len(journal.jobs) == 1:
                raise ValueError("the dead letter to replay")

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        with pytest.raises(JobFailed):
            await (await task.enqueue()).result(timeout=10)
        for runs, way in enumerate(WAYS, start=2):
            await asleep(worker)
            await way(jobs, sql)
            await eventually(lambda runs=runs: len(journal.jobs) == runs, within=5, what=f"{way.__name__} wakes it")

    assert len(journal.jobs) == 1 + len(WAYS)


@pytest.mark.parametrize("again", ["retry", "snooze"])
async def test_what_comes_back_later_wakes_the_worker_that_put_it_back(jobs, journal, again):
    @jobs.task(name="t", backoff=Backoff(base=0.5, jitter=0))
    async def task() -> str | Snooze:
        with journal.run():
            if len(journal.jobs) > 1:
                return "done"
            if again == "snooze":
                return Snooze(0.5)
            raise ValueError("again")

    async with jobs, jobs.worker(poll_interval=NEVER):
        job = await task.enqueue()

        assert await job.result(timeout=10) == "done"


async def test_a_job_enqueued_for_later_before_the_worker_started_is_run_when_due(jobs, journal):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        soon = await task.options(delay=1).enqueue()
        late = await task.options(delay=3600).enqueue()
        async with jobs.worker(poll_interval=NEVER) as worker:
            await asleep(worker)
            assert journal.jobs == []
            await soon.result(timeout=10)
            assert (await late.info()).status == "pending"

    assert journal.jobs == [soon.id]


async def test_what_a_worker_gives_back_at_its_shutdown_wakes_another(dsn, journal):
    first, second = App(dsn), App(dsn)
    going = asyncio.Event()

    @first.task(name="t")
    async def interrupted() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    @second.task(name="t")
    async def completed() -> str:
        with journal.run() as run:
            return f"attempt {run.attempt}"

    async with first, second:
        async with first.worker(shutdown_grace=0):
            job = await interrupted.enqueue()
            await going.wait()
            sleeper = second.worker(poll_interval=NEVER)
            await sleeper.__aenter__()
            await asleep(sleeper)
        assert await job.result(timeout=5) == "attempt 1"
        await sleeper.__aexit__()

    assert journal.jobs == [job.id, job.id]


async def test_a_worker_that_leaves_does_not_silence_the_one_that_sleeps_on(dsn, journal):
    apps = [App(dsn), App(dsn)]
    for app in apps:

        @app.task(name="t")
        async def task() -> None:
            with journal.run():
                pass

    async with apps[0], apps[1], apps[0].worker(poll_interval=NEVER) as stays:
        await asleep(stays)
        async with apps[1].worker(poll_interval=NEVER) as leaves:
            await asleep(leaves)
        await (await task.enqueue()).result(timeout=5)


async def test_many_jobs_of_one_transaction_wake_once_and_all_run(jobs, journal, sql, other):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(0.001)

    async with jobs, jobs.worker(poll_interval=NEVER, concurrency=4) as worker:
        await asleep(worker)
        notifications = await Notifications.on(other)
        async with sql.transaction():
            for _ in range(50):
                await task.options(connection=sql).enqueue()
        await eventually(lambda: len(journal.jobs) == 50, within=5)

        assert await notifications.all() == ["default"]
        assert journal.most_at_once == 4


async def test_a_transaction_that_switches_notifications_off_leaves_it_to_polling(jobs, journal, sql, other):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=1) as worker:
        await asleep(worker)
        notifications = await Notifications.on(other)
        async with sql.transaction():
            await sql.execute("SET LOCAL aiopgq.notify = off")
            await task.options(connection=sql).enqueue()
            await insert_into_the_line(jobs, sql)
        await eventually(lambda: len(journal.jobs) == 2, within=5)

        assert await notifications.all() == []


# notifications cost: only sleepers are told


async def test_nobody_is_notified_where_no_worker_is(jobs, sql, other):
    @jobs.task(name="t")
    async def task() -> None: ...

    notifications = await Notifications.on(other)
    async with jobs:
        for _ in range(20):
            await task.enqueue()
        await jobs.enqueue_many([task.call()] * 20)

    assert await notifications.all() == []


async def test_a_worker_that_has_left_is_not_notified_any_more(jobs, other):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        async with jobs.worker(poll_interval=NEVER) as worker:
            await asleep(worker)
        notifications = await Notifications.on(other)
        for _ in range(20):
            await task.enqueue()

        assert len(await notifications.all()) <= 1


@pytest.mark.parametrize("work", [0, 0.002], ids=["jobs of no work", "jobs of 2 ms"])
async def test_a_worker_that_is_busy_is_hardly_ever_notified(jobs, journal, other, work):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(work)

    async with jobs, jobs.worker(poll_interval=NEVER, concurrency=2):
        await (await task.enqueue()).result(timeout=10)
        notifications = await Notifications.on(other)
        for _ in range(300):
            await task.enqueue()
        await eventually(lambda: len(journal.jobs) == 301, within=20)

        assert len(await notifications.all()) < 100


# falling asleep


async def test_sql_and_python_agree_which_slot_a_queue_belongs_to(sql):
    dice = random.Random(5)
    names = ["default", "Emails", "emails", "é", "💥", " ", "'", *(dice.randbytes(20).hex() for _ in range(200))]

    slots = [row[0] for row in await sql.fetch("SELECT aiopgq.slot(n) FROM unnest($1::text[]) AS q (n)", names)]

    assert slots == [slot(name) for name in names]
    assert set(slots) == set(range(16))


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_no_job_is_lost_while_a_worker_falls_asleep(jobs, journal, producers, isolation):
    """Producers insert and commit around the moment when the worker raises its flag, many times."""
    finished = asyncio.Event()
    rounds = 80

    @jobs.task(name="t")
    async def task(number: int) -> None:
        with journal.run():
            finished.set()

    async def produce(connection, before, after):
        """Insert after a while, commit after a while."""
        async with connection.transaction(isolation=isolation):
            await connection.execute("SELECT pg_sleep($1)", before)
            await connection.execute("SELECT aiopgq.enqueue('t', '{\"number\": 1}')")
            await connection.execute("SELECT pg_sleep($1)", after)

    dice = random.Random(7)
    async with jobs, jobs.worker(poll_interval=NEVER):
        for number in range(rounds):
            # The worker has just run this one when the others come: it is on its way to sleep.
            finished.clear()
            await task.enqueue(number)
            await eventually(finished.is_set, within=5, every=0.002, what=f"round {number} begins")
            await asyncio.gather(*(produce(one, dice.uniform(0, 0.01), dice.uniform(0, 0.01)) for one in producers))
            runs = 3 * (number + 1)
            await eventually(lambda runs=runs: len(journal.jobs) == runs, within=5, what=f"round {number} is run")

    assert len(set(journal.jobs)) == 3 * rounds


async def test_a_job_that_began_while_another_worker_had_lowered_the_flag_is_waited_for(jobs, journal, sql, other):
    """A fleet was woken; one of it lowered the flag that all sleep by, and this one found nothing."""

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    lone = slot("default")
    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        flags = await other.fetchval("SELECT flags FROM aiopgq.fall_asleep($1, '{0}', 60)", [lone])
        await other.execute("SELECT aiopgq.wake_up($1, $2)", lone, flags[0])
        await sql.execute("BEGIN")
        await sql.execute("SELECT aiopgq.enqueue('t')")
        await other.execute("SELECT pg_notify('aiopgq', 'default')")
        flag = f"SELECT pg_sequence_last_value('aiopgq.sleepers_{lone}')"
        await eventually(lambda: other.fetchval(flag), what="the worker raises the flag again")
        # Too late for this one, which sends no notification.
        await sql.execute("COMMIT")
        await eventually(lambda: len(journal.jobs) == 1, within=5, what="the job is run")


async def test_a_flag_that_others_only_raised_has_stood_and_one_that_was_lowered_has_not(sql):
    async def fall_asleep(seen=None):
        flags, lowered = (seen["flags"], seen["lowered"]) if seen else ([0], None)
        return await sql.fetchrow("SELECT * FROM aiopgq.fall_asleep('{3}', $1, 60, $2)", flags, lowered)

    async def wake_up(one):
        await sql.execute("SELECT aiopgq.wake_up(3, $1)", one["flags"][0])

    mine = await fall_asleep()
    assert not mine["unbroken"]
    theirs = await fall_asleep()
    assert theirs["flags"] > mine["flags"]

    # They raised it above mine, and so did I again: theirs is no longer what they gave it.
    mine = await fall_asleep(mine)
    assert mine["unbroken"]
    assert mine["horizon"] is None
    await wake_up(theirs)
    assert (await fall_asleep(theirs))["unbroken"]

    # Down for a moment, and up again before anybody looks.
    mine = await fall_asleep(mine)
    await wake_up(mine)
    await fall_asleep(theirs)
    again = await fall_asleep(mine)
    assert not again["unbroken"]
    assert again["horizon"] is not None


async def test_the_flag_that_producers_read_first_stays_above_all_others(sql, dsn):
    fleet = [await asyncpg.connect(dsn) for _ in range(4)]
    highest = "SELECT max(pg_sequence_last_value(('aiopgq.sleepers_' || n)::regclass)) FROM generate_series(0, 15) AS n"
    dice = random.Random(7)

    async def sleep_and_wake(one):
        for _ in range(30):
            slots = sorted(dice.sample(range(16), 3))
            row = await one.fetchrow("SELECT * FROM aiopgq.fall_asleep($1, '{0,0,0}', $2)", slots, dice.uniform(1, 60))
            for number, flag in zip(slots, row["flags"], strict=True):
                await one.execute("SELECT aiopgq.wake_up($1, $2)", number, flag)
                # Nobody lowers it, so what it was after a look at the others it still is.
                assert await one.fetchval(highest) <= await one.fetchval(ANY)

    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*map(sleep_and_wake, fleet))
    finally:
        for one in fleet:
            await one.close()


async def test_a_relay_that_sleeps_costs_those_who_enqueue_nothing(sql):
    await sql.execute("SELECT aiopgq.fall_asleep('{16}', '{0}', 60)")
    assert not await sql.fetchval(ANY)
    await sql.execute("SELECT aiopgq.fall_asleep('{3}', '{0}', 60)")
    assert await sql.fetchval(ANY)


async def test_a_producer_that_was_there_before_the_flag_is_waited_for(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    await sql.execute("BEGIN")
    await sql.execute("SELECT aiopgq.enqueue('t')")
    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await eventually(lambda: worker._incarnation.sleeper._flags != [0], what="the flag is up")
        assert not worker._incarnation.sleeper.asleep
        await sql.execute("COMMIT")
        await eventually(lambda: len(journal.jobs) == 1, within=5)


async def test_a_due_job_that_somebody_holds_is_not_asked_for_all_the_time(jobs, journal, sql, monkeypatch):
    asked = itertools.count()
    promote = Jobs.promote

    async def counted(self, *args):
        next(asked)
        return await promote(self, *args)

    monkeypatch.setattr(Jobs, "promote", counted)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        job = await task.options(delay=0.5).enqueue()
        await asleep(worker)
        async with sql.transaction():
            await sql.execute("SELECT 1 FROM aiopgq.jobs WHERE id = $1 FOR UPDATE", job.id)
            before = next(asked)
            await sql.execute("SELECT pg_sleep(2)")
            during = next(asked) - before
        await job.result(timeout=10)

    assert during < 40


async def test_a_delayed_job_of_a_long_transaction_is_found_below_the_bound(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        async with sql.transaction():
            first = await task.options(connection=sql, delay=0.2).enqueue()
            later = await task.options(delay=0.6).enqueue()
            await later.result(timeout=5)
        await first.result(timeout=5)

    assert journal.jobs == [later.id, first.id]
