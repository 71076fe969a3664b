"""Transactional tasks: what a handler writes and the settlement of its job commit together, or neither does."""

import asyncio
import logging
import os
import random
import signal
import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from invariants import in_order  # noqa: F401  # the fixture works by being there
from proxy import Proxy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support import eventually

from aiopgq import App, Backoff, Cancel, Fail, Retry, Snooze, current_job
from aiopgq._store.connection import ConnectSettings
from aiopgq._store.transaction import Transaction
from aiopgq.errors import ConfigError, JobCancelled, JobFailed, JobLost, UsageError

ROOT = Path(__file__).parents[2]
OURS = """
    SELECT pid, state FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'aiopgq transaction'"""
TAKE_AWAY = """
    UPDATE aiopgq.jobs SET claim_id = gen_random_uuid() WHERE id = $1"""
RESCUE = """
    SELECT sum(aiopgq.rescue_worker(w.id, w.beat, true)) FROM aiopgq.workers w
    WHERE w.id = (SELECT j.worker_id FROM aiopgq.jobs j WHERE j.id = $1)"""
VICTIMS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND (state = 'idle in transaction' OR application_name IN ('aiopgq transaction', 'aiopgq settle'))"""
AT_ONCE = Backoff(base=0)


@pytest.fixture
async def sql(sql):
    """The application has a table of its own, which holds an effect of each job once."""
    await sql.execute("CREATE TABLE effects (job uuid, attempt integer, CONSTRAINT once UNIQUE (job))")
    await sql.execute("CREATE TABLE notes (job uuid, attempt integer)")
    return sql


@pytest.fixture
def jobs(dsn, sql):
    return App(dsn)


@pytest.fixture
async def proxy(dsn):
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(proxy, monkeypatch):
    """Lead the connections of transactional runs, and no others, through the proxy."""
    straight = ConnectSettings.open

    async def open_through(self, purpose):
        if purpose != "transaction":
            return await straight(self, purpose)
        return await asyncpg.connect(proxy.dsn, server_settings={"application_name": f"aiopgq {purpose}"})

    monkeypatch.setattr(ConnectSettings, "open", open_through)
    return proxy


def at_commit(monkeypatch, what):
    """Do something at the moment the next COMMIT is sent."""
    straight = Transaction.commit
    left = [what]

    async def commit(self):
        if left:
            left.pop()()
        await straight(self)

    monkeypatch.setattr(Transaction, "commit", commit)


async def write(table="effects", connection=None):
    run = current_job()
    connection = connection or run.connection
    await connection.execute(f"INSERT INTO {table} VALUES ($1, $2)", run.id, run.attempt)  # noqa: S608  # two tables


async def effects(sql, table="effects"):
    return [tuple(row) for row in await sql.fetch(f"SELECT job, attempt FROM {table} ORDER BY 1, 2")]  # noqa: S608  # two tables


async def connections(sql):
    return {row["pid"] for row in await sql.fetch(OURS)}


async def status_of(job, *wanted):
    async def look():
        info = await job.info()
        return info if info.status in wanted else None

    return await eventually(look, what=f"the job is {wanted}")


# outcomes


async def test_what_a_handler_writes_commits_with_its_settlement(jobs, sql):
    seen = []

    @jobs.task(name="t", transactional=True)
    async def task() -> str:
        await write()
        # Nobody else sees it before the settlement.
        seen.append(await effects(sql))
        seen.append((await task.handle(current_job().id).info()).status)
        return "done"

    async with jobs, jobs.worker():
        job = await task.enqueue()
        assert await job.result(timeout=10) == "done"

        assert seen == [[], "claimed"]
        assert await effects(sql) == [(job.id, 1)]
        assert (await job.info()).status == "completed"


async def test_what_a_handler_writes_is_undone_when_it_raises_and_its_job_is_retried(jobs, sql):
    @jobs.task(name="t", transactional=True, backoff=AT_ONCE)
    async def task() -> None:
        await write()
        if current_job().attempt < 3:
            raise ValueError

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=10)
        info = await job.info()

    assert await effects(sql) == [(job.id, 3)]
    assert [entry["error"] for entry in info.errors] == ["ValueError", "ValueError"]


@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Retry(after=1000), "pending"),
        (Snooze(1000), "pending"),
        (Cancel("not wanted"), "cancelled"),
        (Fail("no use"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_outcome_returned_commits_and_an_outcome_raised_rolls_back(jobs, sql, outcome, status, raised):
    @jobs.task(name="t", transactional=True)
    async def task() -> Retry | Snooze | Cancel | Fail | None:
        await write()
        if raised:
            raise outcome
        return outcome

    async with jobs:
        job = await task.enqueue()
        await jobs.drain(raises=False)
        info = await job.info()

    assert info.status == status
    assert info.attempts == (0 if isinstance(outcome, Snooze) else 1)
    assert len(await effects(sql)) == (0 if raised else 1)


async def test_a_result_that_cannot_be_stored_is_a_dead_letter_without_effects(jobs, sql):
    @jobs.task(name="t", transactional=True)
    async def task() -> object:
        await write()
        return object()

    async with jobs:
        job = await task.enqueue()
        await jobs.drain(raises=False)
        info = await job.info()

    assert info.status == "failed"
    assert "not serialisable" in info.last_error
    assert await effects(sql) == []


async def test_an_outcome_that_postgresql_refuses_is_a_dead_letter_without_effects(jobs, sql):
    await sql.execute("ALTER TABLE aiopgq.archive ADD CONSTRAINT no_secrets CHECK (result <> '\"secret\"')")

    @jobs.task(name="t", transactional=True)
    async def task() -> str:
        await write()
        return "secret"

    async with jobs:
        job = await task.enqueue()
        await jobs.drain(raises=False)
        info = await job.info()

    assert info.status == "failed"
    assert "cannot be stored" in info.last_error
    assert await effects(sql) == []


async def test_what_a_run_reports_is_kept_with_its_settlement(jobs, sql):
    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        current_job().progress(70, stage="packing")

    async with jobs:
        job = await task.enqueue()
        await jobs.drain()
        info = await job.info()

    assert (info.status, info.progress, info.current_stage, info.events_count) == ("completed", 70, "packing", 1)


async def test_a_job_enqueued_by_a_handler_shares_the_fate_of_its_transaction(jobs, sql):
    @jobs.task(name="next")
    async def following() -> None: ...

    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task(*, fails: bool) -> None:
        await following.options(connection=current_job().connection, delay=1000).enqueue()
        if fails:
            raise ValueError

    async with jobs:
        await jobs.enqueue_many([task.call(fails=True), task.call(fails=False)])
        await jobs.drain(raises=False)
        pending = await jobs.inspector.jobs(status="pending")

    assert [job.task for job in pending] == ["next"]


async def test_the_schema_may_have_another_name(dsn, sql):
    jobs = App(dsn, schema="Other $1")
    await jobs.migrate()

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()

    async with jobs:
        job = await task.enqueue()
        await jobs.drain()

    assert await effects(sql) == [(job.id, 1)]


async def test_nothing_is_kept_of_finished_jobs_where_the_retention_is_zero(dsn, sql):
    jobs = App(dsn, retention=0)

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()

    async with jobs:
        job = await task.enqueue()
        await jobs.drain()

    assert await effects(sql) == [(job.id, 1)]
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.all_jobs") == 0


# what ends a run from outside


async def test_a_run_past_its_timeout_is_rolled_back_and_retried(jobs, sql):
    @jobs.task(name="t", transactional=True, backoff=AT_ONCE, timeout=0.2)
    async def task() -> None:
        await write()
        if current_job().attempt == 1:
            await current_job().connection.execute("SELECT pg_sleep(60)")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=10)

    assert await effects(sql) == [(job.id, 2)]


async def test_a_run_whose_cancel_is_requested_is_rolled_back(jobs, sql):
    going = asyncio.Event()

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()
        going.set()
        await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)

    assert await effects(sql) == []


async def test_a_run_cut_off_by_the_shutdown_is_rolled_back_and_released(jobs, sql):
    going = asyncio.Event()

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()
        going.set()
        await current_job().connection.execute("SELECT pg_sleep(60)")

    async with jobs:
        async with jobs.worker(shutdown_grace=0) as worker:
            job = await task.enqueue()
            await going.wait()
        info = await job.info()

    assert worker.left_behind == 0
    assert (info.status, info.attempts) == ("pending", 0)
    assert await effects(sql) == []


async def test_a_run_that_ends_within_the_grace_commits(jobs, sql):
    going = asyncio.Event()

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()
        going.set()
        await asyncio.sleep(0.2)

    async with jobs:
        async with jobs.worker() as worker:
            job = await task.enqueue()
            await going.wait()
        info = await job.info()

    assert (worker.left_behind, info.status) == (0, "completed")
    assert await effects(sql) == [(job.id, 1)]


# the fence


async def test_the_writes_of_a_run_that_has_lost_its_job_are_rolled_back(jobs, sql, caplog):
    @jobs.task(name="t", transactional=True)
    async def task() -> str:
        await write()
        await sql.execute(TAKE_AWAY, current_job().id)
        return "mine"

    async with jobs:
        async with jobs.worker() as worker:
            job = await task.enqueue()
            await eventually(lambda: "no longer ours" in caplog.text and not worker._workshop.running)
            info = await job.info()
            assert await effects(sql) == []
            assert info.status == "claimed"
        await sql.execute("DELETE FROM aiopgq.jobs")

    [line] = [one for one in caplog.records if "no longer ours" in one.getMessage()]
    assert (line.levelno, line.job_id) == (logging.WARNING, job.id)
    assert "rolled back" in line.getMessage()
    assert "completed t" not in caplog.text


async def test_a_handler_is_not_called_for_a_job_that_was_taken_before_its_transaction_began(jobs, sql, monkeypatch):
    called = []
    straight = Transaction.begin

    async def begin(self, job_id, claim_id):
        await sql.execute(RESCUE, job_id)
        return await straight(self, job_id, claim_id)

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        called.append(current_job().id)

    monkeypatch.setattr(Transaction, "begin", begin)
    async with jobs, jobs.worker():
        job = await task.enqueue()

        async def rescued():
            info = await job.info()
            return (info.status, info.attempts, info.last_error) == ("pending", 1, "worker lost")

        await eventually(rescued, what="the job is back in line")
        monkeypatch.setattr(Transaction, "begin", straight)
        await job.result(timeout=20)

    assert called == [job.id]


async def test_a_rescue_ends_the_transaction_of_the_lost_worker_before_it_takes_its_jobs(dsn, jobs, sql):
    going, rest = asyncio.Event(), asyncio.Event()
    other = App(dsn)

    @jobs.task(name="t", transactional=True)
    async def frozen() -> None:
        await write()
        if going.is_set():
            return  # claimed again, by the next incarnation of the same worker
        going.set()
        # As a process that was stopped does: it says and hears nothing, and its transaction holds its locks.
        await asyncio.shield(rest.wait())

    @other.task(name="t", transactional=True)
    async def task() -> None:
        # The unique key would wait for the other transaction.
        await write()

    async with jobs, other, jobs.worker():
        job = await frozen.enqueue()
        await going.wait()
        [backend] = await connections(sql)
        assert await sql.fetchval(RESCUE, job.id) == 1
        assert backend not in await connections(sql)
        async with other.worker():
            await other.handle(job.id).result(timeout=10)
        rest.set()

    assert await effects(sql) == [(job.id, 2)]


async def test_a_rescue_is_not_stopped_by_a_settlement_that_was_never_committed(dsn, jobs, sql):
    settled, rest = asyncio.Event(), asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        if current_job().attempt == 2:
            return
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await write(connection=connection)
                await current_job().settle_with(connection)
                settled.set()
                await rest.wait()
        finally:
            await connection.close()

    async with jobs, jobs.worker(), jobs.worker():
        job = await task.enqueue()
        await settled.wait()
        assert await sql.fetchval(RESCUE, job.id) == 1
        rest.set()
        await job.result(timeout=20)

    assert await effects(sql) == []


STOPPED = """
    import asyncio
    from aiopgq import App, current_job

    jobs = App({dsn!r})

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        run = current_job()
        await run.connection.execute("INSERT INTO effects VALUES ($1, $2)", run.id, run.attempt)
        print("going", flush=True)
        await asyncio.sleep(3)

    asyncio.run(jobs.worker(lease=2).run())
