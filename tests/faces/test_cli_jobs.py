"""`jobs`, `dead`, `tasks`, `enqueue`, `version`: what they write, and what they change only with --yes."""

import json
import re
from uuid import UUID

import pytest
from faces.cli import enqueue

IDS = [UUID(f"00000000-0000-7000-8000-00000000000{n}") for n in range(1, 6)]

CLAIM = """
    UPDATE aiopgq.jobs
    SET status = 'claimed', place = NULL, claim_id = gen_random_uuid(), worker_id = gen_random_uuid(),
        claimed_at = now(), attempts = 1
    WHERE queue = 'slow'
"""
AGES = [
    "UPDATE aiopgq.jobs SET created_at = now() - right(id::text, 1)::int * interval '1 day'",
    "UPDATE aiopgq.archive SET created_at = now() - right(id::text, 1)::int * interval '1 day'",
    (
        "UPDATE aiopgq.dead_letters SET created_at = now() - right(id::text, 1)::int * interval '1 day',"
        " failed_at = now() - right(id::text, 1)::int * interval '1 hour'"
    ),
]


@pytest.fixture
async def five(cli, dsn, sql):
    """Five jobs of known ids and ages: completed, two dead letters, pending, claimed by nobody who lives."""
    await enqueue(dsn, "work.add", {"a": 1, "b": 2**60}, id=IDS[0])
    await enqueue(dsn, "work.fail", {"reason": "broken"}, queue="mail", max_attempts=1, id=IDS[1])
    await enqueue(dsn, "work.fail", {"reason": "late\x1b[31m"}, queue="mail", max_attempts=1, id=IDS[2])
    assert cli("run", "-A", "work", "--burst").code == 0
    await enqueue(dsn, "work.add", {"a": 4}, delay=3600, priority=150, id=IDS[3])
    await enqueue(dsn, "work.begin", {"seconds": 1}, queue="slow", id=IDS[4])
    await sql.execute(CLAIM)
    for statement in AGES:
        await sql.execute(statement)
    return cli


def lines(said):
    return [line.rstrip() for line in said.out.splitlines()]


async def test_jobs_are_listed_newest_first_and_filtered(five):
    whole = five("jobs", "list")
    assert whole.code == 0
    assert whole.err == ""
    assert lines(whole) == [
        "ID                                    STATUS     TASK        QUEUE    ATTEMPTS  AGE  LAST ERROR",
        f"{IDS[4]}  claimed    work.begin  slow     1/12      5d",
        f"{IDS[3]}  pending    work.add    default  0/12      4d",
        f"{IDS[2]}  failed     work.fail   mail     1/1       3d   ValueError: late\\x1b[31m",
        f"{IDS[1]}  failed     work.fail   mail     1/1       2d   ValueError: broken",
        f"{IDS[0]}  completed  work.add    default  1/12      24h",
    ]

    def listed(*filters):
        return [UUID(one["id"]) for one in five("jobs", "list", "--json", *filters).json]

    assert listed("--task", "work.add") == [IDS[3], IDS[0]]
    assert listed("--queue", "mail", "--error", "broken") == [IDS[1]]
    assert listed("--status", "pending") == [IDS[3]]
    assert listed("--older-than", "60h", "--newer-than", "4.5d") == [IDS[3], IDS[2]]
    none = five("jobs", "list", "--queue", "nobody's")
    assert (none.code, none.out, none.err) == (0, "", "No job fits.\n")
    two = five("jobs", "list", "--limit", "2")
    assert len(lines(two)) == 3
    assert two.err == "These are the newest 2; there may be more, see --limit.\n"


async def test_a_job_is_shown_whole(five):
    shown = five("jobs", "show", IDS[0])
    timeless = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME", shown.out)
    assert re.sub(r"(?m)^(worker +).*", r"\1W", timeless).splitlines() == [
        f"id         {IDS[0]}",
        "task       work.add",
        "queue      default",
        "status     completed",
        "priority   100",
        "attempts   1 of 12",
        "created    TIME",
        "due        TIME",
        "claimed    TIME",
        "finished   TIME",
        "worker     W",
        'arguments  {"a":1,"b":1152921504606846976}',
        "result     1152921504606846977",
    ]
    assert five("jobs", "show", IDS[0], "--json").json["args"]["b"] == 2**60

    missing = five("jobs", "show", UUID(int=7))
    assert missing.code == 1
    assert missing.err.startswith("Error: Job 00000000-0000-0000-0000-000000000007 is not in the database")
    assert five("jobs", "show", "seven").code == 2


