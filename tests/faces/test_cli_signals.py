"""How `run` dies: by signals to the parent, to its children, and when one of them is killed."""

import asyncio
import os
import signal
import time

import pytest
from faces.cli import alive, enqueue
from proxy import Proxy
from support import eventually

SLOW_IMPORT = """
import pathlib, sys, time
print("importing", file=sys.stderr, flush=True)
until = time.monotonic() + 60
while not pathlib.Path("go").exists() and time.monotonic() < until:
    time.sleep(0.02)
from work import jobs
"""
EXITS = """
import os
from aiopgq import App
jobs = App()
@jobs.task
async def leave(code: int) -> None:
    os._exit(code)
"""


async def statuses(sql):
    return {row[0]: row[1] for row in await sql.fetch("SELECT status, count(*) FROM aiopgq.all_jobs GROUP BY 1")}


async def test_sigterm_lets_running_jobs_finish_and_gives_the_others_back_untouched(cli, dsn, sql):
    await enqueue(dsn, "work.begin", *[{"seconds": 1}] * 10)
    run = cli.run("-A", "work", "--concurrency", 1)
    await eventually(lambda: cli.notes, within=30)

    run.stop()

    assert run.end() == 0
    assert await statuses(sql) == {"completed": 1, "pending": 9}
    assert await sql.fetchval("SELECT sum(attempts) FROM aiopgq.jobs") == 0


async def test_no_job_starts_after_sigterm(cli, dsn, sql):
    await enqueue(dsn, "work.begin", *[{"seconds": 0.3}] * 100)
    run = cli.run("-A", "work", "--concurrency", 2)
    await eventually(lambda: len(cli.notes) >= 4, within=30)

    run.stop()
    signalled = time.time()

    assert run.end() == 0
    # Less than what a job takes: no second wave has started.
    assert max(map(float, cli.notes)) < signalled + 0.25
    assert await statuses(sql) == {"completed": len(cli.notes), "pending": 100 - len(cli.notes)}


async def test_being_interrupted_by_shutdowns_costs_no_attempt(cli, dsn, sql):
    await enqueue(dsn, "work.fifth", {}, max_attempts=2)
    for visits in range(1, 5):
        run = cli.run("-A", "work", "--shutdown-grace", 0)
        await eventually(lambda visits=visits: len(cli.notes) == visits, within=30)
        run.stop()
        assert run.end() == 0

    assert cli("run", "-A", "work", "--burst").code == 0
    assert await sql.fetchval("SELECT (status, attempts) FROM aiopgq.all_jobs") == ("completed", 1)


async def test_a_second_signal_ends_it_within_five_seconds_whatever_handlers_do(cli, dsn, sql):
    await enqueue(dsn, "work.stubborn", {})
    await enqueue(dsn, "work.thread", {})
    run = cli.run("-A", "work", "--shutdown-grace", "5m")
    child = run.child()
    await eventually(lambda: len(cli.notes) == 2, within=30)
    run.stop(signal.SIGINT)
    run.line("stopping: 2 jobs may run for 300 s more")

    run.stop(signal.SIGINT)
    began = time.monotonic()

    assert run.end() == 1
    assert time.monotonic() - began <= 5
    assert not alive(child)
    assert "left behind: 2 jobs" in run.err
    assert "Task was destroyed" not in run.err
    assert "Traceback" not in run.err
    # The parent knows that nobody runs them any more.
    assert await statuses(sql) == {"pending": 2}


@pytest.mark.slow
async def test_a_second_signal_ends_it_even_if_a_handler_blocks_the_event_loop(cli, dsn):
    await enqueue(dsn, "work.block", {})
    run = cli.run("-A", "work")
    child = run.child()
    await eventually(lambda: cli.notes, within=30)
    run.stop()
    run.line("a second signal cuts them short")

    run.stop()
    began = time.monotonic()

    assert run.end() == 1
    assert time.monotonic() - began <= 5
    assert not alive(child)
    assert "it did not end in time and was ended" in run.err


async def test_a_third_signal_kills(cli, dsn):
    await enqueue(dsn, "work.stubborn", {})
    run = cli.run("-A", "work")
    child = run.child()
    await eventually(lambda: cli.notes, within=30)

    run.stop()
    run.line("a second signal cuts them short")
    run.stop()
    run.line("a third signal kills")
    run.stop()

    assert run.end() == 1
    assert f"worker process {child} was killed by SIGKILL" in run.err
    assert not alive(child)


