"""Trouble with the database: connections die, answers get lost, rows are refused; every job ends once all the same."""

import asyncio
import itertools
import logging
from datetime import UTC, datetime

import asyncpg
import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from proxy import Proxy
from support import eventually

from aiopgq import App, Backoff
from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import Patience
from aiopgq._store.workers import Workers
from aiopgq._words.codec import Codec
from aiopgq.errors import JobFailed, StoreUnavailable

NEVER = 300
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = ANY ($1)"""
LISTENERS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'aiopgq listen'"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
async def proxy(dsn):
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def asleep(worker):
    """Wait until a worker sleeps, which old transactions anywhere on the server may hold up."""
    await eventually(lambda: worker._incarnation.sleeper.asleep, within=30, what="the worker sleeps")


def deaf(worker):
    return worker._incarnation.sleeper.deaf


async def kill(sql, *purposes):
    """End the server's side of the connections that serve a purpose; return how many."""
    return await sql.fetchval(KILL, [f"aiopgq {purpose}" for purpose in purposes])


async def set_for_database(sql, setting, value):
    """Change a setting for the connections to come."""
    await sql.execute(f"""
        DO $$ BEGIN
            EXECUTE format('ALTER DATABASE %I SET {setting} = %L', current_database(), '{value}');
        END $$""")


async def pause(sql, seconds):
    """Let time pass for everybody."""
    await sql.execute("SELECT pg_sleep($1)", seconds)


# the listener