async def test_jobs_are_cancelled_by_ids_or_filters_and_only_with_yes(five, sql):
    async def unfinished():
        return [
            tuple(row) for row in await sql.fetch("SELECT id, status, cancel_requested FROM aiopgq.jobs ORDER BY id")
        ]

    before = await unfinished()
    dry = five("jobs", "cancel", "--all")
    assert (dry.code, dry.out, dry.err) == (
        0,
        "2 jobs would be cancelled, 1 of them by asking its worker.\n",
        "Nothing was changed; add --yes to do it.\n",
    )
    assert await unfinished() == before

    done = five("jobs", "cancel", "--task", "work.add", "--yes")
    assert (done.code, done.out, done.err) == (0, "1 job cancelled.\n", "")
    assert await unfinished() == [(IDS[4], "claimed", True)] or await unfinished() == [(IDS[4], "claimed", False)]

    mixed = five("jobs", "cancel", IDS[0], IDS[4], UUID(int=7), "--yes")
    assert (mixed.code, mixed.out, mixed.err) == (
        1,
        "1 job cancelled, 1 of them by asking its worker.\n",
        "1 job is finished already.\nThere is no job 00000000-0000-0000-0000-000000000007.\n",
    )
    assert await unfinished() == [(IDS[4], "claimed", True)]
    assert await sql.fetchval("SELECT array_agg(id ORDER BY id) FROM aiopgq.archive") == [IDS[0], IDS[3]]


@pytest.mark.parametrize("command", [("jobs", "cancel"), ("dead", "replay"), ("dead", "purge")])
@pytest.mark.parametrize("which", [(), (str(IDS[0]), "--all"), ("--task", "x", str(IDS[0]))])
def test_to_change_jobs_one_says_which_in_one_way(cli_alone, command, which):
    said = cli_alone(*command, *which, "--yes")

    assert said.code == 2
    assert "say which: ids, or filters such as --task, or --all" in said.err


async def test_dead_letters_are_listed_and_shown_with_every_error(five):
    assert lines(five("dead", "list"))[1:] == [
        f"{IDS[1]}  failed  work.fail  mail   1/1       2d   ValueError: broken",
        f"{IDS[2]}  failed  work.fail  mail   1/1       3d   ValueError: late\\x1b[31m",
    ]
    newer = five("dead", "list", "--newer-than", "150m", "--json")
    older = five("dead", "list", "--older-than", "150m", "--json", "--limit", "1")
    assert [one["id"] for said in (newer, older) for one in said.json] == [str(IDS[1]), str(IDS[2])]
    cut = five("dead", "list", "--limit", "1")
    assert cut.err == "These are the last 1 of 2; see --limit.\n"

    shown = five("dead", "show", IDS[2])
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert "last error  ValueError: late\\x1b[31m\n" in shown.out
    assert re.search(r"\n\nattempt  1\nat       \S+\non       \S+\nerror    Traceback \(most recent", shown.out)
    alive = five("dead", "show", IDS[3])
    assert (alive.code, alive.out) == (1, "")
    assert alive.err == f"Error: Job {IDS[3]} is no dead letter: it is pending.\n"


async def test_dead_letters_are_replayed_only_with_yes(five, sql):
    dry = five("dead", "replay", "--error", "ValueError")
    assert (dry.code, dry.out, dry.err) == (
        0,
        "2 dead letters would be replayed.\n",
        "Nothing was changed; add --yes to do it.\n",
    )
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.dead_letters") == 2

    done = five("dead", "replay", "--newer-than", "150m", "--yes")
    assert (done.code, done.out, done.err) == (0, "1 dead letter replayed.\n", "")
    assert await sql.fetchval("SELECT attempts FROM aiopgq.jobs WHERE id = $1", IDS[1]) == 0

    again = five("dead", "replay", IDS[1], IDS[2], "--yes")
    assert (again.code, again.out, again.err) == (
        1,
        "1 dead letter replayed.\n",
        f"There is no dead letter {IDS[1]}.\n",
    )
    assert five("run", "-A", "work", "--burst").code == 0
    assert await sql.fetchval("SELECT array_agg(jsonb_array_length(errors)) FROM aiopgq.dead_letters") == [2, 2]


