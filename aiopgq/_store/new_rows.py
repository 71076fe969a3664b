"""New jobs on their way into the database: as the parameters of a statement, and what it answers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from aiopgq._store.foreign import fetch_foreign
from aiopgq._store.statements import statement
from aiopgq._words.job import NewJob
from aiopgq._words.unique import Standing
from aiopgq.errors import UniqueKeyHeld

__all__ = ["count_ready_foreign", "enqueue_foreign", "given", "inserted", "insertion", "keyed_columns", "standings"]

_TYPES: Final = (
    "uuid[]",
    "text[]",
    "text[]",
    "text[]",
    "smallint[]",
    "float8[]",
    "timestamptz[]",
    "integer[]",
    "float8[]",
    "text[]",
)
_RESTRAINED_TYPES: Final = (*_TYPES, "text[]", "text[]", "boolean[]")
_KEYED_TYPES: Final = (*_RESTRAINED_TYPES, "text[]", "text[]", "float8[]", "float8[]", "boolean")


class _Writer(msgspec.Struct):
    """Who has written a key, as far as PostgreSQL tells."""

    pid: int | None = None
    application_name: str | None = None
    since: datetime | None = None


async def enqueue_foreign(connection: Any, schema: str, jobs: Sequence[NewJob], *, once: bool) -> list[Standing]:
    """Insert jobs in the caller's transaction, on his connection. Returns the job that stands for each.

    Raises:
        UniqueKeyHeld: Another transaction has written a key and does not end; the caller's can go on.
    """
    if any(job.unique is not None for job in jobs):
        sql = statement("enqueue_unique", schema)
        return standings(jobs, await fetch_foreign(connection, sql, _KEYED_TYPES, keyed_columns(jobs, once=once)))
    name, types, columns = insertion(jobs, once=once)

    return inserted(jobs, name, await fetch_foreign(connection, statement(name, schema), types, columns))


async def count_ready_foreign(connection: Any, schema: str, queue: str, limit: int) -> int:
    """Count the jobs of a queue that are in line, up to a limit, on the caller's connection."""
    [row] = await fetch_foreign(connection, statement("count_ready", schema), ("text", "integer"), [queue, limit])
    return int(row[0])


def insertion(jobs: Sequence[NewJob], *, once: bool) -> tuple[str, tuple[str, ...], list[list[Any] | None]]:
    """Return the name of the statement that inserts jobs without unique keys, and its parameters with their types."""
    limits, orders, blocks = _restraints(jobs)
    if limits is None and orders is None:
        return "enqueue_once" if once else "enqueue", _TYPES, _columns(jobs)

    return "enqueue_restrained", _RESTRAINED_TYPES, [*_columns(jobs), limits, orders, blocks]


def inserted(jobs: Sequence[NewJob], name: str, rows: Sequence[Any]) -> list[Standing]:
    """Read the answer of such a statement: the job that stands for each."""
    if name == "enqueue":
        # One that is known already would have been refused, and all with it.
        return [Standing(job.id, "new") for job in jobs]
    # A caller's connection may have a codec of its own for uuid.
    new = {UUID(str(row[0])) for row in rows}

    return [Standing(job.id, "new" if job.id in new else "known") for job in jobs]


def keyed_columns(jobs: Sequence[NewJob], *, once: bool) -> list[Any]:
    """Turn jobs into the parameters of `enqueue_unique`."""
    keys = [job.unique for job in jobs]
    return [
        *_columns(jobs),
        *_restraints(jobs),
        [key and key.key for key in keys],
        [key and key.on_conflict for key in keys],
        [key and key.period for key in keys],
        [key and key.max_delay for key in keys],
        once,
    ]


def standings(jobs: Sequence[NewJob], rows: Sequence[Any]) -> list[Standing]:
    """Read the answer of `enqueue_unique`.

    Raises:
        UniqueKeyHeld: Another transaction has written a key and does not end; nothing was written.
    """
    found: list[Standing | None] = [None] * len(jobs)
    for number, job_id, verdict, writer in rows:
        job = jobs[number - 1]
        if verdict == "busy":
            who = msgspec.json.decode(writer, type=_Writer)
            key = "" if job.unique is None else job.unique.key
            raise UniqueKeyHeld(job.task, key, who.pid, who.application_name, who.since)
        found[number - 1] = Standing(UUID(str(job_id)), verdict)

    return cast("list[Standing]", found)


def _restraints(jobs: Sequence[NewJob]) -> tuple[list[Any] | None, list[Any] | None, list[Any] | None]:
    """Return the limit keys, the order keys and what a dead letter does to those behind it."""
    return (
        given([job.limit_key for job in jobs]),
        given([job.order_key for job in jobs]),
        given([job.order_blocks if job.order_key is not None else None for job in jobs]),
    )


def _columns(jobs: Sequence[NewJob]) -> list[list[Any] | None]:
    """Turn jobs into the first ten parameters of the statements that insert them."""
    return [
        [job.id for job in jobs],
        _shared([job.queue for job in jobs]),
        _shared([job.task for job in jobs]),
        [job.args for job in jobs],
        _shared([job.priority for job in jobs]),
        given([job.delay for job in jobs]),
        given([job.run_at for job in jobs]),
        _shared([job.max_attempts for job in jobs]),
        given([job.timeout for job in jobs]),
        given([job.headers for job in jobs]),
    ]


def _shared(column: list[Any]) -> list[Any]:
    """Say what all jobs share once: encoding a value costs more than making it did."""
    return column[:1] if column.count(column[0]) == len(column) else column


def given(column: list[Any]) -> list[Any] | None:
    """Leave out a column without values: unnest fills it up with NULL."""
    return column if column.count(None) < len(column) else None
