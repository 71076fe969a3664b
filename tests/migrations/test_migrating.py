"""Migrations: found, compared, applied once whoever races, refused when they do not fit."""

import asyncio
import logging
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from uuid import uuid4

import asyncpg
import pytest
from schema_dump import dump_schema
from support import eventually

from aiopgq._store import schema as schema_module
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.schema import OLDEST_SCHEMA, check_schema, migrate, migrations, pending, script
from aiopgq._store.statements import quote, statement
from aiopgq.errors import (
    MigrationChanged,
    SchemaAhead,
    SchemaBehind,
    SchemaError,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)

KNOWN = migrations()
LAST = KNOWN[-1].number
NUMBERS = [migration.number for migration in KNOWN]
PARTITIONS = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'aiopgq.archive'::regclass"


def settings_of(dsn, schema="aiopgq", **server_settings):
    if not server_settings:
        return ConnectSettings(dsn, schema)

    async def connect():
        return await asyncpg.connect(dsn, server_settings=server_settings)

    return ConnectSettings(dsn, schema, connect=connect)


def numbers(found):
    return [migration.number for migration in found]


def ship(monkeypatch, shipped):
    monkeypatch.setattr(schema_module, "migrations", lambda: tuple(shipped))


def newer(number, oldest_code, sql="SELECT 1;"):
    return replace(KNOWN[0], number=number, name="newer", sql=sql, checksum="0" * 64, oldest_code=oldest_code)


@asynccontextmanager
async def connected(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def check(dsn, schema="aiopgq"):
    line = Line(ConnectSettings(dsn, schema), "test")
    try:
        return await check_schema(line)
    finally:
        await line.close()


async def recorded(dsn):
    async with connected(dsn) as connection:
        rows = await connection.fetch("SELECT number, name, checksum, oldest_code, applied_by FROM aiopgq.migrations")
        return sorted(map(tuple, rows))


async def dump(dsn):
    async with connected(dsn) as connection:
        return await dump_schema(connection)


# what is shipped


def test_the_migrations_are_numbered_from_one_without_gaps():
    assert list(range(1, LAST + 1)) == NUMBERS


def test_this_version_knows_the_oldest_schema_it_runs_on():
    assert OLDEST_SCHEMA in NUMBERS


HEADER = "-- 0001: an effect\n-- phase: before\n-- oldest code: 1\n-- locks: none\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("1_short_number.sql", HEADER),
        ("0001_other-characters.sql", HEADER),
        ("0002_another_number.sql", HEADER),
        ("0001_no_header.sql", "SELECT 1;\n"),
        ("0001_no_phase.sql", HEADER.replace("before", "sometime")),
        ("0001_no_locks.sql", HEADER.replace("-- locks: none\n", "")),
        ("0001_too_new.sql", HEADER.replace("code: 1", "code: 2")),
        ("0001_never.sql", HEADER.replace("code: 1", "code: 0")),
    ],
)
def test_a_malformed_migration_is_an_error_that_names_the_file(tmp_path, monkeypatch, name, content):
    (tmp_path / name).write_text(content)
    monkeypatch.setattr(schema_module, "_folder", lambda: tmp_path)

    with pytest.raises(SchemaError, match=name):
        migrations.__wrapped__()


def test_a_missing_migration_is_an_error(tmp_path, monkeypatch):
    for number in ("0001", "0003"):
        (tmp_path / f"{number}_effect.sql").write_text(HEADER.replace("0001", number))
    monkeypatch.setattr(schema_module, "_folder", lambda: tmp_path)

    with pytest.raises(SchemaError, match="gaps"):
        migrations.__wrapped__()


def test_other_files_beside_the_migrations_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "0001_effect.sql").write_text(HEADER.replace("before", "after"))
    (tmp_path / "README.md").write_text("read me")
    monkeypatch.setattr(schema_module, "_folder", lambda: tmp_path)

    [only] = migrations.__wrapped__()

    assert (only.number, only.name, only.phase, only.effect) == (1, "effect", "after", "an effect")


def test_an_installation_without_migrations_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(schema_module, "files", lambda _package: tmp_path)
    monkeypatch.setattr(schema_module, "__file__", str(tmp_path / "aiopgq" / "_store" / "schema.py"))

    with pytest.raises(SchemaError, match="Reinstall"):
        migrations.__wrapped__()


# applying


async def test_an_empty_database_gets_all_migrations_in_order(empty_dsn):
    done = await migrate(settings_of(empty_dsn))

    assert done == KNOWN
    by = version("aiopgq")
    assert await recorded(empty_dsn) == [(m.number, m.name, m.checksum, m.oldest_code, by) for m in KNOWN]
    assert await check(empty_dsn) == LAST


