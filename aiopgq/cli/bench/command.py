"""The command: `python -m aiopgq bench`."""

from typing import Any, Final

import anyio
import click

from aiopgq._store.connection import ConnectSettings
from aiopgq.app import App
from aiopgq.cli.bench.load import jobs
from aiopgq.cli.bench.measure import Figure, Size, measure
from aiopgq.cli.premises import own_schema
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Command, as_json
from aiopgq.cli.tell import note, tell, tell_json

__all__ = ["bench"]

_SCHEMA: Final = "aiopgq_bench"


@click.command(
    cls=Command,
    short_help="Measure drain, enqueue and latency on your database.",
    epilog="""\
Example:
  python -m aiopgq bench --dsn postgresql://localhost/mydb
  python -m aiopgq bench --processes 4 --concurrency 100 --jobs 200000
""",
)
@click.option("--jobs", "count", type=click.IntRange(1000), default=20_000, help="Jobs to drain.")
@click.option("--processes", type=click.IntRange(1), default=1, help="Worker processes that drain them.")
@click.option("--concurrency", type=click.IntRange(1), default=100, help="Slots of each process.")
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, help="How long each way to enqueue is tried.")
@click.option("--samples", type=click.IntRange(1), default=50, help="How often the latency is measured.")
@as_json
@reaching
def bench(reach: Reach, *, count: int, as_json: bool, **size: Any) -> None:
    """Measure how fast jobs are enqueued, drained and begun on your database.

    In a schema of its own, which is dropped afterwards; the jobs do nothing. The server has real work for some
    twenty seconds: not at noon on the one your customers use.
    """
    figures = anyio.run(_bench, reach.app(), Size(jobs=count, **size), not as_json)
    if as_json:
        tell_json([figure._asdict() for figure in figures])


async def _bench(app: App[Any], size: Size, told: bool) -> list[Figure]:
    database = await app.database_settings().resolve()
    try:
        if not database.connect.dsn:
            raise click.UsageError("bench starts processes of its own and needs a DSN: --dsn URL or AIOPGQ_DSN")
        settings = ConnectSettings(database.connect.dsn, _SCHEMA, database.connect.statement_cache_size)
        async with own_schema(settings, "bench"):
            jobs.override(dsn=settings.dsn, schema=settings.schema)
            await jobs.migrate()
            figures = []
            async for figure in measure(settings, size):
                figures.append(figure)
                if told:
                    tell(_line(figure))
    finally:
        database.release()
    note(f"The schema {_SCHEMA} is dropped again.")

    return figures


def _line(figure: Figure) -> str:
    number = f"{figure.number:,.{2 if figure.unit == 'ms' else 0}f}"
    return f"{figure.name:<22} {number:>10} {figure.unit:<7} {figure.how}".rstrip()
