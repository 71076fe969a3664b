"""Workers die, stand still, lose the database or their lease: every job ends once, and nobody alive is robbed."""

import asyncio
import logging
import os
import re
import signal
import socket
import threading
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import uuid4

import pytest
from effects import PROGRAM, Effects
from faces.cli import Cli, alive, enqueue
from invariants import Journal
from proxy import Proxy
from support import eventually

from aiopgq import App, current_job
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.workers import Workers
from aiopgq._words.job import WorkerIdentity

LEASE = 2
LEFT = "SELECT count(*) FROM aiopgq.jobs"
ENDS = "SELECT id, status, attempts, last_error, errors #>> '{0,error}' AS error FROM aiopgq.all_jobs"
DECLARE_DEAD = "UPDATE aiopgq.workers SET dead_at = clock_timestamp() WHERE dead_at IS NULL RETURNING id"
BEATS = "SELECT min(beat) FROM aiopgq.workers WHERE dead_at IS NULL"
CONNECTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'aiopgq claim'"""


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


@pytest.fixture
async def effects(dsn):
    effects = await Effects.open(dsn)
    yield effects
    assert await effects.twice() == []
    await effects.close()


@pytest.fixture
def cli(dsn, tmp_path):
    """`run` with an App whose leases are short where a test says so."""
    cli = Cli(None, tmp_path, dsn)
    cli.env["EFFECTS"] = dsn
    cli.write("work", PROGRAM)
    yield cli
    cli.close()


def start(cli, lease=None, *options, **env):
    running = cli.run("-A", "work", *options, **({} if lease is None else {"lease": str(lease)}), **env)
    running.ready()
    return running


def children(running):
    return [int(pid) for pid in re.findall(r"started worker process (\d+)", running.err)]


async def ends(sql, within=30):
    """Wait until no job is left; return what became of each."""

    async def none_left():
        return await sql.fetchval(LEFT) == 0

    await eventually(none_left, within=within, every=0.05, what="all jobs have ended")
    return {row["id"]: row for row in await sql.fetch(ENDS)}


async def pause(sql, seconds):
    """Let time pass for everybody."""
    await sql.execute("SELECT pg_sleep($1)", seconds)


def identity(worker):
    return worker._incarnation.identity.id


async def lost(worker, before):
    """Wait until the incarnation has noticed that its lease is over; its successor may be on the way."""
    await eventually(lambda: worker._incarnation.lost or identity(worker) != before, what="the lease is over")


def ended_runs(journal):
    return sum(ended is not None for *_, ended in journal._lines)


async def returned(worker, before):
    """Wait until the worker claims as another incarnation."""
    await eventually(lambda: identity(worker) != before and worker.health().claiming, what="it came back")


# certain death


async def test_the_job_of_a_child_that_died_runs_again_at_once_however_it_died(cli, dsn, sql, effects):
    # At the default lease of a minute, so no lease takes part.
    running = start(cli, None, "--processes", 4, "--concurrency", 1)
    calls = [{"how": how} for how in ("killed", "crashes", "0", "7")]
    ids = await enqueue(dsn, "work.die", *calls)
    await eventually(lambda: effects.begun(4), within=30, what="each child runs one")
    [stays] = [run for run in await effects.runs() if run["job"] == ids[0]]
    os.kill(stays["pid"], signal.SIGKILL)

    ended = await ends(sql)

    assert {(row["status"], row["attempts"], row["error"]) for row in ended.values()} == {
        ("completed", 2, "worker lost")
    }
    pids = {}
    for run in await effects.runs():
        pids.setdefault(run["job"], set()).add(run["pid"])
    assert all(len(two) == 2 for two in pids.values())
    running.stop()
    assert running.end() == 0


async def test_a_job_that_kills_its_worker_stops_after_its_attempts(cli, dsn, sql, effects):
    running = start(cli, None, "--processes", 2, "--concurrency", 1)
    [once] = await enqueue(dsn, "work.die", {"how": "9", "times": 99}, max_attempts=1)
    [twice] = await enqueue(dsn, "work.die", {"how": "9", "times": 99}, max_attempts=2)

    ended = await ends(sql)

    assert {one: (row["status"], row["attempts"], row["last_error"]) for one, row in ended.items()} == {
        once: ("failed", 1, "worker lost"),
        twice: ("failed", 2, "worker lost"),
    }
    assert await effects.attempts() == {once: 1, twice: 2}
    running.stop()
    running.end()


async def test_a_burst_whose_child_left_without_a_word_has_failed(cli, dsn, sql, effects):
    [job] = await enqueue(dsn, "work.die", {"how": "0"}, max_attempts=1)
    running = cli.run("-A", "work", "--burst")

    assert running.end() == 1
    assert (await ends(sql))[job]["last_error"] == "worker lost"


# suspected death


@pytest.mark.slow
async def test_a_lost_host_is_rescued_after_its_lease_and_not_before(cli, dsn, sql, effects):
    doomed = start(cli, LEASE)
    ids = await enqueue(dsn, "work.first_run_stays", *[{"seconds": 300}] * 5)
    await eventually(lambda: effects.begun(5), within=30)
    survivor = start(cli, LEASE)
    [child] = children(doomed)
    doomed.process.kill()
    os.kill(child, signal.SIGKILL)

    ended = await ends(sql)

    assert {(row["status"], row["attempts"], row["error"]) for row in ended.values()} == {
        ("completed", 2, "worker lost")
    }
    dead = await sql.fetchrow("SELECT dead_at - heartbeat_at AS silent FROM aiopgq.workers WHERE dead_at IS NOT NULL")
    assert LEASE <= dead["silent"].total_seconds() <= LEASE + 3
    assert await effects.attempts() == dict.fromkeys(ids, 2)
    assert survivor.err.count("was silent for its whole lease") == 1


async def ghost(line, *, lease=LEASE, name="ghost", pid=1, host="elsewhere"):
    """Register an incarnation that never beats."""
    worker = WorkerIdentity(uuid4(), name, host, pid, "0")
    await Workers(line).register(worker, ["default"], ["t"], 5, lease, [])
    return worker.id


async def taken_by(line, worker, count):
    claimed = await Jobs(line).claim(worker, uuid4(), count, ["t"], {"default": count}, None)
    assert len(claimed) == count
    return claimed


@pytest.fixture
async def line(dsn):
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    yield line
    await line.close()


async def test_a_rescued_job_whose_cancel_was_requested_is_cancelled(jobs, journal, sql, line):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        unwanted = await task.enqueue()
        await taken_by(line, await ghost(line), 1)
        await unwanted.cancel()
        async with jobs.worker(lease=LEASE):
            ended = await ends(sql)

    assert (ended[unwanted.id]["status"], ended[unwanted.id]["attempts"]) == ("cancelled", 1)
    assert journal.jobs == []


async def test_a_restarted_container_with_the_same_name_host_and_pid_is_another_worker(jobs, journal, sql, line):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        handle = await task.enqueue()
        before = await ghost(line, name="twin", pid=os.getpid(), host=socket.gethostname())
        await taken_by(line, before, 1)
        async with jobs.worker(name="twin", lease=LEASE) as worker:
            ended = await ends(sql)
            assert await sql.fetchval("SELECT dead_at FROM aiopgq.workers WHERE id = $1", identity(worker)) is None

    dead = await sql.fetchrow("SELECT dead_at - heartbeat_at AS silent FROM aiopgq.workers WHERE id = $1", before)
    assert dead["silent"].total_seconds() >= LEASE
    assert (ended[handle.id]["attempts"], ended[handle.id]["error"]) == (2, "worker lost")
    assert journal.attempts == [2]


@pytest.mark.parametrize("forgotten", [False, True], ids=["dead", "unknown"])
async def test_a_claim_committed_after_its_worker_was_given_up_is_rescued(jobs, journal, sql, line, forgotten):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            pass

    async with jobs:
        handle = await task.enqueue()
        late = await ghost(line, lease=3600)
        await sql.execute(DECLARE_DEAD)
        if forgotten:
            await sql.execute("DELETE FROM aiopgq.workers")
        await taken_by(line, late, 1)
        async with jobs.worker(lease=LEASE):
            ended = await ends(sql)

    assert (ended[handle.id]["status"], ended[handle.id]["attempts"]) == ("completed", 2)


async def test_the_dead_are_forgotten_after_a_day_unless_they_own_jobs(jobs, sql, line):
    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        await task.enqueue()
        names = {name: await ghost(line, name=name) for name in ("old", "recent", "owner")}
        await taken_by(line, names["owner"], 1)
        for name, hours in (("old", 25), ("recent", 23), ("owner", 25)):
            died = "UPDATE aiopgq.workers SET dead_at = clock_timestamp() - make_interval(hours => $2) WHERE id = $1"
            await sql.execute(died, names[name], hours)
        assert await Workers(line).forget(86_400) == 1
        assert {row["id"] for row in await sql.fetch("SELECT id FROM aiopgq.workers")} == {
            names["recent"],
            names["owner"],
        }
        # And a worker does so at its start, when it has rescued what there was.
        async with jobs.worker(lease=LEASE):
            await ends(sql)
        await sql.execute("UPDATE aiopgq.workers SET dead_at = dead_at - interval '1 day'")
        async with jobs.worker(lease=LEASE) as worker:
            assert [row["id"] for row in await sql.fetch("SELECT id FROM aiopgq.workers")] == [identity(worker)]


# nobody alive is robbed


@pytest.mark.slow
async def test_an_outage_longer_than_the_lease_of_all_makes_nobody_look_dead(proxy, journal, sql):
    apps = [App(proxy.dsn) for _ in range(2)]
    for app in apps:

        @app.task(name="t")
        async def task() -> None:
            with journal.run():
                await done.wait()

    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        workers = [await stack.enter_async_context(app.worker(concurrency=3, lease=LEASE)) for app in apps]
        handles = [await task.enqueue() for _ in range(6)]
        await eventually(lambda: len(journal.jobs) == 6)
        before = [identity(worker) for worker in workers]
        proxy.refusing = True
        proxy.cut()
        for worker, old in zip(workers, before, strict=True):
            await lost(worker, old)
        # Others may run these jobs now: no handler is left to go on with them.
        await eventually(lambda: ended_runs(journal) == 6, what="the handlers are cancelled")
        done.set()
        proxy.refusing = False
        for worker, old in zip(workers, before, strict=True):
            await returned(worker, old)
        ended = await ends(sql)
        # Long enough for whoever would wrongly be taken for dead.
        await pause(sql, LEASE)

        # The runs that were cut short are spent; that nobody was taken for dead is seen by the workers below.
        assert {(row["status"], row["attempts"], row["error"]) for row in ended.values()} == {
            ("completed", 2, "worker lost")
        }
        assert set(ended) == {job.id for job in handles}
        living = await sql.fetch("SELECT id FROM aiopgq.workers WHERE dead_at IS NULL AND id = ANY ($1)", before)
        assert {identity(worker) for worker in workers} & {row["id"] for row in living} == set()
        assert [worker._incarnation.lost for worker in workers] == [None, None]


@pytest.mark.slow
async def test_a_slow_network_and_a_wrong_clock_rob_nobody(proxy, journal, sql):
    apps = [App(proxy.dsn) for _ in range(2)]
    for app in apps:

        @app.task(name="t")
        async def task() -> None:
            with journal.run():
                await done.wait()

    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        workers = [await stack.enter_async_context(app.worker(concurrency=2, lease=LEASE)) for app in apps]
        for _ in range(4):
            await task.enqueue()
        await eventually(lambda: len(journal.jobs) == 4)
        before = [identity(worker) for worker in workers]
        proxy.delay = 0.2
        for step in (timedelta(hours=-1), timedelta(hours=2)):
            beat = await sql.fetchval(BEATS)
            await sql.execute("UPDATE aiopgq.workers SET heartbeat_at = heartbeat_at + $1", step)
            await pause(sql, 1.2 * LEASE)
            assert await sql.fetchval(BEATS) > beat
        proxy.delay = 0
        done.set()
        ended = await ends(sql)

        assert {(row["status"], row["attempts"]) for row in ended.values()} == {("completed", 1)}
        assert [identity(worker) for worker in workers] == before
    assert len(journal.jobs) == 4


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_costs_no_innocent_its_run(cli, dsn, sql, effects):
    blocked = start(cli, LEASE)
    innocent = await enqueue(dsn, "work.work", *[{"seconds": 0.5}] * 5)
    await eventually(lambda: effects.begun(5), within=30)
    blocking = await enqueue(dsn, "work.block", {"seconds": 3 * LEASE})
    blocked.line("the event loop has been blocked for")
    other = start(cli, LEASE)

    ended = await ends(sql)

    assert {(row["status"], row["attempts"]) for row in ended.values()} == {("completed", 1)}
    assert await effects.attempts() == dict.fromkeys(innocent + blocking, 1)
    assert "in block" in blocked.err
    assert "the event loop was blocked for" in blocked.err
    assert "silent" not in other.err
    assert "lost its lease" not in blocked.err


@pytest.mark.slow
async def test_a_loop_blocked_beyond_the_hang_limit_ends_the_beats_and_the_process(cli, dsn, sql, effects):
    running = start(cli, LEASE, hang_limit="1")
    [job] = await enqueue(dsn, "work.block", {"seconds": 300}, max_attempts=1)

    running.line("no more beats. All threads")
    running.line("the event loop does not answer: its handlers cannot be stopped")

    assert (await ends(sql))[job]["last_error"] == "worker lost"
    running.line("ended with exit code 1; starting another")


@pytest.mark.slow
async def test_a_worker_that_was_stopped_past_its_lease_returns_and_its_outcomes_are_refused(cli, dsn, sql, effects):
    frozen = start(cli, LEASE)
    [child] = children(frozen)
    ids = await enqueue(dsn, "work.first_run_stays", *[{"seconds": seconds} for seconds in (2, 2, 300, 300)])
    await eventually(lambda: effects.begun(4), within=30)
    os.kill(child, signal.SIGSTOP)
    other = start(cli, LEASE)
    ended = await ends(sql)
    assert {(row["status"], row["attempts"], row["error"]) for row in ended.values()} == {
        ("completed", 2, "worker lost")
    }

    os.kill(child, signal.SIGCONT)
    frozen.line("has lost its lease")
    frozen.ready()
    other.stop()
    assert other.end() == 0
    [after] = await enqueue(dsn, "work.quick", {})
    ended = await ends(sql)

    assert [run["pid"] for run in await effects.runs() if run["job"] == after] == [child]
    assert alive(child)
    assert {row["attempts"] for one, row in ended.items() if one in ids} == {2}
    assert await effects.attempts() == dict.fromkeys(ids, 2) | {after: 1}
    assert "dropped: another worker has it" in frozen.err
    # It stood still itself; no handler is to blame.
    assert "stood still for" in frozen.err
    assert "event loop has been blocked" not in frozen.err


# a lost lease


async def test_a_worker_that_was_declared_dead_goes_on_as_another_incarnation(jobs, journal, sql):
    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await done.wait()

    done = asyncio.Event()
    async with jobs, jobs.worker(lease=LEASE) as worker:
        handles = [await task.enqueue() for _ in range(3)]
        await eventually(lambda: len(journal.jobs) == 3)
        before = identity(worker)
        assert [row["id"] for row in await sql.fetch(DECLARE_DEAD)] == [before]
        await eventually(lambda: ended_runs(journal) == 3, what="the handlers are cancelled")
        await returned(worker, before)
        done.set()
        ended = await ends(sql)

        assert {(one, row["status"]) for one, row in ended.items()} == {(job.id, "completed") for job in handles}
        assert len(journal.jobs) == 6
        health = worker.health()
        assert (health.listening, health.claiming, health.settling, health.running) == (True, True, True, 0)


async def test_a_run_that_a_lost_lease_cuts_short_has_spent_its_attempt(jobs, sql):
    started = []

    @jobs.task(name="once", max_attempts=1)
    async def once() -> None:
        started.append("once")
        await asyncio.sleep(60)

    @jobs.task(name="twice", max_attempts=2)
    async def twice() -> None:
        started.append("twice")
        await asyncio.sleep(60 if started.count("twice") == 1 else 0)

    async with jobs, jobs.worker(lease=LEASE) as worker:
        only, again = await once.enqueue(), await twice.enqueue()
        await eventually(lambda: len(started) == 2)
        # It notices by itself, before anybody else has taken its jobs.
        worker._incarnation.pulse._end("a test wants it so")
        ended = await ends(sql)

    assert (ended[only.id]["status"], ended[only.id]["error"]) == ("failed", "worker lost")
    assert (ended[again.id]["status"], ended[again.id]["attempts"]) == ("completed", 2)
    assert sorted(started) == ["once", "twice", "twice"]


async def test_a_transactional_run_that_ends_as_its_lease_is_lost_gives_its_slot_back(jobs, sql):
    @jobs.task(name="t", transactional=True, max_attempts=1)
    async def task() -> None:
        # As after a handler that blocked the loop: the end of its lease is seen next, before the COMMIT begins.
        asyncio.get_running_loop().call_soon(worker._incarnation._lose, "a test wants it so")

    @jobs.task(name="other")
    async def other() -> str:
        return "done"

    async with jobs, jobs.worker(concurrency=1, lease=LEASE) as worker:
        await task.enqueue()
        before = identity(worker)
        await returned(worker, before)
        assert await (await other.enqueue()).result(timeout=20) == "done"
        assert worker.health().running == 0


async def test_handlers_that_cannot_be_stopped_are_reported_and_never_run_beside_themselves(jobs, sql, caplog):
    running, most, runs = 0, 0, []
    count = threading.Lock()
    free = threading.Event()

    @jobs.task(name="t")
    def task() -> None:
        nonlocal running, most
        with count:
            running += 1
            most = max(most, running)
            runs.append(current_job().attempt)
        free.wait(30)
        with count:
            running -= 1

    async with jobs, jobs.worker(lease=LEASE) as worker:
        handle = await task.enqueue()
        await eventually(lambda: running == 1)
        before = identity(worker)
        await sql.execute(DECLARE_DEAD)
        await returned(worker, before)

        async def put_back():
            return "is put back: a run that has lost it has not ended yet" in caplog.text

        await eventually(put_back, within=20)
        free.set()
        ended = await ends(sql)

    critical = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert [line for line in critical if "1 handler ignored a cancellation" in line and str(handle.id) in line]
    assert (ended[handle.id]["status"], most, runs) == ("completed", 1, [1, 2])


@pytest.mark.slow
async def test_a_child_whose_handlers_cannot_be_stopped_ends_when_its_lease_is_over(cli, dsn, sql):
    running = start(cli, LEASE)
    [job] = await enqueue(dsn, "work.thread", {"seconds": 300})
    await eventually((cli.folder / "threaded").exists, within=30)
    await sql.execute(DECLARE_DEAD)

    running.line("1 handler ignored a cancellation although others may run these jobs now")
    running.line("ended with exit code 1; starting another")

    assert (await ends(sql))[job]["status"] == "completed"


async def test_outcomes_that_waited_through_a_short_outage_are_written_once(proxy, journal, sql, caplog):
    jobs = App(proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await done.wait()

    done = asyncio.Event()
    async with jobs, jobs.worker(lease=20) as worker:
        handles = [await task.enqueue() for _ in range(5)]
        await eventually(lambda: len(journal.jobs) == 5)
        before = identity(worker)
        proxy.refusing = True
        proxy.cut()
        done.set()
        await eventually(lambda: worker.health().unsettled == 5)
        await eventually(lambda: "cannot settle" in caplog.text)
        proxy.refusing = False
        ended = await ends(sql)

        assert {one: (row["status"], row["attempts"]) for one, row in ended.items()} == {
            job.id: ("completed", 1) for job in handles
        }
        assert identity(worker) == before
        assert worker._incarnation.lost is None
    assert len(journal.jobs) == 5


async def test_a_worker_without_lease_and_database_can_be_stopped(proxy, sql):
    jobs = App(proxy.dsn)

    @jobs.task(name="t")
    async def task() -> None: ...

    async with asyncio.timeout(30):
        async with jobs, jobs.worker(lease=LEASE) as worker:
            before = identity(worker)
            proxy.refusing = True
            proxy.cut()
            await lost(worker, before)
            await eventually(lambda: identity(worker) != before)
            worker.stop()
    assert not worker.health().claiming


async def test_a_worker_that_may_not_register_leaves_no_connections_behind(dsn, sql, caplog):
    jobs = App(dsn)

    @jobs.task(name="t")
    async def task() -> None: ...

    async def read_only(setting):
        name = await sql.fetchval("SELECT current_database()")
        await sql.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}")
        await sql.execute("""
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()""")

    async with jobs, jobs.worker(lease=LEASE) as worker:
        before = identity(worker)
        await read_only("on")
        await lost(worker, before)
        seen = {before}

        def tried():
            seen.add(identity(worker))
            return len(seen) > 4

        await eventually(tried, within=60)

        async def few():
            # One may be on its way out; what is left behind stays.
            return await sql.fetchval(CONNECTIONS) <= 2

        await eventually(few)
        last = identity(worker)
        await read_only("off")
        await returned(worker, last)
        await (await task.enqueue()).result(timeout=10)


# health


async def test_health_tells_the_truth(dsn, proxy, journal, monkeypatch):
    monkeypatch.setattr("aiopgq.worker._STUCK", 0.2)
    async with Proxy(dsn) as listening:
        jobs = App(proxy.dsn, listen_dsn=listening.dsn)

        @jobs.task(name="t")
        async def task() -> None:
            with journal.run():
                await done.wait()

        done = asyncio.Event()
        worker = jobs.worker(lease=8, poll_interval=0.2)
        assert not worker.health().claiming

        def well():
            now = worker.health()
            return now.listening and now.claiming and now.settling and now.last_heartbeat is not None

        async with jobs, worker:
            await eventually(well)
            await task.enqueue()
            await eventually(lambda: worker.health().running == 1)

            listening.refusing = True
            listening.cut()
            await eventually(lambda: not worker.health().listening)
            assert worker.health().claiming
            beat = worker._incarnation.pulse.beat_at
            listening.refusing = False
            await eventually(well)

            proxy.refusing = True
            proxy.cut()
            done.set()
            await eventually(lambda: not worker.health().claiming)
            await eventually(lambda: not worker.health().settling)
            assert (worker.health().unsettled, worker.health().running) == (1, 0)
            proxy.refusing = False
            await eventually(well)
            await eventually(lambda: worker.health().unsettled == 0)
            await eventually(lambda: worker._incarnation.pulse.beat_at > beat, within=15)
            assert worker.health().last_heartbeat < 10

        ended = worker.health()
        assert (ended.listening, ended.claiming, ended.last_heartbeat) == (False, False, None)