"""


async def test_a_process_stopped_beyond_its_lease_leaves_no_effect(dsn, jobs, sql):
    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()

    program = textwrap.dedent(STOPPED).format(dsn=dsn)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with jobs:
            job = await task.enqueue()
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == b"going\n"
            [backend] = await connections(sql)
            process.send_signal(signal.SIGSTOP)
            async with jobs.worker(lease=2):
                await job.result(timeout=30)
                assert backend not in await connections(sql)
                process.send_signal(signal.SIGCONT)

                async def returned():
                    # It notices that it was declared dead, and comes back as somebody else.
                    return await sql.fetchval("SELECT count(*) FROM aiopgq.workers WHERE pid = $1", process.pid) == 2

                await eventually(returned, within=30)
            process.send_signal(signal.SIGTERM)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    await sql.execute("UPDATE aiopgq.workers SET dead_at = clock_timestamp() WHERE pid = $1", process.pid)

    assert await effects(sql) == [(job.id, 2)]


# handlers that do odd things to their transaction


async def test_a_handler_that_swallows_an_error_of_its_transaction_is_told_to_use_a_savepoint(jobs, sql):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        await write()
        try:
            await write()
        except asyncpg.UniqueViolationError:
            return

    async with jobs:
        job = await task.enqueue()
        await jobs.drain(raises=False)
        info = await job.info()

    assert info.status == "failed"
    assert "savepoint" in info.last_error
    assert await effects(sql) == []


async def test_a_savepoint_keeps_the_transaction_usable(jobs, sql):
    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        await write()
        with pytest.raises(asyncpg.UniqueViolationError):
            async with current_job().connection.transaction():
                await write()
        await write("notes")

    async with jobs:
        job = await task.enqueue()
        await jobs.drain()

    assert await effects(sql) == await effects(sql, "notes") == [(job.id, 1)]


async def test_a_handler_that_ends_its_transaction_fails(jobs, sql):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        await current_job().connection.execute("ROLLBACK")

    async with jobs:
        job = await task.enqueue()
        await jobs.drain(raises=False)
        info = await job.info()

    assert info.status == "failed"
    assert "has ended the transaction" in info.last_error


async def test_a_constraint_that_is_checked_at_the_end_fails_the_run(jobs, sql):
    await sql.execute("ALTER TABLE effects ADD CONSTRAINT later UNIQUE (attempt) DEFERRABLE INITIALLY DEFERRED")

    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        await write()

    async with jobs:
        first, second = await jobs.enqueue_many([task.call(), task.call()])
        await jobs.drain(concurrency=1, raises=False)
        done, failed = await first.info(), await second.info()

    assert (done.status, failed.status) == ("completed", "failed")
    assert "later" in failed.last_error
    assert await effects(sql) == [(first.id, 1)]


async def test_a_handler_that_closes_its_connection_fails_and_harms_nobody(jobs, sql):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task(*, closes: bool) -> None:
        await write()
        if closes:
            await current_job().connection.close()

    async with jobs, jobs.worker(concurrency=1):
        first, second = await jobs.enqueue_many([task.call(closes=True), task.call(closes=False)])
        with pytest.raises(JobFailed):
            await first.result(timeout=10)
        await second.result(timeout=10)

    assert await effects(sql) == [(second.id, 1)]


# the connections


async def test_connections_are_kept_for_later_runs_and_never_more_than_runs(jobs, sql):
    pids, most = set(), 0

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        nonlocal most
        pids.add(await current_job().connection.fetchval("SELECT pg_backend_pid()"))
        most = max(most, len(await connections_beside()))
        await write()

    looking = asyncio.Lock()

    async def connections_beside():
        async with looking:
            return await connections(sql)

    async with jobs, jobs.worker(concurrency=4):
        handles = await jobs.enqueue_many([task.call() for _ in range(60)])
        for job in handles:
            await job.result(timeout=20)

        async def resting():
            states = {row["state"] for row in await sql.fetch(OURS)}
            return states == {"idle"}

        await eventually(resting, what="no transaction is left open")

    assert 1 <= most <= 4
    assert len(pids) <= 4
    assert len(await effects(sql)) == 60


async def test_a_worker_without_transactional_runs_makes_no_connection_for_them(jobs, sql):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs, jobs.worker():
        await (await task.enqueue()).result(timeout=10)
        assert await connections(sql) == set()


async def test_a_connection_comes_back_as_it_was(jobs, sql):
    seen = []

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        connection = current_job().connection
        seen.append(await connection.fetchval("SHOW search_path"))
        await connection.execute("SET search_path = pg_catalog")

    async with jobs, jobs.worker(concurrency=1):
        for _ in range(2):
            await (await task.enqueue()).result(timeout=10)

    assert seen[0] == seen[1] != "pg_catalog"


async def test_whoever_keeps_the_connection_beyond_the_run_cannot_use_it(jobs, sql):
    kept = []

    @jobs.task(name="t", transactional=True)
    async def task() -> None:
        kept.append(current_job())
        kept.append(current_job().connection)

    async with jobs, jobs.worker() as worker:
        await (await task.enqueue()).result(timeout=10)
        run, connection = kept
        # A statement sent while it is being given back would end it in the middle, with another error.
        given_back = worker._workshop._transactions._pool.get_idle_size
        await eventually(lambda: given_back() == 1, what="the connection is given back")

        with pytest.raises(asyncpg.InterfaceError):
            await connection.execute("SELECT 1")
        with pytest.raises(ConfigError):
            run.connection  # noqa: B018  # the property raises


async def test_a_factory_makes_the_connections_as_it_makes_all_others(dsn, sql):
    made = []

    async def connect():
        made.append(1)
        return await asyncpg.connect(dsn)

    jobs = App(dsn, connect=connect)

    @jobs.task(name="t", transactional=True)
    async def task() -> int:
        await write()
        return len(made)

    async with jobs, jobs.worker():
        before = len(made)
        job = await task.enqueue()
        assert await job.result(timeout=10) > before

    assert await effects(sql) == [(job.id, 1)]


async def test_a_job_whose_transaction_cannot_begin_is_put_back_without_losing_an_attempt(
    jobs, sql, through_proxy, caplog
):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        await write()

    through_proxy.refusing = True
    async with jobs, jobs.worker(poll_interval=0.1):
        job = await task.enqueue()
        await eventually(lambda: through_proxy.turned_away >= 2, what="it is tried again")
        assert (await status_of(job, "pending")).attempts == 0
        through_proxy.refusing = False
        await job.result(timeout=20)

    assert await effects(sql) == [(job.id, 1)]
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert ["cannot begin a transaction" in warning for warning in warnings] == [True]


# COMMIT without an answer


async def test_a_commit_whose_answer_is_lost_is_not_repeated(jobs, sql, through_proxy, monkeypatch, caplog):
    at_commit(monkeypatch, lambda: setattr(through_proxy, "lose_answer", True))

    @jobs.task(name="t", transactional=True, backoff=AT_ONCE)
    async def task() -> str:
        await write("notes")
        await write()
        return "done"

    with caplog.at_level(logging.INFO, "aiopgq"):
        async with jobs, jobs.worker() as worker:
            job = await task.enqueue()
            assert await job.result(timeout=10) == "done"
            await eventually(lambda: worker.health().unsettled == 0 and "was committed" in caplog.text)

    assert await effects(sql) == await effects(sql, "notes") == [(job.id, 1)]
    assert (await sql.fetchval("SELECT attempts FROM aiopgq.archive")) == 1


@pytest.mark.parametrize("how", ["cut", "black hole"])
async def test_a_commit_that_never_arrived_is_a_failed_run(jobs, sql, through_proxy, monkeypatch, caplog, how):
    # In the black hole the server notices nothing: its backend holds the locks until somebody ends it.
    monkeypatch.setattr("aiopgq._store.transaction.STATEMENT_TIMEOUT", 1.0)

    def trouble():
        if how == "cut":
            through_proxy.cut()
        else:
            through_proxy.black_hole = True

    at_commit(monkeypatch, trouble)

    @jobs.task(name="t", transactional=True, backoff=AT_ONCE)
    async def task() -> str:
        through_proxy.black_hole = False
        await write("notes")
        await write()
        return "done"

    async with jobs, jobs.worker() as worker:
        job = await task.enqueue()

        async def lost():
            through_proxy.black_hole = through_proxy.black_hole and not worker.health().unsettled
            return "was lost" in caplog.text

        await eventually(lost)
        through_proxy.black_hole = False
        assert await job.result(timeout=10) == "done"
        info = await job.info()

    assert await effects(sql) == await effects(sql, "notes") == [(job.id, 2)]
    assert len(info.errors) == 1
    assert "commit the transaction" in info.errors[0]["error"]


async def test_what_became_of_a_commit_is_seen_when_the_database_is_back(dsn, sql, proxy, monkeypatch):
    jobs = App(proxy.dsn)

    def away():
        proxy.refusing = True
        proxy.cut()

    at_commit(monkeypatch, away)

    @jobs.task(name="t", transactional=True, backoff=AT_ONCE)
    async def task() -> None:
        await write("notes")
        await write()

    async with jobs, jobs.worker() as worker:
        job = await task.enqueue()
        await eventually(lambda: worker.health().unsettled and proxy.turned_away > 2)
        assert not worker.health().running
        proxy.refusing = False
        await eventually(lambda: worker.health().unsettled == 0, within=20)
        await job.result(timeout=20)

    assert await effects(sql) == await effects(sql, "notes") == [(job.id, 2)]


# settle_with


@asynccontextmanager
async def by_asyncpg(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def by_session(dsn):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session, lambda statement: session.execute(text(statement))
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_core(dsn):
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            yield connection, lambda statement: connection.execute(text(statement))
    finally:
        await engine.dispose()


EVERY_KIND = pytest.mark.parametrize("opened", [by_asyncpg, by_session, by_core])
NOTE = "INSERT INTO notes VALUES (gen_random_uuid(), 1)"


@EVERY_KIND
async def test_a_handler_settles_its_job_in_its_own_transaction(jobs, dsn, sql, opened, caplog):
    @jobs.task(name="t")
    async def task() -> str:
        async with opened(dsn) as (connection, execute):
            await execute(NOTE)
            await current_job().settle_with(connection, "from within")
        return "not kept"

    with caplog.at_level(logging.INFO, "aiopgq"):
        async with jobs, jobs.worker():
            job = await task.enqueue()
            assert await job.result(timeout=10) == "from within"
            await eventually(lambda: "completed t" in caplog.text)

    assert len(await effects(sql, "notes")) == 1
    assert "no longer ours" not in caplog.text


@EVERY_KIND
@pytest.mark.parametrize("returns", [True, False], ids=["and returns", "and raises"])
async def test_a_job_whose_own_transaction_rolls_back_is_settled_as_usual(jobs, dsn, sql, opened, returns):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> str:
        try:
            async with opened(dsn) as (connection, execute):
                await execute(NOTE)
                await current_job().settle_with(connection, "from within")
                raise ValueError("after all not")  # noqa: TRY301  # it is what a handler does
        except ValueError:
            if not returns:
                raise
        return "returned"

    async with jobs, jobs.worker():
        job = await task.enqueue()
        if returns:
            assert await job.result(timeout=10) == "returned"
        else:
            with pytest.raises(JobFailed, match="after all not"):
                await job.result(timeout=10)

    assert await effects(sql, "notes") == []


@EVERY_KIND
async def test_a_handler_that_has_lost_its_job_is_told_and_its_own_transaction_rolls_back(jobs, dsn, sql, opened):
    told = []

    @jobs.task(name="t")
    async def task() -> None:
        if current_job().attempt > 1:
            return
        await sql.execute(RESCUE, current_job().id)
        try:
            async with opened(dsn) as (connection, execute):
                await execute(NOTE)
                await current_job().settle_with(connection)
        except JobLost as error:
            told.append(error.job_id)
            raise

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await job.result(timeout=20)

    assert told == [job.id]
    assert await effects(sql, "notes") == []


async def test_a_job_settled_by_its_handler_stays_settled_when_the_handler_raises_afterwards(jobs, dsn, sql):
    @jobs.task(name="t")
    async def task() -> None:
        async with by_asyncpg(dsn) as (connection, execute):
            await execute(NOTE)
            await current_job().settle_with(connection)
        raise ValueError

    async with jobs:
        async with jobs.worker() as worker:
            job = await task.enqueue()
            await job.result(timeout=10)
            await eventually(lambda: not worker._workshop.running)
        info = await job.info()

    assert (info.status, info.attempts, info.errors) == ("completed", 1, [])
    assert worker.ended["completed"] == 1


async def test_a_handler_may_try_its_own_transaction_again(jobs, dsn, sql):
    @jobs.task(name="t")
    async def task() -> None:
        for tries in range(2):
            try:
                async with by_asyncpg(dsn) as (connection, execute):
                    await execute(NOTE)
                    await current_job().settle_with(connection)
                    if not tries:
                        raise ConnectionError  # noqa: TRY301  # it is what a handler does
            except ConnectionError:
                continue

    async with jobs, jobs.worker():
        await (await task.enqueue()).result(timeout=10)

    assert len(await effects(sql, "notes")) == 1


async def test_a_run_lasts_until_the_transaction_it_was_settled_in_has_ended(jobs, dsn, sql):
    left = []

    @jobs.task(name="t", backoff=AT_ONCE)
    async def task() -> str:
        connection = await asyncpg.connect(dsn)
        transaction = connection.transaction()
        await transaction.start()
        await current_job().settle_with(connection, "from within")
        left.append((connection, transaction))
        return "returned"

    async with jobs, jobs.worker() as worker:
        job = await task.enqueue()
        await eventually(lambda: left and worker.health().unsettled, what="the end of the transaction is waited for")
        [(connection, transaction)] = left
        await transaction.commit()
        await connection.close()
        await eventually(lambda: not worker.health().unsettled, within=20)
        assert await job.result(timeout=10) == "from within"

    assert len(left) == 1


# mistakes


def test_only_coroutine_functions_can_be_transactional(jobs):
    with pytest.raises(ConfigError, match="coroutine function"):

        @jobs.task(name="t", transactional=True)
        def task() -> None: ...


def test_transactional_is_true_or_false(jobs):
    with pytest.raises(ConfigError, match="True or False"):

        @jobs.task(name="t", transactional="serializable")
        async def task() -> None: ...


async def test_an_ordinary_task_has_no_connection(jobs):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        await write()

    async with jobs, jobs.worker():
        with pytest.raises(JobFailed, match="transactional=True"):
            await (await task.enqueue()).result(timeout=10)


async def test_a_transactional_task_is_not_settled_by_another_transaction(jobs, dsn, sql):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        async with by_asyncpg(dsn) as (connection, _):
            await current_job().settle_with(connection)

    async with jobs, jobs.worker():
        with pytest.raises(JobFailed, match="settled by what it returns"):
            await (await task.enqueue()).result(timeout=10)


async def test_settling_needs_an_open_transaction_and_a_connection_that_is_known(jobs, dsn, sql):
    told = []

    @jobs.task(name="t")
    async def task() -> str:
        connection = await asyncpg.connect(dsn)
        for wrong, kind in ((connection, UsageError), (dsn, TypeError)):
            with pytest.raises(kind) as error:
                await current_job().settle_with(wrong)
            told.append(str(error.value))
        await connection.close()
        return "returned"

    async with jobs, jobs.worker():
        assert await (await task.enqueue()).result(timeout=10) == "returned"

    assert "none is open" in told[0]
    assert "AsyncSession" in told[1]


# chaos


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_effects_happen_once_whatever_connections_are_killed(jobs, sql, seed, dsn):
    dice = random.Random(seed)

    @jobs.task(name="within", transactional=True, max_attempts=100, backoff=AT_ONCE)
    async def within() -> Retry | None:
        await write()
        await asyncio.sleep(dice.uniform(0, 0.02))
        await write("notes")

    @jobs.task(name="own", max_attempts=100, backoff=AT_ONCE)
    async def own() -> None:
        async with by_asyncpg(dsn) as (connection, _):
            await write(connection=connection)
            await asyncio.sleep(dice.uniform(0, 0.02))
            await current_job().settle_with(connection)
            await write("notes", connection)

    killed = 0
    async with jobs, jobs.worker(concurrency=5), jobs.worker(concurrency=5):
        handles = await jobs.enqueue_many([dice.choice([within, own]).call() for _ in range(200)])
        while await sql.fetchval("SELECT count(*) FROM aiopgq.jobs"):
            backends = await sql.fetch(VICTIMS)
            for row in dice.sample(backends, min(len(backends), dice.choice([0, 0, 1, 2]))):
                killed += await sql.fetchval("SELECT pg_terminate_backend($1)::integer", row["pid"])
            await sql.execute("SELECT pg_sleep($1)", dice.uniform(0.01, 0.1))
        statuses = {(await job.info()).status for job in handles}

    assert killed > 3
    assert statuses == {"completed"}
    assert await effects(sql) == await effects(sql, "notes")
    assert {job for job, _ in await effects(sql)} == {job.id for job in handles}