async def test_a_migrated_database_has_partitions_of_the_archive_from_yesterday_to_two_weeks_ahead(empty_dsn):
    await migrate(settings_of(empty_dsn))

    async with connected(empty_dsn) as connection:
        assert await connection.fetchval(PARTITIONS) == 16


async def test_migrating_a_current_database_writes_nothing(dsn):
    done = await migrate(settings_of(dsn, default_transaction_read_only="on"))

    assert done == ()


async def test_a_role_that_may_create_nothing_can_migrate_a_current_database(dsn):
    role = f"aiopgq_test_{uuid4().hex}"
    async with connected(dsn) as connection:
        await connection.execute(
            f"CREATE ROLE {role};GRANT USAGE ON SCHEMA aiopgq TO {role}; GRANT SELECT ON aiopgq.migrations TO {role}"
        )
        try:
            done = await migrate(settings_of(dsn, role=role))
        finally:
            await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert done == ()


async def test_a_role_that_may_create_nothing_is_told_what_postgresql_said(empty_dsn):
    role = f"aiopgq_test_{uuid4().hex}"
    async with connected(empty_dsn) as connection:
        await connection.execute(f"CREATE ROLE {role}")
        try:
            with pytest.raises(StoreError, match="permission denied"):
                await migrate(settings_of(empty_dsn, role=role))
        finally:
            await connection.execute(f"DROP ROLE {role}")


async def test_a_schema_that_exists_already_is_used(empty_dsn):
    async with connected(empty_dsn) as connection:
        await connection.execute("CREATE SCHEMA aiopgq")

    assert await migrate(settings_of(empty_dsn)) == KNOWN


async def test_a_database_at_an_earlier_migration_gets_the_rest(empty_dsn, monkeypatch):
    for shipped in range(LAST + 1):
        with monkeypatch.context() as patch:
            ship(patch, KNOWN[: shipped or 1])
            await migrate_without_partitions(patch, empty_dsn)

    assert numbers(await pending(settings_of(empty_dsn))) == []
    await migrate(settings_of(empty_dsn))
    assert await check(empty_dsn) == LAST


async def migrate_without_partitions(patch, dsn):
    # The function that makes them comes with a later migration.
    async def none(_connection, _schema):
        pass

    patch.setattr(schema_module, "_make_partitions", none)
    return await migrate(settings_of(dsn))


async def test_a_migration_that_fails_leaves_the_ones_before_it_and_nothing_of_itself(empty_dsn, monkeypatch):
    broken = newer(LAST + 1, 1, "CREATE TABLE aiopgq.half (); SELECT 1 / 0;")
    ship(monkeypatch, [*KNOWN, broken])

    with pytest.raises(StoreError):
        await migrate(settings_of(empty_dsn))

    assert numbers(await pending(settings_of(empty_dsn))) == [LAST + 1]
    async with connected(empty_dsn) as connection:
        assert await connection.fetchval("SELECT to_regclass('aiopgq.half')") is None


# racing


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
async def test_twelve_racing_migrators_apply_each_migration_once(empty_dsn, isolation):
    for turn in range(20 if isolation == "read committed" else 3):
        racers = [
            migrate(settings_of(empty_dsn, f"race{turn}", default_transaction_isolation=isolation)) for _ in range(12)
        ]

        done = await asyncio.gather(*racers)

        assert sorted(number for found in done for number in numbers(found)) == NUMBERS
        assert await check(empty_dsn, f"race{turn}") == LAST


async def test_racing_processes_apply_each_migration_once(empty_dsn):
    program = (
        "import asyncio, sys\n"
        "from aiopgq._store.connection import ConnectSettings\n"
        "from aiopgq._store.schema import migrate\n"
        "found = asyncio.run(migrate(ConnectSettings(sys.argv[1], 'aiopgq')))\n"
        "print(*(migration.number for migration in found))\n"
    )
    racers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program, empty_dsn, stdout=subprocess.PIPE)
        for _ in range(4)
    ]

    printed = [(await racer.communicate())[0] for racer in racers]

    assert [racer.returncode for racer in racers] == [0, 0, 0, 0]
    assert sorted(int(number) for line in printed for number in line.split()) == NUMBERS


