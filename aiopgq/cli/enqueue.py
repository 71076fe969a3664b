"""`enqueue`."""

import inspect
from inspect import Parameter
from typing import Any

import anyio
import click
import msgspec

from aiopgq.app import App
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Command, duration
from aiopgq.cli.tell import note, tell, tell_json
from aiopgq.errors import ArgumentError

__all__ = ["enqueue"]


@click.command(
    cls=Command,
    epilog="""\
Example:
  python -m aiopgq enqueue -A myapp.queue mail.send '{"user_id": 42}' --delay 10m
""",
)
@click.argument("task")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--queue", metavar="NAME", help="The queue; default: the task's, without -A `default`.")
@click.option("--priority", type=int, help="Higher runs first; default: the task's, without -A 100.")
@click.option("--delay", type=duration, help="How long from now until it is due; 90s, 10m, 2h.")
@click.option("--wait", is_flag=True, help="Wait until it is done and write its result.")
@reaching
def enqueue(
    reach: Reach,
    *,
    task: str,
    arguments: str,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    wait: bool,
) -> None:
    """Enqueue a job and write its id.

    JSON is an object of the arguments, by parameter name. With -A the task checks them; without, nobody does.
    """
    app = reach.app(tasks=True)
    if reach.target is None:
        given = _given(task, arguments)
        # A task of that name that takes whatever comes.
        chosen = app.task(name=task)(_anything).options(queue=queue, priority=priority, delay=delay)
        call = chosen.call(**given)
        note("Not checked against the task, since no App was named (-A).")
    else:
        chosen = app.task_named(task).options(queue=queue, priority=priority, delay=delay)
        args, kwargs = _fitted(app, task, arguments)
        call = chosen.call(*args, **kwargs)

    async def work() -> None:
        async with app:
            [job] = await app.enqueue_many([call])
            tell(str(job.id))
            if wait:
                tell_json(await app.handle(job.id).result(timeout=None))

    anyio.run(work)


async def _anything(**_arguments: Any) -> Any: ...


def _given(task: str, text: str) -> dict[str, Any]:
    """Read the object of arguments.

    Raises:
        ArgumentError: It is none.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UnicodeEncodeError:
        raise ArgumentError(task, None, "the arguments are no UTF-8 text") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArgumentError(task, None, f'the arguments are no JSON object such as {{"n": 1}}: {error}') from None


def _fitted(app: App[Any], task: str, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read the arguments by the task's own types.

    Raises:
        ArgumentError: They do not fit.
    """
    definition = app.tasks[app.task_named(task).name]
    parameters = inspect.signature(definition.function).parameters
    given = _given(task, text)
    if not any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
        for name in given:
            if name not in parameters:
                takes = ", ".join(parameters) or "no parameters"
                raise ArgumentError(task, name, f"there is no such parameter; the task takes {takes}")

    return definition.codec.decode(text)
