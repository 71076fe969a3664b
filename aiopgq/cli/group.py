"""The group of all commands: where settings come from, and what becomes of errors.

An option comes from the command line, else from an AIOPGQ_… variable, else from [tool.aiopgq] in the pyproject.toml
of the current folder. Where the database is (`--dsn`, `--schema`), the constructor of the App has a say as well; see
`reach.py`.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from aiopgq.cli.plain import one_line
from aiopgq.cli.shape import Group
from aiopgq.errors import AiopgqError

__all__ = ["cli"]

_COMMANDS: Final = (
    "run",
    "migrate",
    "demo",
    "bench",
    "enqueue",
    "jobs",
    "dead",
    "queues",
    "schedules",
    "workers",
    "inbox",
    "outbox",
    "tasks",
    "version",
)
_SETTINGS: Final = "pyproject.toml"
# Where the database is belongs to all commands, and that something is deleted is said each time.
_NOT_FOR_ONE: Final = {"app", "dsn", "schema", "yes", "everything"}


class _Cli(Group):
    """Loads a command when it is called; reads pyproject.toml."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order a newcomer meets them."""
        del ctx
        return [name for name in _COMMANDS if find_spec(f"aiopgq.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"aiopgq.cli.{cmd_name}"), cmd_name)

        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Let pyproject.toml give what neither the command line nor the environment does."""
        extra.setdefault("default_map", _settings(Path(_SETTINGS)))
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and look at its section of pyproject.toml."""
        name, command, rest = super().resolve_command(ctx, args)
        _check(ctx.default_map or {}, "tool.aiopgq", {*_COMMANDS, *(str(one.name) for one in self.params)})
        if name is not None and command is not None:
            _check_command(command, (ctx.default_map or {}).get(name, {}), f"tool.aiopgq.{name}")

        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Turn errors of ours into a line and an exit code."""
        try:
            return super().invoke(ctx)
        except AiopgqError as error:
            # The traceback of an error in the user's module, if there is one.
            click.echo(f"{getattr(error, 'traceback', '')}Error: {one_line(error)}", err=True)
            return ctx.exit(error.exit_code)


def _settings(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    if "tool" not in text or "aiopgq" not in text:
        return {}
    import tomllib  # noqa: PLC0415  # few folders have settings for us, and every command would wait for it

    try:
        found = tomllib.loads(text).get("tool", {}).get("aiopgq", {})
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{file} cannot be read: {error}") from None

    return _spelled(found) if isinstance(found, dict) else {}


def _spelled(section: Mapping[str, Any]) -> dict[str, Any]:
    """Take `shutdown-grace` for `shutdown_grace`."""
    return {
        key.replace("-", "_"): _spelled(value) if isinstance(value, dict) else value for key, value in section.items()
    }


def _check_command(command: click.Command, section: Any, title: str) -> None:
    if isinstance(command, click.Group) and isinstance(section, dict):
        _check(section, title, command.commands)
        for name, inner in command.commands.items():
            _check_command(inner, section.get(name, {}), f"{title}.{name}")
    elif not isinstance(section, dict):
        raise click.UsageError(f"{_SETTINGS}, [{title}]: is a section, not a value")
    else:
        options = {str(one.name) for one in command.params if isinstance(one, click.Option)}
        _check(section, title, options - _NOT_FOR_ONE)


def _check(section: Mapping[str, Any], title: str, known: Any) -> None:
    for key in section:
        if key not in known:
            raise click.UsageError(
                f"{_SETTINGS}, [{title}]: there is no setting {key!r}; known are {', '.join(sorted(known))}"
            )


@click.group(
    cls=_Cli,
    context_settings={
        "auto_envvar_prefix": "AIOPGQ",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog="""\
Example:
  python -m aiopgq migrate --dsn postgresql://localhost/mydb
  python -m aiopgq run -A myapp.queue --concurrency 20

Every option can also be set by a variable (AIOPGQ_APP, AIOPGQ_DSN, AIOPGQ_RUN_CONCURRENCY, …)
or in pyproject.toml ([tool.aiopgq] app = "…", [tool.aiopgq.run] concurrency = 20).

Exit codes: 0 done, 1 failed, 2 wrong use, 3 the schema does not fit, 4 PostgreSQL refused or did not answer.
""",
)
@click.option("-A", "--app", metavar="MODULE[:ATTR]", help="The App: the module that holds it, and its name there.")
@click.option("--dsn", metavar="URL", help="The database; wins over what the App says.")
@click.option("--schema", metavar="NAME", help="The schema of the tables; wins over what the App says.")
def cli(app: str | None, dsn: str | None, schema: str | None) -> None:
    """PostgreSQL as the job queue of asyncio Python."""
    del app, dsn, schema  # reach.py reads them from the context
