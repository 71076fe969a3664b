"""The schema's versions: which migrations there are, which the database has, and how it gets the rest.

If the process dies in the middle, the database is at some migration, whole; the next call goes on from there.

Code knows migrations 1 to K. It runs on a schema from OLDEST_SCHEMA on, and on one beyond K as long as each
migration it does not know says that code as old as K may stay.
"""

import asyncio
import hashlib
import logging
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import asyncpg

from aiopgq._store.connection import CLOSE_TIMEOUT, ConnectSettings, Line
from aiopgq._store.statements import place_in, quote, statement
from aiopgq._store.trouble import Undefined, translated
from aiopgq.errors import MigrationChanged, SchemaAhead, SchemaBehind, SchemaError, SchemaMissing

__all__ = ["OLDEST_SCHEMA", "Migration", "check_schema", "migrate", "migrations", "pending", "script"]

OLDEST_SCHEMA: Final = 14
PARTITION_DAYS: Final = 14

# Another migrator may be at work on a large table; whoever waits for it stops nobody.
_TURN_WAIT: Final = "60s"
# DDL that waits for a lock stops everybody behind it, so it waits briefly and often.
_DDL_WAIT: Final = "2s"
_DDL_TRIES: Final = 10
_PARTITION_TRIES: Final = 40
_PAUSE: Final = 0.1
_MET_OTHERS: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_HEADER: Final = re.compile(
    r"-- (?P<number>\d{4}): (?P<effect>\S.*)\n"
    r"-- phase: (?P<phase>before|after)\n"
    r"-- oldest code: (?P<oldest_code>\d+)\n"
    r"-- locks: \S.*\n"
)
# A string, a quoted identifier (either may hold what looks like a parameter), or a parameter.
_PARAMETER: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")

logger = logging.getLogger("aiopgq.schema")


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration as shipped.

    Attributes:
        number: Its place in the order, from 1.
        name: Its name, that of the file without number and suffix.
        sql: The file, written for the schema `aiopgq`.
        checksum: Hexadecimal SHA-256 of the file.
        phase: before = safe while workers of the last release run; after = once none is left.
        oldest_code: The highest migration known to the oldest code that can run once this one is applied.
        effect: What it does, in a line.
    """

    number: int
    name: str
    sql: str = field(repr=False)
    checksum: str
    phase: Literal["before", "after"]
    oldest_code: int
    effect: str


class _Applied(NamedTuple):
    number: int
    name: str
    checksum: str
    oldest_code: int


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this version, in order.

    Raises:
        SchemaError: The installation is damaged: a file is missing or malformed.
    """
    found = tuple(_read(_folder()))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise SchemaError(f"The migrations of this installation have gaps: {numbers}. Reinstall aiopgq.")

    return found


def _folder() -> Traversable:
    installed = files("aiopgq").joinpath("migrations")
    if installed.is_dir():
        return installed
    # The project file proves the checkout: site-packages/migrations would be somebody else's.
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / "migrations"

    raise SchemaError("This installation of aiopgq holds no migrations. Reinstall it.")


def _read(folder: Traversable) -> Iterator[Migration]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        content = file.read_bytes()
        sql = content.decode()
        name = _FILE.fullmatch(file.name)
        header = _HEADER.match(sql)
        if name is None or header is None or name[1] != header["number"]:
            raise SchemaError(f"Migration file {file.name!r} lacks a proper name or header. Reinstall aiopgq.")
        number, oldest_code = int(name[1]), int(header["oldest_code"])
        if not 1 <= oldest_code <= number:
            raise SchemaError(f"Migration file {file.name!r} names impossible oldest code. Reinstall aiopgq.")

        yield Migration(
            number=number,
            name=name[2],
            sql=sql,
            checksum=hashlib.sha256(content).hexdigest(),
            phase="before" if header["phase"] == "before" else "after",
            oldest_code=oldest_code,
            effect=header["effect"],
        )


