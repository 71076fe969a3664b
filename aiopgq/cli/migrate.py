"""`migrate`."""

from collections.abc import Sequence
from typing import Any

import anyio
import click

from aiopgq._store.schema import Migration, migrations, pending, script
from aiopgq.app import App
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Command, as_json
from aiopgq.cli.tell import note, number, table, tell, tell_json

__all__ = ["migrate"]


@click.command(
    cls=Command,
    epilog="""\
Example:
  python -m aiopgq migrate --dsn postgresql://localhost/mydb
  python -m aiopgq migrate --sql --after 0 | psql --set ON_ERROR_STOP=1 mydb
""",
)
@click.option("--plan", is_flag=True, help="List what would be applied, change nothing.")
@click.option("--sql", is_flag=True, help="Write what would be applied as a script for psql, change nothing.")
@click.option(
    "--after", type=click.IntRange(0), metavar="N", help="With --sql: the schema is at N; default: ask the database."
)
@as_json
@reaching
def migrate(reach: Reach, *, plan: bool, sql: bool, after: int | None, as_json: bool) -> None:
    """Bring the schema up to date.

    Any number of processes may do so at once; if all is current, nothing is changed.
    """
    if plan and sql:
        raise click.UsageError("--plan and --sql exclude each other")
    if after is not None and not sql:
        raise click.UsageError("--after goes with --sql")
    app = reach.app()
    if sql:
        tell(script(app.schema, anyio.run(_reached, app) if after is None else after).rstrip("\n"))
        return

    found: Sequence[Migration] = anyio.run(_pending, app) if plan else anyio.run(app.migrate)
    if as_json:
        tell_json([{"number": one.number, "name": one.name, "phase": one.phase, "effect": one.effect} for one in found])
    else:
        table(("NUMBER", "PHASE", "EFFECT"), [(one.number, one.phase, one.effect) for one in found], widest=200)
    note(f"Schema {app.schema!r}: {number(len(found), 'migration')} {'to apply' if plan else 'applied'}.")


async def _pending(app: App[Any]) -> Sequence[Migration]:
    database = await app.database_settings().resolve()
    try:
        return await pending(database.connect)
    finally:
        database.release()


async def _reached(app: App[Any]) -> int:
    """Return the last migration that needs not be applied."""
    return min((one.number for one in await _pending(app)), default=len(migrations()) + 1) - 1