async def test_a_migration_that_finds_a_table_locked_waits_briefly_and_often(dsn, monkeypatch):
    ship(monkeypatch, [*KNOWN, newer(LAST + 1, 1, "ALTER TABLE aiopgq.jobs ADD COLUMN later text;")])
    monkeypatch.setattr(schema_module, "_DDL_WAIT", "20ms")
    monkeypatch.setattr(schema_module, "_DDL_TRIES", 1000)
    async with connected(dsn) as reader, connected(dsn) as observer:
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT FROM aiopgq.jobs")
        migrating = asyncio.create_task(migrate(settings_of(dsn)))
        for _ in range(2):
            await eventually(lambda: somebody_waits(observer, "jobs"), every=0, what="it waits for the table")
            await eventually(lambda: nobody_waits(observer, "jobs"), every=0, what="it stops waiting")
        await reading.rollback()

        assert numbers(await migrating) == [LAST + 1]


async def somebody_waits(connection, table):
    return await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted)",
        f"aiopgq.{table}",
    )


async def nobody_waits(connection, table):
    return not await somebody_waits(connection, table)


async def test_a_migration_gives_up_when_a_table_stays_locked(dsn, monkeypatch):
    ship(monkeypatch, [*KNOWN, newer(LAST + 1, 1, "ALTER TABLE aiopgq.jobs ADD COLUMN later text;")])
    monkeypatch.setattr(schema_module, "_DDL_WAIT", "20ms")
    monkeypatch.setattr(schema_module, "_DDL_TRIES", 2)
    async with connected(dsn) as reader, reader.transaction():
        await reader.fetch("SELECT FROM aiopgq.jobs")

        with pytest.raises(StoreUnavailable):
            await migrate(settings_of(dsn))


async def test_partitions_are_made_once_the_archive_is_free(dsn, monkeypatch):
    monkeypatch.setattr(schema_module, "PARTITION_DAYS", 20)
    monkeypatch.setattr(schema_module, "_PARTITION_TRIES", 1000)
    async with connected(dsn) as other, connected(dsn) as observer:
        async with other.transaction():
            await other.execute("LOCK TABLE aiopgq.archive IN ACCESS EXCLUSIVE MODE")
            migrating = asyncio.create_task(migrate(settings_of(dsn)))
            await eventually(lambda: somebody_waits(observer, "archive"), every=0, what="it waits for the archive")
            await eventually(lambda: nobody_waits(observer, "archive"), every=0, what="it stops waiting")

        assert await migrating == ()
        assert await observer.fetchval(PARTITIONS) == 22


async def test_partitions_give_up_when_the_archive_stays_locked(dsn, monkeypatch):
    monkeypatch.setattr(schema_module, "PARTITION_DAYS", 20)
    monkeypatch.setattr(schema_module, "_PARTITION_TRIES", 2)
    async with connected(dsn) as other, other.transaction():
        await other.execute("LOCK TABLE aiopgq.archive IN ACCESS EXCLUSIVE MODE")

        with pytest.raises(StoreUnavailable):
            await migrate(settings_of(dsn))


# planning and scripts


async def test_pending_names_what_migrate_would_apply_and_changes_nothing(empty_dsn):
    assert await pending(settings_of(empty_dsn)) == KNOWN

    async with connected(empty_dsn) as connection:
        assert await connection.fetchval("SELECT to_regnamespace('aiopgq')") is None


async def test_nothing_is_pending_in_a_current_database(dsn):
    assert await pending(settings_of(dsn)) == ()


