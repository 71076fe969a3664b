"""`queues`: list, pause and resume."""

from dataclasses import asdict

import click

from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.tell import age, note, table, tell, tell_json
from aiopgq.inspector import Inspector, QueueInfo

__all__ = ["queues"]


@click.group(cls=Group)
def queues() -> None:
    """Look at queues, pause or resume them."""


@queues.command("list", epilog="Example:\n  python -m aiopgq queues list")
@as_json
@reaching
def list_(reach: Reach, *, as_json: bool) -> None:
    """List the queues that have jobs, are served, are paused or have a limit."""

    async def look(inspector: Inspector) -> tuple[list[QueueInfo], list[str]]:
        return await inspector.queues(), sorted(await inspector.paused_tasks())

    found, paused = reach.inspect(look)
    if as_json:
        tell_json([asdict(one) for one in found])
        return
    table(
        ("QUEUE", "STATE", "READY", "WAITING", "HELD", "RUNNING", "WORKERS", "LIMIT"),
        [
            (one.queue, _state(one), one.ready, one.waiting, one.held, one.running, one.workers, _limit(one))
            for one in found
        ],
    )
    if not found:
        note("There is no queue yet.")
    if paused:
        note(f"Paused tasks: {', '.join(paused)}")


@queues.command("pause", epilog="Example:\n  python -m aiopgq queues pause mail")
@click.argument("queue")
@reaching
def pause(reach: Reach, *, queue: str) -> None:
    """Let no further job of a queue begin, on any worker, until it is resumed; running ones go on."""

    async def work(inspector: Inspector) -> tuple[bool, bool]:
        changed = await inspector.pause(queue=queue)
        [one] = [one for one in await inspector.queues() if one.queue == queue]
        return changed, bool(one.workers or one.ready or one.waiting or one.held or one.running)

    changed, known = reach.inspect(work)
    tell(f"Queue {queue} is paused." if changed else f"Queue {queue} was paused already.")
    if not known:
        note("It has no jobs and no worker serves it: is that its name?")


@queues.command("resume", epilog="Example:\n  python -m aiopgq queues resume mail")
@click.argument("queue")
@reaching
def resume(reach: Reach, *, queue: str) -> None:
    """End the pause of a queue."""

    async def work(inspector: Inspector) -> bool:
        return await inspector.resume(queue=queue)

    tell(f"Queue {queue} goes on." if reach.inspect(work) else f"Queue {queue} was not paused.")


def _state(one: QueueInfo) -> str:
    return "open" if one.paused_at is None else f"paused {age(one.paused_at)}"


def _limit(one: QueueInfo) -> str:
    running = [] if one.most_running is None else [f"{one.most_running} running"]
    rate = [] if one.rate is None else [f"{one.rate} in {one.per:g} s"]

    return ", ".join(running + rate)