async def test_a_listener_whose_connection_is_killed_listens_again(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        for _ in range(2):
            assert await kill(sql, "listen") > 0
            await eventually(lambda: deaf(worker))
            await eventually(lambda: not deaf(worker))
            await asleep(worker)
            # Asleep for minutes, it wakes by a notification or not at all.
            await (await task.enqueue()).result(timeout=5)

    assert len(journal.jobs) == 2


async def test_what_was_announced_while_nobody_listened_is_found_at_once(dsn, proxy, journal, monkeypatch):
    # No polling helps before the listener is back.
    monkeypatch.setattr("aiopgq._flow.wake._DEAF_POLL", NEVER)
    jobs = App(dsn, listen_dsn=proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        proxy.refusing = True
        proxy.cut()
        await eventually(lambda: deaf(worker))
        handles = await jobs.enqueue_many([task.call() for _ in range(5)])
        waits = [asyncio.create_task(job.result(timeout=10)) for job in handles]
        proxy.refusing = False
        for wait in waits:
            await wait


async def test_a_cancel_request_is_heard_after_the_listener_has_come_back(jobs, journal, sql):
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        job = await task.enqueue()
        await going.wait()
        await kill(sql, "listen")
        await eventually(lambda: deaf(worker))
        await eventually(lambda: not deaf(worker))
        await job.cancel()

        async def cancelled():
            return (await job.info()).status == "cancelled"

        # A beat would tell as well, seconds later.
        await eventually(cancelled, within=4)


async def test_a_worker_that_cannot_listen_says_so_once_and_polls_every_second(dsn, proxy, journal, caplog):
    proxy.refusing = True
    jobs = App(dsn, listen_dsn=proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        for _ in range(2):
            await task.enqueue()
            runs = len(journal.jobs) + 1
            await eventually(lambda runs=runs: len(journal.jobs) == runs, within=4)
        warnings = [one for one in caplog.records if one.name == "aiopgq.listen" and one.levelno >= logging.WARNING]
        assert ["polling meanwhile" in one.getMessage() for one in warnings] == [True]
        proxy.refusing = False
        await eventually(lambda: not deaf(worker), within=15)
        await asleep(worker)
        await (await task.enqueue()).result(timeout=5)


async def test_a_worker_whose_listener_hangs_polls_every_second(dsn, proxy, journal):
    # Not even a refusal wakes it: the connection is made, and then there is silence.
    proxy.black_hole = True
    jobs = App(dsn, listen_dsn=proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER):
        for runs in (1, 2):
            await task.enqueue()
            await eventually(lambda runs=runs: len(journal.jobs) == runs, within=4)


async def test_a_listener_that_is_refused_tries_again_ever_more_slowly(dsn, proxy, sql, caplog):
    proxy.refusing = True
    jobs = App(dsn, listen_dsn=proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None: ...

    with caplog.at_level(logging.DEBUG, "aiopgq.listen"):
        async with jobs, jobs.worker(poll_interval=NEVER):
            await pause(sql, 3)
            tries = [one for one in caplog.records if one.name == "aiopgq.listen"]

    assert 3 <= len(tries) <= 8
    assert [one.levelno for one in tries].count(logging.WARNING) == 1


async def test_a_half_open_listener_is_noticed(dsn, proxy, journal, monkeypatch):
    for limit in ("PING_INTERVAL", "PING_TIMEOUT", "PROOF_TIMEOUT"):
        monkeypatch.setattr(f"aiopgq._store.listen.{limit}", 0.3)
    monkeypatch.setattr("aiopgq._store.patience._LONGEST", 0.5)
    jobs = App(dsn, listen_dsn=proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        proxy.black_hole = True
        await eventually(lambda: deaf(worker), what="the ping finds the line dead")
        await (await task.enqueue()).result(timeout=5)
        proxy.black_hole = False
        proxy.cut()
        await eventually(lambda: not deaf(worker), within=15)
        await asleep(worker)
        await (await task.enqueue()).result(timeout=5)


async def test_a_listener_that_dies_often_leaves_no_connection_behind(jobs, sql, monkeypatch):
    monkeypatch.setattr("aiopgq._store.patience._FIRST", 0.01)

    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    killed = set()

    async def another():
        return {row["pid"] for row in await sql.fetch(LISTENERS)} - killed

    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        before = await sql.fetchval(CONNECTIONS)
        for _ in range(20):
            [pid] = await eventually(another, what="it listens again")
            await sql.execute("SELECT pg_terminate_backend($1)", pid)
            killed.add(pid)
        await eventually(another)
        await eventually(lambda: not deaf(worker))

        async def only_one_left():
            return len(await sql.fetch(LISTENERS)) == 1 and await sql.fetchval(CONNECTIONS) <= before + 1

        await eventually(only_one_left)
        assert await (await task.enqueue()).result(timeout=5) == "done"


# claims and settlements


async def test_a_worker_with_too_many_outcomes_to_write_claims_again_when_they_are_written(
    jobs, journal, sql, monkeypatch
):
    monkeypatch.setattr("aiopgq.incarnation._FEWEST_UNSETTLED", 0)
    monkeypatch.setattr("aiopgq._flow.wake._LONGEST_PAUSE", NEVER)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(concurrency=1, poll_interval=NEVER) as worker:
        async with sql.transaction():
            await sql.execute("LOCK TABLE aiopgq.archive IN SHARE MODE")
            handles = await jobs.enqueue_many([task.call() for _ in range(20)])
            await eventually(lambda: worker.health().unsettled > 2, what="the worker waits for what is written")
            await pause(sql, 0.1)
            assert len(journal.jobs) < 20
        for job in handles:
            await job.result(timeout=20)


async def test_jobs_end_once_whatever_connections_are_killed(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(0.002)

    async with jobs, jobs.worker(concurrency=5):
        handles, killed = [], 0
        for _ in range(12):
            handles += await jobs.enqueue_many([task.call() for _ in range(25)])
            await pause(sql, 0.05)
            killed += await kill(sql, "claim", "settle", "pulse", "listen")
        for job in handles:
            await job.result(timeout=30)
        infos = [await job.info() for job in handles[::20]]

    assert killed > 4
    assert len(set(journal.jobs)) == len(journal.jobs) == 300
    assert {info.attempts for info in infos} == {1}


@pytest.mark.parametrize("lost", ["claims", "settlements"])
async def test_jobs_end_once_whatever_answers_get_lost(dsn, proxy, journal, monkeypatch, lost):
    monkeypatch.setattr("aiopgq._flow.claim._REREAD_INTERVAL", 0.1)
    # Only answers go through the proxy, no notifications.
    producer, consumer = App(dsn), App(proxy.dsn, listen_dsn=dsn)
    settle, armed = Jobs.settle, []

    async def settle_in_vain(self, *about, **options):
        if armed:
            armed.clear()
            proxy.lose_answer = True
        return await settle(self, *about, **options)

    monkeypatch.setattr(Jobs, "settle", settle_in_vain)
    for app in (producer, consumer):

        @app.task(name="t", max_attempts=2, backoff=Backoff(base=0))
        async def task(fails: bool) -> None:
            with journal.run() as run:
                if fails and run.attempt == 1:
                    raise ValueError

    async with producer, consumer, consumer.worker(concurrency=3, poll_interval=NEVER) as worker:
        handles = []
        fails = producer.task_named("t")
        for number in range(5):
            await asleep(worker)
            if lost == "claims":
                proxy.lose_answer = True
            else:
                armed.append(number)
            handles += await producer.enqueue_many([fails.call(n == number) for n in range(5)])
            await eventually(lambda: proxy.refusing, what="an answer got lost")
            proxy.refusing = False
        for job in handles:
            await job.result(timeout=20)
        infos = [await job.info() for job in handles]

    # Five of a round, and one of them twice.
    assert len(journal.jobs) == 5 * 6
    assert sorted(info.attempts for info in infos) == [1] * 20 + [2] * 5


async def test_a_claim_that_commits_after_its_answer_was_given_up_is_found_by_a_worker_that_sleeps(
    jobs, journal, sql, monkeypatch
):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    claim, reclaim, looks = Jobs.claim, Jobs.reclaim, itertools.count(1)

    async def given_up(self, *args):
        taken = await claim(self, *args)
        if taken and not journal.jobs:
            raise StoreUnavailable("claim jobs")
        return taken

    async def too_early(self, *args):
        return [] if next(looks) == 1 else await reclaim(self, *args)

    monkeypatch.setattr(Jobs, "claim", given_up)
    monkeypatch.setattr(Jobs, "reclaim", too_early)
    async with jobs, jobs.worker(poll_interval=NEVER) as worker:
        await asleep(worker)
        await (await task.enqueue()).result(timeout=10)

    assert journal.attempts == [1]


async def test_running_jobs_live_through_outages(proxy, journal, sql):
    jobs = App(proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(0.1)

    async with jobs, jobs.worker(concurrency=5):
        handles = await jobs.enqueue_many([task.call() for _ in range(50)])
        for _ in range(3):
            runs = len(journal.jobs)
            proxy.refusing = True
            proxy.cut()
            await pause(sql, 0.5)
            proxy.refusing = False
            await eventually(lambda runs=runs: len(journal.jobs) > runs, within=20)
        for job in handles:
            await eventually(lambda job=job: is_completed(job, sql), within=20)

    assert len(journal.jobs) == 50


async def is_completed(job, sql):
    return await sql.fetchval("SELECT status = 'completed' FROM aiopgq.all_jobs WHERE id = $1", job.id)


async def test_a_connect_function_that_fails_now_and_then_does_no_harm(dsn, journal, sql):
    broken = False

    async def connect():
        if broken:
            raise LookupError("the token service is down")
        return await asyncpg.connect(dsn, server_settings={"application_name": "aiopgq mine"})

    jobs = App(connect=connect)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker() as worker:
        await (await task.enqueue()).result(timeout=5)
        broken = True
        await kill(sql, "mine")
        await eventually(lambda: deaf(worker))
        await pause(sql, 0.3)
        broken = False
        await (await task.enqueue()).result(timeout=10)


@pytest.fixture
def failing_starts(monkeypatch):
    """The first two registrations of a worker lose their connection."""
    tries, register = itertools.count(1), Workers.register

    async def register_at_last(self, *about):
        if next(tries) <= 2:
            raise StoreUnavailable("register the worker")
        await register(self, *about)

    monkeypatch.setattr(Workers, "register", register_at_last)


async def test_a_program_whose_worker_cannot_start_yet_tries_again(jobs, journal, failing_starts):
    @jobs.task(name="t")
    async def task() -> str:
        with journal.run():
            return "done"

    async with jobs:
        job = await task.enqueue()
        async with asyncio.timeout(10):
            await jobs.worker(burst=True).run()
        assert await job.result(timeout=0) == "done"


async def test_a_worker_that_could_not_start_may_be_entered_again(jobs, journal, failing_starts):
    @jobs.task(name="t")
    async def task() -> str:
        with journal.run():
            return "done"

    worker = jobs.worker()
    async with jobs:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await worker.__aenter__()
        async with worker:
            assert await (await task.enqueue()).result(timeout=5) == "done"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_database_of_another_isolation_level_is_served_as_well(dsn, journal, sql, isolation):
    await set_for_database(sql, "default_transaction_isolation", isolation)
    apps = [App(dsn) for _ in range(3)]
    for app in apps:

        @app.task(name="t", max_attempts=2, backoff=Backoff(base=0))
        async def task(n: int) -> None:
            with journal.run() as run:
                if n % 5 == 0 and run.attempt == 1:
                    raise ValueError

    async with apps[0], apps[1], apps[2]:
        handles = await apps[2].enqueue_many([task.call(n) for n in range(200)])
        async with apps[0].worker(), apps[1].worker(), apps[2].worker():
            for job in handles:
                await job.result(timeout=20)

    assert len(journal.jobs) == 240


async def test_a_migration_under_the_feet_of_a_busy_worker_is_not_noticed(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(0.002)

    async with jobs, jobs.worker(concurrency=3):
        handles = await jobs.enqueue_many([task.call() for _ in range(200)])
        for change in ("ADD COLUMN x integer", "ALTER COLUMN x TYPE bigint", "DROP COLUMN x"):
            await sql.execute(f"ALTER TABLE aiopgq.jobs {change}")
            await (await task.enqueue()).result(timeout=20)
        for job in handles:
            await job.result(timeout=20)
        infos = [await job.info() for job in handles[::20]]

    assert {info.attempts for info in infos} == {1}


async def test_a_server_that_hangs_up_on_idlers_is_called_again(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    await set_for_database(sql, "idle_session_timeout", "400")
    async with jobs, jobs.worker(poll_interval=NEVER):
        for _ in range(3):
            await (await task.enqueue()).result(timeout=10)
            await pause(sql, 0.6)

    assert len(journal.jobs) == 3


async def test_health_tells_of_a_black_hole_before_any_statement_has_failed(dsn, proxy, journal, caplog, monkeypatch):
    monkeypatch.setattr("aiopgq.worker._STUCK", 1)
    monkeypatch.setattr("aiopgq.incarnation._UNANSWERED", 1)
    jobs = App(proxy.dsn, listen_dsn=dsn)
    done = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await done.wait()

    async with jobs, jobs.worker(poll_interval=0.5) as worker:
        job = await task.enqueue()
        await eventually(lambda: worker.health().running == 1)
        await eventually(lambda: worker.health()[:3] == (True, True, True))
        proxy.black_hole = True
        done.set()
        await eventually(lambda: not worker.health().settling, what="it says that nothing is settled")
        await eventually(lambda: not worker.health().claiming, what="it says that nothing is claimed")
        # Statements are given up after half a minute: all of them are still hoped for.
        assert "cannot settle" not in caplog.text
        assert "cannot claim" not in caplog.text
        assert worker.health().unsettled == 1
        proxy.black_hole = False
        proxy.cut()
        await eventually(lambda: worker.health().unsettled == 0, within=30)
        await job.result(timeout=30)
        await eventually(lambda: worker.health()[:3] == (True, True, True), within=30)


async def test_handlers_that_use_up_a_pool_do_not_keep_the_worker_from_settling(dsn, jobs, journal):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            async with pool.acquire():
                await asyncio.sleep(0.05)

    async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool, jobs, jobs.worker(concurrency=10):
        handles = await jobs.enqueue_many([task.call() for _ in range(30)])
        for job in handles:
            await job.result(timeout=20)
        infos = [await job.info() for job in handles]

    assert {info.attempts for info in infos} == {1}


# the archive


async def drop_today(sql):
    await sql.execute(f"DROP TABLE aiopgq.archive_{datetime.now(UTC):%Y%m%d}")


async def test_a_day_that_is_missing_in_the_archive_is_made_when_it_is_needed(jobs, journal, sql):
    @jobs.task(name="t")
    async def task(n: int) -> int:
        with journal.run():
            return n

    async with jobs, jobs.worker():
        await drop_today(sql)
        handles = await jobs.enqueue_many([task.call(n) for n in range(20)])

        assert [await job.result(timeout=10) for job in handles] == list(range(20))
    assert len(journal.jobs) == 20


async def test_a_backup_that_reads_the_archive_does_not_keep_a_worker_from_starting(jobs, sql):
    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    await sql.execute("""
        CREATE TABLE aiopgq.archive_20200101 PARTITION OF aiopgq.archive
            FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00')""")
    async with sql.transaction():
        await sql.execute("LOCK TABLE aiopgq.archive IN ACCESS SHARE MODE")
        async with jobs, jobs.worker():
            assert await (await task.enqueue()).result(timeout=10) == "done"
        assert await sql.fetchval("SELECT to_regclass('aiopgq.archive_20200101')")
    async with jobs, jobs.worker():
        pass

    assert await sql.fetchval("SELECT to_regclass('aiopgq.archive_20200101')") is None


# rows that PostgreSQL refuses


async def test_an_outcome_that_is_refused_makes_a_dead_letter_of_its_job_alone(jobs, journal, monkeypatch):
    encode = Codec.encode_result

    def poisoned(self, value, limit):
        return "{no JSON" if value in (7, 13) else encode(self, value, limit)

    monkeypatch.setattr(Codec, "encode_result", poisoned)
    together = asyncio.Barrier(20)

    @jobs.task(name="t", max_attempts=5)
    async def task(n: int) -> int:
        with journal.run():
            # All end in one turn of the loop, so that they are settled together.
            await together.wait()
            return n

    async with jobs, jobs.worker(concurrency=20):
        handles = await jobs.enqueue_many([task.call(n) for n in range(20)])
        results = await asyncio.gather(*(job.result(timeout=10) for job in handles), return_exceptions=True)

    failed = {n for n, result in enumerate(results) if isinstance(result, JobFailed)}
    assert failed == {7, 13}
    assert [result for n, result in enumerate(results) if n not in failed] == [n for n in range(20) if n not in failed]
    assert "the outcome (completed) cannot be stored" in results[7].last_error
    assert len(journal.jobs) == 20


async def test_a_job_with_the_id_of_a_dead_letter_fails_like_any_other(jobs, journal, sql):
    @jobs.task(name="fails", max_attempts=1)
    async def fails() -> None:
        with journal.run():
            raise ValueError(f"run {len(journal.jobs)}")

    async with jobs, jobs.worker():
        job = await fails.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        await sql.execute("INSERT INTO aiopgq.jobs (id, task, max_attempts) VALUES ($1, 'fails', 1)", job.id)
        await eventually(lambda: len(journal.jobs) == 2)
        with pytest.raises(JobFailed):
            await (await fails.enqueue()).result(timeout=10)

        async def settled():
            return await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0

        await eventually(settled)
        assert (await job.info()).last_error == "ValueError: run 2"


async def test_a_job_that_can_neither_end_nor_be_buried_waits_for_a_person(jobs, sql, caplog):
    await sql.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'not this one' USING ERRCODE = 'check_violation', CONSTRAINT = 'mine'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON aiopgq.dead_letters
            FOR EACH ROW WHEN (NEW.task = 'cursed') EXECUTE FUNCTION refuse()""")

    @jobs.task(name="cursed", max_attempts=1)
    async def cursed() -> None:
        raise ValueError("no")

    @jobs.task(name="fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    async with jobs, jobs.worker():
        job = await cursed.enqueue()
        with pytest.raises(JobFailed):
            await (await fails.enqueue()).result(timeout=10)

        async def set_aside():
            info = await job.info()
            return info if info.status == "pending" else None

        info = await eventually(set_aside)

    assert "cannot be stored" in info.last_error
    assert (info.run_at - info.created_at).total_seconds() > 80_000
    assert len([one for one in caplog.records if "cannot be stored" in one.getMessage()]) <= 4


async def test_a_job_whose_row_refuses_everything_does_not_keep_others_from_being_settled(jobs, sql, caplog):
    await sql.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'not this one' USING ERRCODE = 'check_violation', CONSTRAINT = 'mine'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON aiopgq.jobs FOR EACH ROW
            WHEN (NEW.task = 'cursed' AND NEW.status = 'pending') EXECUTE FUNCTION refuse();
        CREATE TRIGGER refuse BEFORE INSERT ON aiopgq.dead_letters FOR EACH ROW
            WHEN (NEW.task = 'cursed') EXECUTE FUNCTION refuse()""")

    @jobs.task(name="cursed")
    async def cursed() -> None:
        raise ValueError("no")

    @jobs.task(name="fine")
    async def fine() -> str:
        return "done"

    async with jobs, jobs.worker():
        job = await cursed.enqueue()
        await eventually(lambda: caplog.text.count(f"of job {job.id} cannot be stored") == 3)
        assert await (await fine.enqueue()).result(timeout=5) == "done"
        assert caplog.text.count(f"of job {job.id} cannot be stored") == 3
        assert (await job.info()).status == "claimed"
    # Its incarnation has ended; whoever mends the table lets it run again.
    await sql.execute("DELETE FROM aiopgq.jobs")


async def test_a_worker_outlives_a_function_that_is_missing_for_a_while(jobs, sql, caplog):
    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    async with jobs, jobs.worker() as worker:
        await sql.execute("ALTER FUNCTION aiopgq.complete_jobs RENAME TO complete_jobs_elsewhere")
        job = await task.enqueue()
        await eventually(lambda: "cannot settle" in caplog.text, what="the settlement is refused")
        await sql.execute("ALTER FUNCTION aiopgq.complete_jobs_elsewhere RENAME TO complete_jobs")
        assert await job.result(timeout=20) == "done"

    assert worker.left_behind == 0


async def test_a_stop_does_not_wait_for_the_pause_between_two_tries_to_settle(jobs, sql, monkeypatch):
    refused = []
    monkeypatch.setattr(Patience, "failed", lambda _, error: refused.append(error) or 300.0)

    @jobs.task(name="t")
    async def task() -> None:
        pass

    async with jobs, jobs.worker() as worker:
        await sql.execute("ALTER FUNCTION aiopgq.complete_jobs RENAME TO complete_jobs_elsewhere")
        job = await task.enqueue()
        await eventually(lambda: refused, what="the settlement is refused")
        await sql.execute("ALTER FUNCTION aiopgq.complete_jobs_elsewhere RENAME TO complete_jobs")

    assert worker.left_behind == 0
    async with jobs:
        assert (await job.info()).status == "completed"
