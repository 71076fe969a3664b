"""`workers`: list, drain."""

from collections.abc import Sequence

import click

from aiopgq._words.workers import WorkerInfo
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.tell import age, note, number, table, tell, tell_json
from aiopgq.inspector import Inspector

__all__ = ["workers"]


@click.group(cls=Group)
def workers() -> None:
    """Look at workers, drain them."""


@workers.command("list", epilog="Example:\n  python -m aiopgq workers list")
@click.option("--all", "ended", is_flag=True, help="Those that ended in the last hours as well.")
@as_json
@reaching
def list_(reach: Reach, *, ended: bool, as_json: bool) -> None:
    """List workers, the youngest first; each start of a process is one."""

    async def look(inspector: Inspector) -> list[WorkerInfo]:
        return await inspector.workers(ended=ended)

    found = reach.inspect(look)
    if as_json:
        tell_json(found)
        return
    table(
        ("ID", "NAME", "HOST", "PID", "STATUS", "JOBS", "QUEUES", "AGE", "LAST BEAT"),
        [
            (
                one.id,
                one.name,
                one.host,
                one.pid or "",
                one.status,
                f"{one.jobs}/{one.concurrency}",
                ", ".join(one.queues),
                age(one.started_at),
                age(one.heartbeat_at),
            )
            for one in found
        ],
    )
    if not found:
        note("No worker is there.")


@workers.command("drain", epilog="Example:\n  python -m aiopgq workers drain web-3")
@click.argument("names", metavar="NAME|ID...", nargs=-1, required=True)
@reaching
def drain(reach: Reach, *, names: Sequence[str]) -> None:
    """Ask workers to claim no more, finish what runs, and end.

    A name means all workers that have it. What runs may take the time it needs; a signal to the process cuts it short.
    Under `run`, no other process is started in place of one that was drained.
    """

    async def work(inspector: Inspector) -> tuple[list[WorkerInfo], list[str]]:
        living = await inspector.workers()
        chosen = [one for one in living if {one.name, str(one.id)} & set(names)]
        missing = [name for name in names if not any(name in (one.name, str(one.id)) for one in chosen)]
        asked = set(await inspector.drain_workers([one.id for one in chosen]))
        return [one for one in chosen if one.id in asked], missing

    drained, missing = reach.inspect(work)
    jobs = sum(one.jobs for one in drained)
    tell(
        f"{number(len(drained), 'worker drains', 'workers drain')}, with {number(jobs, 'job')} to finish: "
        f"{', '.join(_called(one) for one in drained) or 'none'}."
    )
    for name in missing:
        note(f"There is no worker {name}; see `workers list`.")
    if missing:
        click.get_current_context().exit(1)


def _called(one: WorkerInfo) -> str:
    return f"{one.name} ({one.id})"