async def test_a_dead_letter_whose_unique_key_is_taken_is_left_and_the_others_are_replayed(five, sql):
    await sql.execute("UPDATE aiopgq.dead_letters SET unique_key = 'k' WHERE id = $1", IDS[1])
    newer = await sql.fetchval("SELECT aiopgq.enqueue('work.fail', p_unique_key => 'k')")

    done = five("dead", "replay", "--all", "--yes")

    assert (done.code, done.out, done.err) == (
        1,
        "1 dead letter replayed.\n",
        f"{IDS[1]} stays a dead letter: job {newer} has its unique key. Replay it when that job is done.\n",
    )
    assert await sql.fetchval("SELECT array_agg(id) FROM aiopgq.dead_letters") == [IDS[1]]


async def test_dead_letters_are_purged_only_with_yes(five, sql):
    assert five("dead", "purge", "--all").out == "2 dead letters would be deleted.\n"
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.dead_letters") == 2

    assert five("dead", "purge", "--older-than", "150m", "--yes").out == "1 dead letter deleted.\n"
    assert await sql.fetchval("SELECT array_agg(id) FROM aiopgq.all_jobs WHERE status = 'failed'") == [IDS[1]]


async def test_tasks_are_listed(cli_alone):
    cli_alone.write(
        "few",
        "from aiopgq import App\njobs = App()\n"
        "@jobs.task(queue='mail', priority=7, max_attempts=3, timeout=None, aliases=('old.name',))\n"
        "def send(to: str, *, copies: int = 1) -> None: ...\n"
        "@jobs.task\nasync def add(a: int) -> int: ...\n",
    )

    said = cli_alone("tasks", "list", "-A", "few")
    assert lines(said) == [
        "TASK      QUEUE    PRIORITY  ATTEMPTS  TIMEOUT  RUNS IN  PARAMETERS",
        "few.add   default  100       12        3600 s   loop     a: int",
        "few.send  mail     7         3         none     thread   to: str, *, copies: int = 1",
    ]
    [_, send] = cli_alone("tasks", "list", "-A", "few", "--json").json
    assert send == {
        "name": "few.send",
        "aliases": ["old.name"],
        "queue": "mail",
        "priority": 7,
        "max_attempts": 3,
        "timeout": None,
        "threaded": True,
        "parameters": "to: str, *, copies: int = 1",
        "defined": f"send ({cli_alone.folder}/few.py:3)",
    }


