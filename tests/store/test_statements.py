"""Each statement's header is true: PostgreSQL is asked."""

import re
from importlib.resources import files
from typing import NamedTuple

import asyncpg
import pytest

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.schema import OLDEST_SCHEMA, migrate, migrations
from aiopgq._store.statements import statement

FOLDER = files("aiopgq._store").joinpath("sql")
NAMES = sorted(file.name.removesuffix(".sql") for file in FOLDER.iterdir() if file.name.endswith(".sql"))
# The server's spelling of what headers call by its common name.
SPELLING = {"int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "bool": "boolean"}
# What a statement may use without a qualifier: the language, and what lies in pg_catalog.
KEYWORD = re.compile(r"\b(?:FROM|JOIN|INTO|USING|UPDATE)\s+(?!LATERAL\b|unnest\b)([\w.]+)", re.IGNORECASE)


class Header(NamedTuple):
    name: str
    parameters: list[tuple[int, str]]
    notes: dict[str, str]


def header_of(name):
    lines = [line for line in statement(name).splitlines() if line.startswith("--")]
    title = re.fullmatch(r"-- (\w+): \S.*", lines[0])
    parameters = [re.fullmatch(r"--   \$(\d+) +(\S+) +\S.*", line) for line in lines if line.startswith("--   $")]
    notes = [re.fullmatch(r"-- (Locks|Index|Returns): +(\S.*)", line) for line in lines[1:] if line[3:4].isupper()]
    assert title
    assert all(parameters)
    assert all(notes)
    return Header(title[1], [(int(p[1]), p[2]) for p in parameters], {note[1]: note[2] for note in notes})


def body_of(name):
    return "\n".join(line for line in statement(name).splitlines() if not line.startswith("--"))


def spelled(kind):
    name = SPELLING.get(kind.name.removesuffix("[]"), kind.name.removesuffix("[]"))
    return name + "[]" * kind.name.endswith("[]")


@pytest.fixture
async def connection(dsn):
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_header_names_its_file_and_says_all_there_is_to_say(name):
    header = header_of(name)

    assert header.name == name
    assert list(header.notes) == ["Locks", "Index", "Returns"]


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_ends_without_a_semicolon(name):
    assert not body_of(name).rstrip().endswith(";")


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_qualifies_every_table_and_function(name):
    sql = body_of(name)
    own = set(re.findall(r"\b(\w+)(?: \([\w, ]+\))? AS \(", sql))
    tables = [table for table in KEYWORD.findall(re.sub(r"--.*", "", sql)) if table not in own]

    assert [table for table in tables if not table.startswith(("aiopgq.", "pg_catalog."))] == []


async def test_nothing_is_found_by_the_search_path(connection):
    await connection.execute("SET search_path = pg_catalog")

    for name in NAMES:
        await connection.prepare(statement(name))


async def test_the_server_reads_the_parameters_as_the_headers_say(connection):
    told = {name: header_of(name).parameters for name in NAMES}

    seen = {}
    for name in NAMES:
        prepared = await connection.prepare(statement(name))
        seen[name] = list(enumerate(map(spelled, prepared.get_parameters()), 1))

    assert told == seen


async def test_the_server_returns_the_columns_the_headers_name(connection):
    told = {name: header_of(name).notes["Returns"].partition(";")[0].split(", ") for name in NAMES}

    seen = {}
    for name in NAMES:
        prepared = await connection.prepare(statement(name))
        seen[name] = [column.name for column in prepared.get_attributes()]

    assert told == seen


async def test_every_index_a_header_names_exists(connection):
    rows = await connection.fetch("SELECT indexname FROM pg_indexes WHERE schemaname = 'aiopgq'")
    exist = {row["indexname"] for row in rows}

    told = {index for name in NAMES for index in header_of(name).notes["Index"].split(", ")}

    assert told - {"none", "none read"} <= exist


async def test_the_oldest_schema_this_version_runs_on_has_all_that_the_statements_need(empty_dsn, monkeypatch):
    oldest = migrations()[:OLDEST_SCHEMA]
    monkeypatch.setattr("aiopgq._store.schema.migrations", lambda: oldest)
    await migrate(ConnectSettings(empty_dsn, "aiopgq"))
    connection = await asyncpg.connect(empty_dsn)

    try:
        for name in NAMES:
            await connection.prepare(statement(name))
    finally:
        await connection.close()