async def test_a_second_signal_releases_jobs_that_can_be_cancelled(cli, dsn, sql):
    await enqueue(dsn, "work.begin", {"seconds": 60})
    run = cli.run("-A", "work")
    await eventually(lambda: cli.notes, within=30)

    run.stop(signal.SIGINT)
    run.line("a second signal cuts them short")
    run.stop(signal.SIGTERM)

    assert run.end() == 0
    assert await sql.fetchval("SELECT (status, attempts) FROM aiopgq.jobs") == ("pending", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_stops_within_two_seconds(cli, number):
    run = cli.run("-A", "work", "--poll-interval", "2m")
    run.ready()

    run.stop(number)

    assert run.end(within=2) == 0


async def test_a_worker_that_cannot_reach_its_database_stops_within_two_seconds(cli, dsn):
    async with Proxy(dsn) as proxy:
        proxy.refusing = True
        run = cli.run("-A", "work", AIOPGQ_DSN=proxy.dsn)
        await asyncio.to_thread(run.line, "cannot start the worker, trying again until it works")

        run.stop()

        assert await asyncio.to_thread(run.end, 2) == 0


async def test_a_worker_that_lost_its_database_stops_within_two_seconds(cli, dsn, sql):
    async with Proxy(dsn) as proxy:
        run = cli.run("-A", "work", "--poll-interval", "0.1", AIOPGQ_DSN=proxy.dsn)
        await enqueue(dsn, "work.add", {"a": 1})
        await eventually(lambda: sql.fetchval("SELECT count(*) FROM aiopgq.archive"), within=30)
        proxy.refusing = True
        proxy.cut()
        await asyncio.to_thread(run.line, "cannot claim jobs, trying again until it works")

        run.stop()

        assert await asyncio.to_thread(run.end, 2) == 0


def test_a_signal_during_the_import_of_the_app_is_obeyed_after_it(cli):
    cli.write("slow", SLOW_IMPORT)
    run = cli.run("-A", "slow")
    run.line("importing")

    run.stop()
    run.line("stopping; running jobs may finish")
    (cli.folder / "go").touch()

    assert run.end() == 0
    assert "serves" not in run.err


def test_a_signal_at_the_first_moment_is_obeyed(cli):
    run = cli.run("-A", "work")
    run.child()

    run.stop()

    assert run.end() == 0


def test_a_child_that_gets_a_signal_at_its_first_moment_ends_in_order(cli):
    run = cli.run("-A", "work")

    os.kill(run.child(), signal.SIGTERM)

    run.line("ended with exit code 0; starting another in 1 s")
    run.ready()


async def test_a_child_that_is_told_to_stop_by_everybody_at_once_still_grants_the_grace(cli, dsn, sql):
    await enqueue(dsn, "work.begin", {"seconds": 1})
    run = cli.run("-A", "work")
    child = run.child()
    await eventually(lambda: cli.notes, within=30)

    # systemd signals every process of a service.
    os.kill(child, signal.SIGTERM)
    run.stop()
    os.kill(child, signal.SIGTERM)

    assert run.end() == 0
    assert await statuses(sql) == {"completed": 1}


async def test_ctrl_c_is_the_business_of_the_parent(cli, dsn, sql):
    run = cli.run("-A", "work")
    child = run.child()
    run.ready()

    os.kill(child, signal.SIGINT)
    await enqueue(dsn, "work.add", {"a": 1})

    run.line("completed work.add")
    assert os.getpgid(child) == child


async def test_a_child_that_is_killed_is_replaced(cli, dsn):
    run = cli.run("-A", "work")
    child = run.child()
    run.ready()

    os.kill(child, signal.SIGKILL)

    run.line(f"worker process {child} was killed by SIGKILL; starting another in 1 s")
    run.ready()
    await enqueue(dsn, "work.add", {"a": 1})
    run.line("completed work.add")
    run.stop()
    assert run.end() == 0


@pytest.mark.parametrize("code", [2, 3, 4])
async def test_a_handler_that_ends_its_process_by_a_code_of_ours_ends_no_run(cli, dsn, code):
    cli.write("exits", EXITS)
    run = cli.run("-A", "exits")
    child = run.child()
    run.ready()

    await enqueue(dsn, "exits.leave", {"code": code})

    run.line(f"worker process {child} ended with exit code {code}; starting another in 1 s")
    run.ready()
    run.stop()
    assert run.end() == 0


@pytest.mark.slow
async def test_a_child_that_is_frozen_does_not_keep_the_run_from_ending(cli):
    run = cli.run("-A", "work", "--shutdown-grace", 0)
    child = run.child()
    run.ready()
    os.kill(child, signal.SIGSTOP)

    run.stop()

    run.line(f"worker process {child} is killed", within=60)
    assert run.end() == 1
    assert not alive(child)


async def test_no_child_outlives_a_parent_that_was_killed(cli, dsn, sql):
    await enqueue(dsn, "work.begin", {"seconds": 60}, {"seconds": 60})
    run = cli.run("-A", "work", "--processes", 2, "--concurrency", 1, "--shutdown-grace", 1)
    children = [run.child(), run.child()]
    await eventually(lambda: len(cli.notes) == 2, within=30)

    run.stop(signal.SIGKILL)

    await eventually(lambda: not any(map(alive, children)), within=15)
    rows = await sql.fetch("SELECT status, attempts FROM aiopgq.jobs")
    assert [tuple(row) for row in rows] == [("pending", 0), ("pending", 0)]


@pytest.mark.slow
async def test_a_child_whose_parent_was_killed_ends_even_if_a_handler_blocks_it(cli, dsn):
    await enqueue(dsn, "work.block", {})
    run = cli.run("-A", "work", "--shutdown-grace", 0)
    child = run.child()
    await eventually(lambda: cli.notes, within=30)

    run.stop(signal.SIGKILL)

    await eventually(lambda: not alive(child), within=15)
