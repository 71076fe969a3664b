"""`run`."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import click

from aiopgq._words.clock import uuid7
from aiopgq.cli.logs import LEVELS, configure
from aiopgq.cli.orders import Brief
from aiopgq.cli.parent import Parent
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Command, duration, queue_slots

__all__ = ["run"]


@click.command(
    cls=Command,
    epilog="""\
Example:
  python -m aiopgq run -A myapp.queue --concurrency 20 --queue mail:50 --processes 2

Signals: the first SIGINT or SIGTERM stops claiming and lets running jobs finish, the second cancels and
releases them, the third kills the worker processes.

Exit codes:
  0  stopped, or done with --burst, and nothing was left behind
  1  something was left behind: a handler that ignored its cancellation, an outcome not written,
     a worker process that died while stopping or with --burst
  2  wrong use: an option, the App, a setting
  3  the schema is missing, behind or ahead; see `migrate`
  4  PostgreSQL refused
""",
)
@click.option("--concurrency", type=click.IntRange(1), default=10, help="How many jobs a process runs at once.")
@click.option(
    "--queue",
    multiple=True,
    type=queue_slots,
    metavar="NAME[:SLOTS]",
    help="Serve this queue, with slots of its own or sharing --concurrency; repeat it. Default: all.",
)
@click.option("--processes", type=click.IntRange(1), default=1, help="How many worker processes.")
@click.option("--burst", is_flag=True, help="End when nothing is due.")
@click.option("--poll-interval", type=duration, default=5.0, help="How often to look without a notification.")
@click.option("--shutdown-grace", type=duration, default=30.0, help="How long running jobs may finish at the end.")
@click.option("--name", metavar="NAME", help="The worker's name; default: that of the host.")
@click.option("--job-log/--no-job-log", default=True, help="Log a line for each completed job.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="Default: info.")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Default: text.")
@click.option("--uvloop/--no-uvloop", default=None, help="Use uvloop; default: if it is installed.")
@reaching
def run(
    reach: Reach,
    *,
    concurrency: int,
    queue: Sequence[tuple[str, int | None]],
    processes: int,
    burst: bool,
    poll_interval: float,
    shutdown_grace: float,
    name: str | None,
    job_log: bool,
    log_level: str | None,
    log_format: str | None,
    uvloop: bool | None,
) -> None:
    """Run jobs until stopped."""
    target = reach.need("run")
    twice = [served for served, times in Counter(name for name, _ in queue).items() if times > 1]
    if twice:
        raise click.UsageError(f"--queue {twice[0]} was given twice")
    if uvloop and not find_spec("uvloop"):
        raise click.UsageError("uvloop is not installed; pip install 'aiopgq[uvloop]'")
    if os.name != "posix":
        raise click.ClickException("run needs pipes and signals of POSIX; embed the worker with `jobs.worker()`")
    configure(log_level, log_format)
    brief = Brief(
        parent=uuid7(),
        dsn=reach.dsn,
        schema=reach.schema,
        queues=dict(queue),
        concurrency=concurrency,
        name=name,
        burst=burst,
        poll_interval=poll_interval,
        shutdown_grace=shutdown_grace,
        job_log=job_log,
        log_level=log_level,
        log_format=log_format,
        uvloop=find_spec("uvloop") is not None if uvloop is None else uvloop,
    )
    parent = Parent(target, brief, processes)
    code = parent.run()
    logging.shutdown()
    if parent.trouble:
        click.echo(parent.trouble, err=True)
    click.get_current_context().exit(code)
