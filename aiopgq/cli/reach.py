"""What a command works on: the App and its database.

`-A`, `--dsn` and `--schema` may stand before the command or after it. For the database the order is: option,
constructor of the App, AIOPGQ_DSN or AIOPGQ_SCHEMA, pyproject.toml, default. The App itself asks the environment, so
only what was typed replaces what its constructor says, and pyproject.toml stands in for a variable that is not set.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, TypeVar

import anyio
import click
from click.core import ParameterSource

from aiopgq.app import App
from aiopgq.cli.target import load
from aiopgq.inspector import Inspector

__all__ = ["Reach", "reaching"]

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reach:
    """What the options say.

    Attributes:
        target: The App as `module` or `module:attr`, None if none was named.
        dsn: A DSN that replaces the one of the App.
        schema: A schema that replaces the one of the App.
    """

    target: str | None
    dsn: str | None
    schema: str | None

    def need(self, command: str) -> str:
        """Return the target.

        Raises:
            UsageError: None was named.
        """
        if self.target is None:
            raise click.UsageError(
                f"{command} needs the App: -A module[:attr], AIOPGQ_APP, or `app` in [tool.aiopgq] of pyproject.toml"
            )

        return self.target

    def app(self, *, tasks: bool = False) -> App[Any]:
        """Return the App named, or one that knows nothing but the database.

        Args:
            tasks: Import the modules that declare its tasks.
        """
        app: App[Any] = App() if self.target is None else load(self.target, tasks=tasks)
        app.override(dsn=self.dsn, schema=self.schema)

        return app

    def inspect(self, work: Callable[[Inspector], Awaitable[_Result]]) -> _Result:
        """Open the App and run a coroutine function on its inspector."""
        return self.open(lambda app: work(app.inspector))

    def open(self, work: Callable[[App[Any]], Awaitable[_Result]]) -> _Result:
        """Open the App and run a coroutine function on it."""
        return anyio.run(partial(_opened, self.app(), work))


async def _opened(app: App[Any], work: Callable[[App[Any]], Awaitable[_Result]]) -> _Result:
    async with app:
        return await work(app)


def reaching(function: _Function) -> _Function:
    """Give a command the options `-A`, `--dsn` and `--schema`, and its function a `reach`."""

    def reached(*args: Any, app: str | None, dsn: str | None, schema: str | None, **rest: Any) -> Any:
        root = click.get_current_context().find_root()
        reach = Reach(app or root.params["app"], dsn or _said(root, "dsn"), schema or _said(root, "schema"))
        return function(*args, reach=reach, **rest)

    command: Any = update_wrapper(reached, function)
    for flags, metavar, text in (
        (("--schema",), "NAME", "The schema of the tables."),
        (("--dsn",), "URL", "The database."),
        (("-A", "--app"), "MODULE[:ATTR]", "The App."),
    ):
        command = click.option(*flags, metavar=metavar, help=text, allow_from_autoenv=False)(command)

    return command  # type: ignore[no-any-return]  # click marks functions and gives them back


def _said(root: click.Context, name: str) -> str | None:
    """Return what was typed before the command; what pyproject.toml says is where the App looks last."""
    value: str | None = root.params[name]
    source = root.get_parameter_source(name)
    variable = f"AIOPGQ_{name.upper()}"
    if value is not None and source is ParameterSource.DEFAULT_MAP and not os.environ.get(variable):
        os.environ[variable] = value

    return value if source is ParameterSource.COMMANDLINE else None
