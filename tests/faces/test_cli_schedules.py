"""`schedules`: what it writes, and what it changes."""

import os
import re
import signal
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from support import eventually

from aiopgq import App

APP = """
from aiopgq import App

jobs = App()

@jobs.schedule("0 3 * * *", timezone="Europe/Berlin")
@jobs.schedule(every=90, name="often", arguments={"a": 7})
@jobs.task
async def add(a: int = 1) -> int:
    return a
"""


@pytest.fixture
async def three(cli, dsn):
    """Two declared schedules, one made at run time."""
    cli.write("timed", APP)
    assert cli("run", "-A", "timed", "--burst").code == 0
    jobs = App(dsn)

    @jobs.task(name="report")
    async def report(customer: int) -> None: ...

    async with jobs:
        await jobs.schedules.set("report \x0742", report.call(42), "*/5 * * * *")
    return cli


def rows(said):
    return [re.split(r"  +", line) for line in said.out.splitlines()]


async def test_schedules_are_listed_with_their_fires_in_words(three):
    listed = three("schedules", "list")

    assert (listed.code, listed.err) == (0, "")
    head, often, report, add = rows(listed)
    assert head == ["NAME", "TASK", "FIRES", "NEXT", "LAST", "STATE"]
    assert often[:3] == ["often", "timed.add", "every 90 seconds"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d+s\)", often[3])
    assert report[:3] == ["report \\x0742", "report", "every 5 minutes"]
    assert add[:3] == ["timed.add", "timed.add", "at 03:00 every day, Europe/Berlin"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d 03:00:00 CES?T \(\d+[hms]\)", add[3])

    names = [(one["name"], one["args"], one["declared"]) for one in three("schedules", "list", "--json").json]
    assert names == [
        ("often", {"a": 7}, True),
        ("report \x0742", {"customer": 42}, False),
        ("timed.add", {}, True),
    ]


async def test_a_list_says_what_is_wrong(three, sql):
    await sql.execute(
        "UPDATE aiopgq.schedules SET next_at = now() - interval '1 hour', last_at = now() - interval '2 h'"
    )
    await sql.execute("UPDATE aiopgq.schedules SET seen_at = now() - interval '1 hour' WHERE name = 'timed.add'")
    await sql.execute("UPDATE aiopgq.schedules SET cron = 'bad', timezone = 'No/Where' WHERE name ~ 'report'")

    listed = three("schedules", "list")

    _, often, report, add = rows(listed)
    assert often[-1] == "overdue: is a worker running?"
    assert report[-1] == "in trouble"
    assert add[-1] == "orphaned: no live worker declares it"
    assert listed.err.startswith("report \\x0742: schedule, timezone: 'No/Where' is no time zone known here")


async def test_the_next_fires_are_shown_in_both_times(three):
    shown = three("schedules", "next", "timed.add", "-n", "3")

    head, *fires = rows(shown)
    assert head == ["IN", "LOCAL", "UTC"]
    assert len(fires) == 3
    for _, local, utc in fires:
        assert re.fullmatch(r"\w\w\w 20\d\d-\d\d-\d\d 03:00:00 CES?T", local)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d 0[12]:00:00\.000Z", utc)
    assert shown.err == "timed.add fires at 03:00 every day, Europe/Berlin.\n"
    moments = [datetime.fromisoformat(one) for one in three("schedules", "next", "often", "--json").json]
    assert len(moments) == 5
    assert {later - one for one, later in pairwise(moments)} == {timedelta(seconds=90)}


async def test_a_schedule_is_paused_and_resumed(three):
    assert three("schedules", "pause", "often", "timed.add").out == "often is paused.\ntimed.add is paused.\n"
    assert [row[-1] for row in rows(three("schedules", "list"))[1:]][::2] == ["paused", "paused"]
    assert three("schedules", "next", "often").err == "often fires every 90 seconds. It is paused.\n"
    # A deploy leaves it paused.
    assert three("run", "-A", "timed", "--burst").code == 0
    assert three("schedules", "list", "--json").json[0]["paused_at"]

    assert three("schedules", "resume", "often").out == "often fires again.\n"
    assert three("schedules", "list", "--json").json[0]["paused_at"] is None


async def test_a_schedule_is_run_now(three, sql):
    said = three("schedules", "run-now", "often", "timed.add")

    ids = [UUID(line) for line in said.out.splitlines()]
    jobs = await sql.fetch("SELECT id, args::text, headers->>'schedule' FROM aiopgq.jobs ORDER BY place")
    assert [tuple(job) for job in jobs] == [(ids[0], '{"a": 7}', "often"), (ids[1], "{}", "timed.add")]


async def test_a_schedule_is_removed_only_with_yes(three):
    would = three("schedules", "remove", "often")
    assert (would.out, would.err) == ("often would be removed.\n", "Nothing was changed; add --yes to do it.\n")
    assert len(three("schedules", "list", "--json").json) == 3

    assert three("schedules", "remove", "often", "--yes").out == "often is removed.\n"
    assert len(three("schedules", "list", "--json").json) == 2


@pytest.mark.parametrize("command", [["next"], ["pause"], ["resume"], ["run-now"], ["remove"], ["remove", "--yes"]])
async def test_a_name_nobody_knows_changes_nothing(three, sql, command):
    names = ["nobody's"] if command == ["next"] else ["often", "nobody's"]
    before = await sql.fetch("SELECT * FROM aiopgq.schedules")

    said = three("schedules", *command, *names)

    assert said.code == 2
    assert said.err.startswith('Error: There is no schedule "nobody\'s". `python -m aiopgq schedules list` shows them')
    assert await sql.fetch("SELECT * FROM aiopgq.schedules") == before
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0


async def test_without_schedules_the_list_says_so(cli):
    said = cli("schedules", "list")

    assert (said.code, said.out) == (0, "")
    assert said.err == "There is no schedule; one that code declares is written when a worker starts.\n"


TICKING = """
from aiopgq import App

jobs = App()

@jobs.schedule(every=0.2, misfire="all")
@jobs.task(name="tick")
async def tick() -> None: ...
"""


@pytest.mark.slow
async def test_six_worker_processes_of_which_some_are_killed_fire_each_time_once(cli, sql):
    cli.write("ticking", TICKING)
    runs = [cli.run("-A", "ticking", "--processes", 3, "--no-job-log") for _ in range(2)]
    first, *_ = [run.child() for run in runs for _ in range(3)]
    times = "SELECT (headers->>'scheduled_at')::timestamptz FROM aiopgq.all_jobs WHERE task = 'tick' ORDER BY 1"

    async def fired(number):
        return len(await sql.fetch(times)) >= number

    await eventually(lambda: fired(10), within=60, what="ten fire times came")
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: fired(30), within=60, what="thirty fire times came")
    for run in runs:
        run.stop()
    assert [run.end() for run in runs] == [0, 0]

    seen = [row[0] for row in await sql.fetch(times)]
    assert len(seen) >= 30
    assert {later - one for one, later in pairwise(seen)} == {timedelta(seconds=0.2)}