async def test_the_script_makes_the_same_database_as_migrate(dsn, empty_dsn):
    async with connected(empty_dsn) as connection:
        await connection.execute(script("aiopgq"))

    assert await dump(empty_dsn) == await dump(dsn)
    assert await recorded(empty_dsn) == await recorded(dsn)
    assert await migrate(settings_of(empty_dsn, default_transaction_read_only="on")) == ()


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
@pytest.mark.parametrize("schema", ["aiopgq", "Odd \"na'me% 💐:x $1"])
async def test_psql_can_run_the_script(empty_dsn, schema):
    psql = await asyncio.create_subprocess_exec(
        "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", empty_dsn,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = await psql.communicate(script(schema).encode())

    assert (psql.returncode, errors) == (0, b"")
    assert await check(empty_dsn, schema) == LAST
    assert await migrate(settings_of(empty_dsn, schema)) == ()


async def test_the_script_after_a_migration_holds_only_the_rest(dsn, empty_dsn, monkeypatch):
    with monkeypatch.context() as patch:
        ship(patch, KNOWN[:3])
        await migrate_without_partitions(patch, empty_dsn)

    async with connected(empty_dsn) as connection:
        await connection.execute(script("aiopgq", after=3))

    assert await dump(empty_dsn) == await dump(dsn)
    assert await recorded(empty_dsn) == await recorded(dsn)


async def test_a_script_run_twice_stops_at_its_first_version_row(dsn):
    before = await dump(dsn)

    async with connected(dsn) as connection:
        with pytest.raises(asyncpg.UniqueViolationError, match="migrations_key"):
            await connection.execute(script("aiopgq"))

    assert await dump(dsn) == before


# awkward names

AWKWARD = [
    "Odd \"na'me%", "UPPER", "with space", "schön 💐", "a.b", "aiopgq.x", "back\\slash", ":colon", "100%I",
    "$1", "aiopgq.notify", "--x", "select", "x" * 48,
]  # fmt: skip


@pytest.mark.parametrize("schema", AWKWARD)
async def test_a_job_is_enqueued_and_claimed_in_a_schema_with_an_awkward_name(empty_dsn, schema):
    await migrate(settings_of(empty_dsn, schema))

    async with connected(empty_dsn) as connection:
        job_id = await connection.fetchval(f"SELECT {quote(schema)}.enqueue('t')")
        claimed = await connection.fetch(
            statement("claim", schema), uuid4(), uuid4(), 10, ["t"], ["default"], [10], None, None, None
        )
    assert [row["id"] for row in claimed] == [job_id]
    assert await check(empty_dsn, schema) == LAST


async def test_a_script_works_for_a_schema_with_any_awkward_name(empty_dsn):
    async with connected(empty_dsn) as connection:
        for schema in AWKWARD:
            await connection.execute(script(schema))

    for schema in AWKWARD:
        assert await migrate(settings_of(empty_dsn, schema)) == ()


async def test_schemas_in_one_database_do_not_meet(dsn):
    await migrate(settings_of(dsn, "other"))

    async with connected(dsn) as connection:
        await connection.execute("SELECT other.enqueue('t')")
        assert await connection.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0


# which code runs on which schema


async def test_a_database_without_our_tables_is_missing_the_schema(empty_dsn):
    with pytest.raises(SchemaMissing):
        await check(empty_dsn)


async def test_a_schema_whose_first_migration_never_ended_is_missing(dsn):
    async with connected(dsn) as connection:
        await connection.execute("DELETE FROM aiopgq.migrations")

    with pytest.raises(SchemaMissing):
        await check(dsn)


async def test_a_schema_older_than_this_version_runs_on_is_behind(dsn, monkeypatch):
    monkeypatch.setattr(schema_module, "OLDEST_SCHEMA", LAST + 1)
    ship(monkeypatch, [*KNOWN, newer(LAST + 1, 1)])

    with pytest.raises(SchemaBehind) as caught:
        await check(dsn)

    assert (caught.value.found, caught.value.needed) == (LAST, LAST + 1)


async def test_a_schema_that_lacks_a_migration_in_the_middle_is_behind(dsn):
    async with connected(dsn) as connection:
        await connection.execute("DELETE FROM aiopgq.migrations WHERE number = 3")

    with pytest.raises(SchemaBehind) as caught:
        await check(dsn)

    assert caught.value.found == 2


async def test_this_version_runs_on_the_schema_of_the_previous_one(dsn, monkeypatch):
    ship(monkeypatch, [*KNOWN, newer(LAST + 1, 1)])

    assert await check(dsn) == LAST


async def test_a_schema_ahead_that_still_allows_this_version_is_noted_once(dsn, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        ship(patch, [*KNOWN, newer(LAST + 1, LAST)])
        await migrate(settings_of(dsn))
    caplog.set_level(logging.INFO, "aiopgq.schema")

    assert await check(dsn) == LAST + 1
    assert [record.levelname for record in caplog.records] == ["INFO"]


async def test_a_schema_ahead_that_needs_newer_code_is_refused_by_all(dsn, monkeypatch):
    with monkeypatch.context() as patch:
        ship(patch, [*KNOWN, newer(LAST + 1, LAST + 1), newer(LAST + 2, 1)])
        await migrate(settings_of(dsn))

    for use in (check(dsn), pending(settings_of(dsn)), migrate(settings_of(dsn))):
        with pytest.raises(SchemaAhead) as caught:
            await use
        assert (caught.value.found, caught.value.known) == (LAST + 2, LAST)


async def test_a_migration_that_differs_from_what_was_applied_is_refused_by_all(dsn, monkeypatch):
    ship(monkeypatch, [*KNOWN[:-1], replace(KNOWN[-1], checksum="f" * 64)])

    for use in (check(dsn), pending(settings_of(dsn)), migrate(settings_of(dsn))):
        with pytest.raises(MigrationChanged) as caught:
            await use
        assert (caught.value.number, caught.value.recorded, caught.value.found) == (
            LAST,
            KNOWN[-1].checksum,
            "f" * 64,
        )
