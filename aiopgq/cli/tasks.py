"""`tasks`: list, pause and resume."""

import inspect
from typing import Any

import click

from aiopgq._words.task import TaskDefinition, where_defined
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.tell import note, table, tell, tell_json
from aiopgq.inspector import Inspector

__all__ = ["tasks"]


@click.group(cls=Group)
def tasks() -> None:
    """Look at the tasks of the App, pause or resume them."""


@tasks.command("list", epilog="Example:\n  python -m aiopgq tasks list -A myapp.queue")
@as_json
@reaching
def list_(reach: Reach, *, as_json: bool) -> None:
    """List the tasks the App knows, with what their jobs are told unless told otherwise."""
    reach.need("tasks list")
    found = [definition for _, definition in sorted(reach.app(tasks=True).tasks.items())]
    if as_json:
        tell_json([_facts(definition) for definition in found])
        return
    table(
        ("TASK", "QUEUE", "PRIORITY", "ATTEMPTS", "TIMEOUT", "RUNS IN", "PARAMETERS"),
        [
            (
                definition.name,
                definition.queue,
                definition.priority,
                definition.max_attempts,
                "none" if definition.timeout is None else f"{definition.timeout:g} s",
                "thread" if definition.threaded else "loop",
                _parameters(definition),
            )
            for definition in found
        ],
    )


@tasks.command("pause", epilog="Example:\n  python -m aiopgq tasks pause mail.send")
@click.argument("task")
@reaching
def pause(reach: Reach, *, task: str) -> None:
    """Let no further job of a task begin, on any worker, until it is resumed; running ones go on."""

    async def work(inspector: Inspector) -> tuple[bool, bool]:
        changed = await inspector.pause(task=task)
        known = any(task in worker.tasks for worker in await inspector.workers(ended=True))
        return changed, known or any(task == count.task for count in await inspector.counts())

    changed, known = reach.inspect(work)
    tell(f"Task {task} is paused." if changed else f"Task {task} was paused already.")
    if not known:
        note("It has no unfinished jobs and no worker knows it: is that its full name, as of `tasks list`?")


@tasks.command("resume", epilog="Example:\n  python -m aiopgq tasks resume mail.send")
@click.argument("task")
@reaching
def resume(reach: Reach, *, task: str) -> None:
    """End the pause of a task."""

    async def work(inspector: Inspector) -> bool:
        return await inspector.resume(task=task)

    tell(f"Task {task} goes on." if reach.inspect(work) else f"Task {task} was not paused.")


def _facts(definition: TaskDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "aliases": definition.aliases,
        "queue": definition.queue,
        "priority": definition.priority,
        "max_attempts": definition.max_attempts,
        "timeout": definition.timeout,
        "threaded": definition.threaded,
        "parameters": _parameters(definition),
        "defined": where_defined(definition.function),
    }


def _parameters(definition: TaskDefinition) -> str:
    signature = inspect.signature(definition.function)
    return str(signature.replace(return_annotation=inspect.Signature.empty))[1:-1]
