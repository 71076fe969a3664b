"""`workers`: who is there, and how one is drained, whatever holds it."""

import asyncio
import re
import signal
from uuid import uuid4

import pytest
from faces.cli import alive, enqueue
from support import eventually

from aiopgq import App

WAIT = """
from work import *

@jobs.task
async def wait() -> None:
    note("begun")
    while not pathlib.Path("go on").exists():
        await asyncio.sleep(0.02)
    note("ended")
"""


@pytest.fixture
def waiting(cli):
    cli.write("waiting", WAIT)
    return cli


async def begun(cli, jobs=1):
    await eventually(lambda: cli.notes.count("begun") == jobs, within=30, what="the jobs run")


async def test_workers_are_listed_with_what_they_do(waiting, dsn):
    await enqueue(dsn, "waiting.wait", {})
    running = waiting.run("-A", "waiting", "--name", "anna", "--concurrency", 3)
    pid = running.child()
    await begun(waiting)

    said = waiting("workers", "list")
    head, row = said.out.splitlines()
    assert head.split() == ["ID", "NAME", "HOST", "PID", "STATUS", "JOBS", "QUEUES", "AGE", "LAST", "BEAT"]
    assert re.search(rf" anna +\S+ +{pid} +working +1/3 +default, mail +\d+s +\d+s$", row)
    [facts] = waiting("workers", "list", "--json").json
    assert (facts["name"], facts["pid"], facts["jobs"], facts["draining"]) == ("anna", pid, 1, False)
    assert "waiting.wait" in facts["tasks"]

    (waiting.folder / "go on").touch()
    running.stop()
    assert running.end() == 0
    assert waiting("workers", "list") == (0, "", "No worker is there.\n")
    assert " ended " in waiting("workers", "list", "--all").out


async def test_a_worker_is_drained_and_no_other_takes_its_place(waiting, dsn, sql):
    await enqueue(dsn, "waiting.wait", {})
    running = waiting.run("-A", "waiting", "--name", "anna", "--shutdown-grace", "0s")
    pid = running.child()
    await begun(waiting)

    said = waiting("workers", "drain", "anna")
    assert said.code == 0
    assert re.fullmatch(r"1 worker drains, with 1 job to finish: anna \([0-9a-f-]{36}\)\.\n", said.out)
    running.line("worker anna drains: it claims no more, finishes 1 job, and ends", within=10)
    await enqueue(dsn, "waiting.wait", {})
    # Whoever were still claiming would have this one within milliseconds.
    assert " draining " in waiting("workers", "list").out
    assert alive(pid)
    assert waiting.notes == ["begun"]

    (waiting.folder / "go on").touch()
    assert running.end() == 0
    assert waiting.notes == ["begun", "ended"]
    assert f"worker process {pid} was drained; no other takes its place" in running.err
    assert running.err.count("started worker process") == 1
    statuses = await sql.fetch("SELECT status, attempts FROM aiopgq.all_jobs ORDER BY created_at")
    assert [tuple(row) for row in statuses] == [("completed", 1), ("pending", 0)]


async def test_one_of_two_processes_is_drained_by_its_id_and_the_other_goes_on(waiting, dsn, sql):
    running = waiting.run("-A", "waiting", "--name", "anna", "--processes", 2)
    running.ready()
    running.ready()
    [first, second] = waiting("workers", "list", "--json").json

    assert waiting("workers", "drain", first["id"]).code == 0
    running.line(f"worker process {first['pid']} was drained")
    [left] = waiting("workers", "list", "--json").json
    assert left["id"] == second["id"]
    await enqueue(dsn, "work.add", {"a": 1})
    await eventually(lambda: sql.fetchval("SELECT count(*) = 1 FROM aiopgq.archive"), what="the other one works")

    running.stop()
    assert running.end() == 0


async def test_a_draining_worker_can_still_be_stopped(waiting, dsn, sql):
    await enqueue(dsn, "waiting.wait", {})
    running = waiting.run("-A", "waiting", "--name", "anna", "--shutdown-grace", "0s")
    running.child()
    await begun(waiting)
    waiting("workers", "drain", "anna")
    running.line("worker anna drains")

    running.stop(signal.SIGTERM)

    assert running.end() == 0
    assert await sql.fetchval("SELECT status || attempts FROM aiopgq.jobs") == "pending0"


async def test_who_is_not_there_is_said_and_the_others_are_drained(waiting, dsn):
    running = waiting.run("-A", "waiting", "--name", "anna")
    running.ready()
    nobody = str(uuid4())

    said = waiting("workers", "drain", "anna", "bertha", nobody)

    assert said.code == 1
    assert said.out.startswith("1 worker drains, with 0 jobs to finish: anna (")
    assert said.err == (
        f"There is no worker bertha; see `workers list`.\nThere is no worker {nobody}; see `workers list`.\n"
    )
    assert running.end() == 0


async def test_a_worker_that_does_not_hear_the_call_finds_it_in_its_next_beat(dsn, sql):
    jobs = App(dsn)

    @jobs.task(name="t")
    async def task() -> None: ...

    async with jobs:
        worker = jobs.worker(lease=2)
        async with worker:
            # No notification goes with it.
            await sql.execute("UPDATE aiopgq.workers SET drain_requested = true")
            await eventually(lambda: sql.fetchval("SELECT dead_at IS NOT NULL FROM aiopgq.workers"), what="it ends")
            await task.enqueue()
        assert worker.drained
        # Entered again it is a worker like any other.
        async with worker:
            await eventually(lambda: sql.fetchval("SELECT count(*) = 1 FROM aiopgq.archive"), what="it works again")
        assert not worker.drained


async def test_a_call_for_another_worker_is_not_heard(dsn, sql):
    jobs = App(dsn)

    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    async with jobs, jobs.worker() as worker:
        for said in (str(uuid4()), "nonsense"):
            await sql.execute("SELECT pg_notify('aiopgq:drain', $1)", said)
        job = await task.enqueue()
        assert await asyncio.wait_for(job.result(), 10) == "done"
    assert not worker.drained