async def check_schema(line: Line) -> int:
    """Return the number of the schema's last migration if this version runs on it.

    Raises:
        SchemaMissing: It has no tables of ours.
        SchemaBehind: It needs to be migrated.
        SchemaAhead: A newer version has migrated it beyond what this one can run on.
        MigrationChanged: A migration was not applied as it is shipped here.
        StoreError: PostgreSQL could not be asked.
    """
    schema = line.settings.schema
    try:
        rows = await line.fetch("read the applied migrations", statement("applied_migrations", schema))
    except Undefined as error:
        raise SchemaMissing(schema) from error
    applied = [_Applied(*row) for row in rows]
    if not applied:
        raise SchemaMissing(schema)
    _compare(schema, applied)
    present = {row.number for row in applied}
    gap = next(number for number in range(1, len(present) + 2) if number not in present)
    if gap <= OLDEST_SCHEMA:
        raise SchemaBehind(schema, gap - 1, OLDEST_SCHEMA)

    return max(present)


def _compare(schema: str, applied: Sequence[_Applied]) -> None:
    """Compare what was applied with what is shipped.

    Raises:
        SchemaAhead: Unknown migrations rule this version out.
        MigrationChanged: A checksum differs.
    """
    shipped = {migration.number: migration for migration in migrations()}
    known = max(shipped)
    for row in applied:
        if row.number in shipped and shipped[row.number].checksum != row.checksum:
            raise MigrationChanged(schema, row.number, row.checksum, shipped[row.number].checksum)
    found = max((row.number for row in applied), default=0)
    if found <= known:
        return
    if any(row.oldest_code > known for row in applied if row.number > known):
        raise SchemaAhead(schema, found, known)
    logger.info("Schema %r is at migration %d; this version knows %d and can run on it.", schema, found, known)


async def pending(settings: ConnectSettings) -> tuple[Migration, ...]:
    """Return the migrations that `migrate` would apply, and change nothing.

    Raises:
        SchemaAhead: The schema is beyond what this version can run on.
        MigrationChanged: A migration was not applied as it is shipped here.
        StoreError: PostgreSQL could not be asked.
    """
    async with _connected(settings) as connection:
        return await _missing(connection, settings.schema)


async def migrate(settings: ConnectSettings) -> tuple[Migration, ...]:
    """Apply the migrations that are missing, and make the archive's partitions.

    Any number of processes may call it at once. If nothing is missing, the role of a producer suffices; the
    partitions are then left to the workers.

    Returns:
        The migrations this call applied.

    Raises:
        SchemaAhead: The schema is beyond what this version can run on.
        MigrationChanged: A migration was not applied as it is shipped here.
        StoreUnavailable: Other transactions held locks for too long, or the connection was lost; repeat it.
        StoreError: PostgreSQL said no.
    """
    done = []
    async with _connected(settings) as connection:
        for migration in await _missing(connection, settings.schema):
            if await _apply(connection, settings.schema, migration):
                done.append(migration)
                logger.info(
                    "Applied migration %d to schema %r: %s",
                    migration.number,
                    settings.schema,
                    migration.effect,
                )
        await _make_partitions(connection, settings.schema)

    return tuple(done)


def script(schema: str, after: int = 0) -> str:
    """Return what `migrate` does as a script for psql, for those who let nobody but themselves change tables.

    Run twice, it fails at the first version row and changes nothing.

    Args:
        schema: The schema of our tables.
        after: The last migration the schema already has.
    """
    parts = ["-- Run with: psql --set ON_ERROR_STOP=1 --file THIS", "SET client_encoding = 'UTF8';"]
    ground = [f"CREATE SCHEMA IF NOT EXISTS {quote(schema)};", _migrations_table(schema)]
    for migration in migrations():
        if migration.number > after:
            parts += [
                "BEGIN;",
                *_waits(schema),
                *(ground if migration.number == 1 else ()),
                _spelled("record_migration", schema, *_record(migration)),
                place_in(schema, migration.sql).strip(),
                "COMMIT;",
            ]
    parts += ["BEGIN;", *_waits(schema), _spelled("make_partitions", schema, PARTITION_DAYS), "COMMIT;"]

    return "\n\n".join(parts) + "\n"


