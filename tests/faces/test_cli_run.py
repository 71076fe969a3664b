"""`run` as long as all goes well, and how it refuses to start."""

import json

import pytest
from faces.cli import enqueue

OWN_LOGGING = """
import logging
logging.basicConfig(format="mine: %(message)s", level=logging.INFO)
from work import jobs
"""
BROKEN_STATE = """
from contextlib import asynccontextmanager
from aiopgq import App

@asynccontextmanager
async def state():
    raise RuntimeError("no oven")
    yield

jobs = App(state=state)

@jobs.task
async def bake() -> None: ...
"""


async def test_a_burst_completes_what_is_due_and_ends(cli, dsn, sql):
    await enqueue(dsn, "work.add", *[{"a": n} for n in range(20)])
    await enqueue(dsn, "work.add", {"a": 1}, delay=3600)

    said = cli("run", "-A", "work", "--burst", "--concurrency", 5)

    assert said.code == 0
    assert said.out == ""
    assert said.err.count("INFO aiopgq.run: completed work.add ") == 20
    assert await sql.fetchval("SELECT array_agg(result::int ORDER BY result::int) FROM aiopgq.archive") == list(
        range(2, 22)
    )
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 1


async def test_processes_work_side_by_side(cli, dsn):
    await enqueue(dsn, "work.meet", {"others": 2}, {"others": 2})

    said = cli("run", "-A", "work", "--burst", "--processes", 2, "--concurrency", 1, "--no-job-log")

    assert said.code == 0
    assert len(set(cli.notes)) == 2
    assert "completed" not in said.err


async def test_a_queue_has_slots_of_its_own_and_others_are_not_served(cli, dsn, sql):
    await enqueue(dsn, "work.meet", {"others": 1}, {"others": 1}, queue="mail")
    await enqueue(dsn, "work.meet", {"others": 1}, queue="other")

    said = cli("run", "-A", "work", "--burst", "--queue", "mail:7", "--queue", "default", "--name", "anna")

    assert said.code == 0
    assert "worker anna serves mail, default with 17 slots" in said.err
    rows = await sql.fetch("SELECT queue, status FROM aiopgq.all_jobs ORDER BY queue")
    assert [tuple(row) for row in rows] == [("mail", "completed"), ("mail", "completed"), ("other", "pending")]


@pytest.mark.parametrize(("option", "loop"), [("--uvloop", "uvloop"), ("--no-uvloop", "asyncio"), (None, "uvloop")])
async def test_uvloop_runs_the_worker_unless_it_is_switched_off(cli, dsn, sql, option, loop):
    await enqueue(dsn, "work.loop_name", {})

    cli("run", "-A", "work", "--burst", *([option] if option else []))

    assert await sql.fetchval("SELECT result #>> '{}' FROM aiopgq.archive") == loop


async def test_lines_inside_a_job_name_it_and_arguments_are_never_logged(cli, dsn):
    [job_id] = await enqueue(dsn, "work.tell", {"secret": "swordfish"})

    said = cli("run", "-A", "work", "--burst", "--log-level", "debug")

    assert f"INFO work: in a job [work.tell {job_id} attempt 1]\n" in said.err
    assert "swordfish" not in said.err


async def test_logging_as_json_gives_an_object_a_line(cli, dsn):
    [job_id] = await enqueue(dsn, "work.tell", {"secret": "swordfish"})
    [dead_id] = await enqueue(dsn, "work.fail", {"reason": "broken"}, max_attempts=1)

    said = cli("run", "-A", "work", "--burst", "--log-format", "json")

    lines = [json.loads(line) for line in said.err.splitlines()]
    [inside] = [line for line in lines if line["logger"] == "work"]
    assert inside | {"time": None, "pid": None} == {
        "time": None,
        "level": "info",
        "logger": "work",
        "message": "in a job",
        "pid": None,
        "job_id": str(job_id),
        "task": "work.tell",
        "queue": "default",
        "attempt": 1,
    }
    [error] = [line for line in lines if line["level"] == "error"]
    assert error["job_id"] == str(dead_id)
    assert "ValueError: broken" in error["traceback"]


async def test_logging_of_the_apps_own_is_left_alone(cli, dsn):
    cli.write("own", OWN_LOGGING)
    await enqueue(dsn, "work.add", {"a": 1})

    said = cli("run", "-A", "own", "--burst", "--log-format", "json")

    assert "mine: completed work.add" in said.err
    assert "mine: the App's modules configure logging, so --log-level and --log-format have no effect" in said.err


def test_a_missing_schema_ends_it_with_3_and_says_what_helps(cli):
    said = cli("--schema", "nowhere", "run", "-A", "work", "--processes", 2)

    assert said.code == 3
    assert said.err.endswith(
        "Error: Schema 'nowhere' holds no aiopgq tables. Run `python -m aiopgq migrate` "
        "(or `await jobs.migrate()`) once.\n"
    )
    assert said.err.count("Error:") == 1
    assert "Traceback" not in said.err


def test_a_database_that_refuses_ends_it_with_4(cli, dsn):
    said = cli("run", "-A", "work", "--dsn", dsn.replace("postgres@", "nobody@"))

    assert said.code == 4
    assert said.err.splitlines()[-1].startswith("Error: PostgreSQL refused to ")
    assert 'role "nobody" does not exist' in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


def test_a_worker_that_cannot_start_is_started_again_and_fails_a_burst(cli):
    cli.write("broken", BROKEN_STATE)
    run = cli.run("-A", "broken")
    run.line("ended with exit code 1: RuntimeError: no oven; starting another in 1 s")
    run.line("ended with exit code 1: RuntimeError: no oven; starting another in 2 s")
    run.stop()

    assert run.end() == 0
    assert cli("run", "-A", "broken", "--burst").code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "run needs the App: -A module[:attr], AIOPGQ_APP, or `app` in [tool.aiopgq] of pyproject.toml"),
        (("-A", "work", "--queue", "mail", "--queue", "mail:3"), "--queue mail was given twice"),
        (("-A", "work", "--queue", "mail:0"), "'mail:0' is not NAME or NAME:SLOTS with at least one slot."),
        (("-A", "work", "--concurrency", "0"), "0 is not in the range x>=1."),
        (("-A", "work", "--poll-interval", "soon"), "'soon' is no duration; write 90s, 10m, 2h, 3d or a number"),
        (("-A", "work", "--queue", "x" * 201), "Error: queue: a name has 1 to 200 bytes, this one 201."),
        (("-A", "work", "--dsn", "mysql://localhost"), "Error: dsn: takes postgresql://"),
        (("-A", "nowhere"), "Error: -A nowhere: there is no module 'nowhere' in "),
    ],
)
def test_wrong_use_ends_it_with_2_and_a_line(cli_alone, options, message):
    said = cli_alone("run", *options)

    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err


def test_the_help_tells_the_exit_codes(cli_alone):
    said = cli_alone("run", "--help")

    assert said.code == 0
    assert "python -m aiopgq run -A myapp.queue --concurrency 20" in said.out
    for line in (
        "  0  stopped",
        "  1  something was left behind",
        "  2  wrong use",
        "  3  the schema",
        "  4  PostgreSQL",
    ):
        assert line in said.out