async def test_a_job_is_enqueued_by_its_tasks_own_types(cli, sql):
    cli.write(
        "typed",
        "from datetime import datetime\nfrom aiopgq import App\njobs = App()\n"
        "@jobs.task(name='remind', aliases=('old.remind',), queue='mail')\n"
        "async def remind(at: datetime, times: int = 3) -> str:\n    return f'{at.year} {times}'\n",
    )
    arguments = '{"at": "2026-01-02T03:04:05Z"}'

    plain = cli("enqueue", "-A", "typed", "old.remind", arguments)
    other = cli("enqueue", "-A", "typed", "remind", arguments, "--queue", "slow", "--priority", 7, "--delay", "1h")

    assert (plain.code, plain.err, other.code) == (0, "", 0)
    rows = await sql.fetch(
        "SELECT id::text, task, queue, priority, args::text, run_at > now() + interval '50m'"
        " FROM aiopgq.jobs ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        (plain.out.strip(), "remind", "mail", 100, arguments, False),
        (other.out.strip(), "remind", "slow", 7, arguments, True),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("work.add", '{"a": "one"}'), "Error: Task 'work.add', parameter 'a': expected `int`, got `str`"),
        (("work.add", "{}"), "Error: Task 'work.add', parameter 'a': is missing"),
        (("work.add", '{"a": 1, "c": 2}'), "parameter 'c': there is no such parameter; the task takes a, b"),
        (("work.add", "[1]"), 'the arguments are no JSON object such as {"n": 1}: Expected `object`, got `array`'),
        (("work.add", "{'a': 1}"), 'the arguments are no JSON object such as {"n": 1}: JSON is malformed'),
        (("work.ad", "{}"), "Did you mean 'work.add'?"),
        (("work.add", '{"a": 1}', "--priority", "40000"), "priority"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_before_anything_is_sent(cli_alone, options, message):
    said = cli_alone("enqueue", "-A", "work", *options)

    assert said.code == 2
    assert said.out == ""
    assert message in said.err
    assert "Traceback" not in said.err


async def test_without_an_app_a_job_is_enqueued_unchecked_but_storable(cli, sql):
    said = cli("enqueue", "elsewhere.do", '{"anything": [1, 2.5, null, "é"]}')
    refused = cli("enqueue", "elsewhere.do", r'{"anything": "\u0000"}')

    assert said.code == 0
    assert said.err == "Not checked against the task, since no App was named (-A).\n"
    assert tuple(await sql.fetchrow("SELECT id::text, task, queue, args::text FROM aiopgq.jobs")) == (
        said.out.strip(),
        "elsewhere.do",
        "default",
        '{"anything": [1, 2.5, null, "é"]}',
    )
    assert refused.code == 2
    assert "holds the character U+0000, which PostgreSQL cannot store" in refused.err


async def test_enqueue_can_wait_for_the_result(cli):
    run = cli.run("-A", "work")
    run.ready()

    good = cli("enqueue", "-A", "work", "work.add", '{"a": 40}', "--wait")
    bad = cli("enqueue", "-A", "work", "work.fail", '{"reason": "broken"}', "--wait")

    assert (good.code, good.out.splitlines()[1:]) == (0, ["42"])
    assert bad.code == 1
    assert re.match(r"Error: Job \S+ failed for good: ValueError: broken\. ", bad.err)


def test_the_version_is_told(cli_alone):
    said = cli_alone("version")
    found = cli_alone("version", "--json").json

    assert re.fullmatch(r"aiopgq \d+\.\d+\.\d+, asyncpg \S+, anyio \S+, python \S+\n", said.out)
    assert set(found) == {"aiopgq", "asyncpg", "anyio", "python"}


def test_help_names_every_command_with_an_example(cli_alone):
    overview = cli_alone("--help")
    assert overview.code == 0
    commands = re.findall(r"^  (\w+) +[A-Z]", overview.out.partition("Commands:")[2], re.MULTILINE)
    expected = "run migrate demo bench enqueue jobs dead queues schedules workers inbox outbox tasks version"
    assert commands == expected.split()

    for command in ("migrate", "enqueue", "version", "jobs list", "jobs cancel", "dead replay", "tasks list"):
        said = cli_alone(*command.split(), "--help")
        assert said.code == 0
        assert f"Example:\n  python -m aiopgq {command}" in said.out


STEPS = """
from work import *

@jobs.task
async def resize() -> str:
    run = current_job()
    run.progress(40, stage="resizing\\x1b[31m")
    while not pathlib.Path("go on").exists():
        await asyncio.sleep(0.02)
    return "resized"
"""


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_job_is_watched_until_it_ends(cli, dsn, as_json):
    cli.write("steps", STEPS)
    [job_id] = await enqueue(dsn, "steps.resize", {})
    running = cli.run("-A", "steps")
    running.ready()
    watching = cli.start("jobs", "show", "--watch", job_id, *(["--json"] if as_json else []))

    seen = []
    for line in watching.stdout:
        seen.append(line.rstrip())
        if "resizing" in line:
            (cli.folder / "go on").touch()
    assert watching.wait(30) == 0
    watching.stdout.close()
    running.stop()
    assert running.end() == 0

    if as_json:
        updates = [json.loads(line) for line in seen if line.startswith("{") and line.endswith("}")]
        assert updates[-1] == {
            "status": "completed",
            "percent": 40,
            "stage": "resizing\x1b[31m",
            "events": 1,
            "attempt": 1,
        }
        assert json.loads("\n".join(seen[len(updates) :]))["result"] == "resized"
    else:
        assert r"running    attempt 1  40 %    resizing\x1b[31m" in seen
        last = seen.index(r"completed  attempt 1  40 %    resizing\x1b[31m")
        assert seen[last + 1] == f"id         {job_id}"
        assert 'result     "resized"' in seen