def _waits(schema: str) -> list[str]:
    return [
        _spelled("limit_waits", schema, _TURN_WAIT),
        _spelled("lock_migrations", schema, schema),
        _spelled("limit_waits", schema, _DDL_WAIT),
    ]


def _spelled(name: str, schema: str, *values: int | str) -> str:
    """Return a statement with its parameters spelled out."""
    spelled = [str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'" for value in values]
    lines = statement(name, schema).splitlines()
    sql = "\n".join(line for line in lines if not line.startswith("--"))

    return _PARAMETER.sub(lambda token: spelled[int(token[1]) - 1] if token[1] else token[0], sql) + ";"


def _migrations_table(schema: str) -> str:
    file = files("aiopgq._store").joinpath("sql", "bootstrap", "migrations_table.sql")
    return place_in(schema, file.read_text(encoding="utf-8")).strip()


def _record(migration: Migration) -> tuple[int, str, str, int, str]:
    return migration.number, migration.name, migration.checksum, migration.oldest_code, version("aiopgq")


@asynccontextmanager
async def _connected(settings: ConnectSettings) -> AsyncIterator[Any]:
    with translated("migrate", settings.schema):
        # Each statement is sent once; prepared, a pooler would lose it between our transactions.
        connection = await replace(settings, statement_cache_size=0).open("migrate")
        try:
            yield connection
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await connection.close()
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()


async def _missing(connection: Any, schema: str) -> tuple[Migration, ...]:
    applied = await _applied(connection, schema)
    _compare(schema, applied)
    present = {row.number for row in applied}

    return tuple(migration for migration in migrations() if migration.number not in present)


async def _applied(connection: Any, schema: str) -> list[_Applied]:
    state = await connection.fetchrow(statement("schema_state", schema), schema)
    if not state["has_table"]:
        return []

    return [_Applied(*row) for row in await connection.fetch(statement("applied_migrations", schema))]


async def _apply(connection: Any, schema: str, migration: Migration) -> bool:
    """Apply one migration, unless somebody else has done so meanwhile."""
    for tries_left in reversed(range(_DDL_TRIES)):
        try:
            async with _turn(connection, schema):
                if migration not in await _missing(connection, schema):
                    return False
                await _lay_ground(connection, schema)
                await connection.fetch(statement("limit_waits", schema), _DDL_WAIT)
                await connection.fetch(statement("record_migration", schema), *_record(migration))
                await connection.execute(place_in(schema, migration.sql))
                return True
        except _MET_OTHERS:
            if not tries_left:
                raise
        await asyncio.sleep(random.uniform(0, _PAUSE))  # noqa: S311  # jitter, not a secret

    return False


@asynccontextmanager
async def _turn(connection: Any, schema: str) -> AsyncIterator[None]:
    """Begin a transaction and wait for our turn to change the schema."""
    # What others committed while we waited must be seen, whatever isolation the role prefers.
    async with connection.transaction(isolation="read_committed"):
        await connection.fetch(statement("limit_waits", schema), _TURN_WAIT)
        await connection.fetch(statement("lock_migrations", schema), schema)
        yield


async def _lay_ground(connection: Any, schema: str) -> None:
    # CREATE … IF NOT EXISTS asks for the privilege even if there is nothing to create.
    state = await connection.fetchrow(statement("schema_state", schema), schema)
    if not state["has_schema"]:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
    if not state["has_table"]:
        await connection.execute(_migrations_table(schema))


async def _make_partitions(connection: Any, schema: str) -> None:
    for tries_left in reversed(range(_PARTITION_TRIES)):
        try:
            async with _turn(connection, schema):
                # The function itself waits for locks even more briefly.
                await connection.fetch(statement("make_partitions", schema), PARTITION_DAYS)
                return
        except asyncpg.InsufficientPrivilegeError:
            logger.debug("The partitions of schema %r are left to the workers: this role may not make them.", schema)
            return
        except _MET_OTHERS:
            if not tries_left:
                raise
        await asyncio.sleep(random.uniform(0, _PAUSE))  # noqa: S311  # jitter, not a secret
