"""`version`."""

import platform
from importlib.metadata import version as version_of

import click
import msgspec

from aiopgq.cli.shape import Command, as_json

__all__ = ["version"]


@click.command(cls=Command, epilog="Example:\n  python -m aiopgq version --json")
@as_json
def version(*, as_json: bool) -> None:
    """Print the version."""
    found = {name: version_of(name) for name in ("aiopgq", "asyncpg", "anyio")} | {"python": platform.python_version()}
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        click.echo(", ".join(f"{name} {number}" for name, number in found.items()))
