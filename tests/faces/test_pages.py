"""What the pages promise in tables is what the code says."""

import ast
import asyncio
import inspect
import re
import secrets
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Backoff, Worker, app, worker
from aiopgq._flow import enqueue, pulse, tick, upkeep
from aiopgq._store import connection as store_connection
from aiopgq._store import listen, patience
from aiopgq._store import schedules as store_schedules
from aiopgq._words import cron, options, schedule
from aiopgq._words.horizon import SHARDS
from aiopgq._words.job import FINAL, Status
from aiopgq._words.options import UNSET
from aiopgq.cli import orders, parent
from aiopgq.cli.outbox import _BROKERS as BROKERS
from aiopgq.cli.run import run
from aiopgq.outbox import Outbox, tenure
from aiopgq.task import Enqueuer
from aiopgq.worker import Health

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
OUTBOX = (ROOT / "docs" / "outbox.md").read_text()
LIFE = (ROOT / "docs" / "life-of-a-job.md").read_text()
RELAY = inspect.signature(Outbox.relay).parameters


def table(page, title):
    """Return the rows of the first table below a title, a list of cells each."""
    below = page[page.index(f"\n## {title}\n") :] if title else page
    rows = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)[1]
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.splitlines()]


def code(cell):
    return cell.strip("`")


@pytest.mark.parametrize(
    ("page", "title", "function"),
    [
        (CONFIGURATION, "`App(…)`", App.__init__),
        (CONFIGURATION, "`@jobs.task(…)`", App.task),
        (CONFIGURATION, "`task.options(…)`", Enqueuer.options),
        (CONFIGURATION, "`jobs.worker(…)`", App.worker),
        (OUTBOX, "Settings of `jobs.outbox.relay(…)`", Outbox.relay),
    ],
    ids=["App", "task", "options", "worker", "relay"],
)
def test_the_page_knows_every_option_and_its_default(page, title, function):
    parameters = list(inspect.signature(function).parameters.values())
    options = {one.name: one.default for one in parameters if one.name not in ("self", "function")}

    told = {code(name): code(default) for name, default, _ in table(page, title)}

    assert {name: value(default) for name, default in told.items()} == options


def value(default):
    """Return what a cell means: nothing, UNSET, a literal or a Backoff of literals."""
    if default in ("", "UNSET"):
        return UNSET if default else inspect.Parameter.empty
    tree = ast.parse(default, mode="eval").body
    if isinstance(tree, ast.Call) and tree.func.id == "Backoff":
        return Backoff(**{one.arg: ast.literal_eval(one.value) for one in tree.keywords})
    return ast.literal_eval(default)


def test_the_page_of_the_outbox_knows_every_publisher_its_extra_and_its_url():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = {}
    for path, extra, url, _ in table(OUTBOX, "Publish"):
        module, _, kind = code(path).rpartition(".")
        assert callable(getattr(import_module(module), kind).publish)
        if url:
            assert code(extra) in extras
            told[code(url).removesuffix("://")] = (module.rpartition(".")[2], kind, code(extra))

    assert told.items() <= BROKERS.items()
    assert set(told.values()) == set(BROKERS.values())


@pytest.mark.parametrize(
    ("says", "number"),
    [
        (r"one in (\d+) of the other aggregates", SHARDS),
        (r"one lock for each shard it adds to, (\d+) at most", SHARDS),
        (r"tried again after ([\d.]+) s, doubling up to `longest_pause`", patience._FIRST),
        (r"as for a worker: tried again, up to every (\d+) s", patience._LONGEST),
        (r"doubling up to `longest_pause` \((\d+) s\)", RELAY["longest_pause"].default),
        (r"after its lease \((\d+) s\)", RELAY["lease"].default),
        (r"deleted after `retention` \((\d+) days\)", RELAY["retention"].default / 86_400),
        (r"growing pauses, (\d+) s doubling", RELAY["backoff"].default.base),
        (r"doubling up to (\d+) min", RELAY["backoff"].default.cap / 60),
        (r"days\), ([\d,]+) in a transaction", tenure._PRUNE),
    ],
)
def test_the_numbers_on_the_page_of_the_outbox_are_those_of_the_code(says, number):
    told = re.search(says.replace(" ", r"\s+"), OUTBOX)[1]

    assert float(told.replace(",", "")) == number


