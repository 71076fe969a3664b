"""What the pages promise in tables is what the code says."""

import ast
import asyncio
import inspect
import re
import tomllib
from collections import Counter
from pathlib import Path

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Worker
from aiopgq._words.job import FINAL, Status
from aiopgq._words.options import UNSET
from aiopgq.router import Enqueuer

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LIFE = (ROOT / "docs" / "life-of-a-job.md").read_text()


def table(page, title):
    """Return the rows of the first table below a title, a list of cells each."""
    below = page[page.index(f"\n## {title}\n") :] if title else page
    rows = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)[1]
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.splitlines()]


def code(cell):
    return cell.strip("`")


@pytest.mark.parametrize(
    ("title", "function"),
    [
        ("`App(…)`", App.__init__),
        ("`@jobs.task(…)`", App.task),
        ("`task.options(…)`", Enqueuer.options),
        ("`jobs.worker(…)`", App.worker),
    ],
    ids=["App", "task", "options", "worker"],
)
def test_the_page_knows_every_option_and_its_default(title, function):
    parameters = list(inspect.signature(function).parameters.values())
    options = {one.name: one.default for one in parameters if one.name not in ("self", "function")}

    told = {code(name): code(default) for name, default, _ in table(CONFIGURATION, title)}

    assert {
        name: UNSET if default == "UNSET" else ast.literal_eval(default) for name, default in told.items()
    } == options


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
            assert told.total() == 10
            assert re.search(r"\*\*4 . workers \+ 6 . open Apps\*\*", CONFIGURATION)

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