async def test_a_relay_holds_the_connections_the_page_tells(dsn):
    class Nowhere:
        async def publish(self, events):
            return [None for _ in events]

    connection = await asyncpg.connect(dsn)
    try:
        async with App(dsn) as jobs, jobs.outbox.relay(Nowhere()):
            read = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

            async def three():
                return await connection.fetchval(read) == 3

            await eventually(three, what="it reads, beats and listens")
    finally:
        await connection.close()
    assert "A relay has three connections: it reads, beats and listens." in OUTBOX


def test_the_page_knows_every_variable_of_the_environment():
    read = {
        name
        for file in (ROOT / "aiopgq").rglob("*.py")
        if "cli" not in file.parts
        for name in re.findall(r"\b(?:AIOPGQ_[A-Z_]+|DATABASE_URL)\b", file.read_text())
    }

    assert {code(name) for name, _ in table(CONFIGURATION, "Environment")} == read


async def test_a_process_holds_the_connections_the_page_tells(dsn):
    jobs = App(dsn)
    release = asyncio.Event()

    @jobs.task
    async def wait() -> None:
        await release.wait()

    @jobs.task
    async def nothing() -> None: ...

    connection = await asyncpg.connect(dsn)

    async def held():
        rows = await connection.fetch(
            "SELECT application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'aiopgq %'"
        )
        return Counter(row["application_name"] for row in rows)

    try:
        async with jobs, jobs.worker(concurrency=50, shutdown_grace=0):
            await (await nothing.enqueue()).result(10)
            handles = await asyncio.gather(*(wait.enqueue() for _ in range(100)))
            await asyncio.gather(*(handle.info() for handle in handles))
            results = [asyncio.create_task(handle.result()) for handle in handles]
            told = Counter(
                {
                    code(name): int(worker or 0) + int(app or 0)
                    for name, worker, app, _ in table(CONFIGURATION, "Connections")
                }
            )

            async def as_told():
                return await held() == told

            await eventually(as_told, what=f"the connections are {told}")
            release.set()
            await asyncio.gather(*results)
            assert await held() == told
            assert told.total() == 11
            assert re.search(r"\*\*5 . workers \+ 6 . open Apps\*\*", CONFIGURATION)

        async def all_gone():
            return not await held()

        await eventually(all_gone, what="the connections are closed")
    finally:
        await connection.close()


def test_the_life_of_a_job_names_every_status():
    statuses = set(Status.__args__)

    assert [code(row[0]) for row in table(LIFE, "")] == [*Status.__args__[:3], "completed", "cancelled", "failed"]
    drawn = set(re.findall(r"(\w+) --> (\w+)", LIFE))
    assert {status for arrow in drawn for status in arrow} == statuses
    assert {start for start, _ in drawn} & FINAL == {"failed"}


def test_the_worker_has_the_faces_the_pages_show():
    shown = set(re.findall(r"\.worker\([^)]*\)\.(\w+)", (ROOT / "README.md").read_text()))

    assert shown
    assert [face for face in shown if not callable(getattr(Worker, face, None))] == []


def test_the_floors_a_contributor_reads_of_are_those_that_are_checked():
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = table(CONTRIBUTING, "The floors")

    assert [set(re.findall(r"aiopgq/(\w+)", row[0])) for row in rows] == [
        set(re.findall(r"\w+", one)) for one in checked
    ]


def default(function, name):
    return inspect.signature(function).parameters[name].default


async def test_the_operators_page_tells_every_time_as_it_is():
    lease, beat = default(App.worker, "lease"), app._BEAT_INTERVAL
    known = {
        "lease": lease,
        "beat": beat,
        "own deadline": pulse._OWN_SHARE * lease,
        "last notice": pulse._LAST_NOTICE,
        "hang limit": default(App.worker, "hang_limit"),
        "timeout of a run": options.DEFAULT_TIMEOUT,
        "shutdown grace": default(App.worker, "shutdown_grace"),
        "end of a `run` process": orders.AFTER_GRACE,
        "hurry": orders.LAST_CALL,
        "statement": store_connection.STATEMENT_TIMEOUT,
        "connect": store_connection.CONNECT_TIMEOUT,
        "longest pause": patience._LONGEST,
        "keepalive": store_connection._TCP["TCP_USER_TIMEOUT"] / 1000,
        "enqueue": enqueue.DEADLINE,
        "poll": default(App.worker, "poll_interval"),
        "ping": listen.PING_INTERVAL,
        "stuck": worker._STUCK,
        "tick": tick._PASS,
        "upkeep": upkeep._PASS,
        "restart": parent._FIRST_PAUSE,
    }
    rows = table(OPERATIONS, "Times")

    assert {what: float(number) for what, number, _, _ in rows} == known
    settings = [code(setting) for _, _, setting, _ in rows if setting]
    assert [one for one in settings if one not in inspect.signature(App.worker).parameters] == ["timeout"]
    # Four beats fit into a lease, and what ignores the deadline ends before others take its jobs.
    assert 4 * beat <= lease
    assert pulse._OWN_SHARE * lease + pulse._LAST_NOTICE < lease


def test_the_page_of_schedules_tells_every_option_and_time_as_it_is():
    page = " ".join((ROOT / "docs" / "schedules.md").read_text().split())
    parameters = inspect.signature(App.schedule).parameters

    assert {f"`{name}`" for name in parameters if name not in ("self", "cron")} <= set(re.findall(r"`\w+`", page))
    assert f"missed by more than {schedule.PUNCTUAL:g} seconds" in page
    assert (schedule.MOST, schedule.DEFAULT_WINDOW) == (1000, 86_400)
    assert "the newest thousand at most" in page
    assert f"at least {cron.SHORTEST}" in page
    assert [f"`{name}`" for name in cron._NAMES if f"`{name}`" not in page] == ["`@annually`", "`@midnight`"]
    assert store_schedules._ORPHANED_AFTER == 300
    assert "Five minutes after the last worker" in page
    assert tick._PASS == 15
    assert "within 18 seconds. They look every 15" in page


def test_the_operators_page_quotes_what_the_log_says():
    sources = [re.sub(r'"\s*\n\s*f?"', "", file.read_text()) for file in (ROOT / "aiopgq").rglob("*.py")]
    said = [line for row in table(OPERATIONS, "Failures") for line in re.findall(r"`([^`]*)`", row[1]) if " " in line]
    # What a loop cannot do is put into a sentence they share.
    pieces = {
        piece.strip(" ():;") for line in said for piece in re.split("…|cannot |, trying|^can | again(?=, after)", line)
    }

    assert len(said) > 8
    assert [piece for piece in pieces if piece and not any(piece in source for source in sources)] == []


def test_the_operators_page_knows_all_that_health_tells():
    told = set(re.findall(r"`(\w+)`", OPERATIONS[OPERATIONS.index("`worker.health()`") :].partition("\n\n")[0]))

    assert told == set(Health._fields)


def test_the_operators_page_tells_the_exit_codes_as_the_help_does():
    told = dict(table(OPERATIONS, "Exit codes of `run`"))
    helped = dict(re.findall(r"^  (\d)  (.+)$", run.epilog, re.MULTILINE))

    def first_words(text):
        return re.split("[:;]", text.replace("`", ""))[0]

    assert {code: first_words(text) for code, text in told.items()} == {
        code: first_words(text) for code, text in helped.items()
    }


async def test_the_lines_that_grant_roles_can_be_run_as_they_stand(dsn):
    [lines] = re.findall(r"```sql\n(.*?)```", OPERATIONS, re.DOTALL)
    suffix = secrets.token_hex(6)
    made = [f"{role}_{suffix}" for role in re.findall(r"CREATE ROLE (\w+)", lines)]
    own = re.sub(r"(?<=ROLE )\w+|(?<=\(')\w+", lambda role: f"{role[0]}_{suffix}", lines)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(own)
        able = [
            await connection.fetchval("SELECT has_table_privilege($1::text, 'aiopgq.jobs', 'UPDATE')", role)
            for role in made
        ]
    finally:
        for role in made:
            await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()

    assert dict(zip(made, able, strict=True)) == {f"web_{suffix}": False, f"worker_{suffix}": True}
