"""The command: `python -m aiopgq demo`."""

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, NoReturn

import click
from click.core import ParameterSource

from aiopgq import App
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.dsn import EMBEDDED, masked, normal
from aiopgq._store.statements import DEFAULT_SCHEMA
from aiopgq.cli.demo.facts import facts
from aiopgq.cli.demo.ground import Ending, folder_of, logging_to, server_in
from aiopgq.cli.demo.screen import Screen, open_screen
from aiopgq.cli.demo.shop import shop
from aiopgq.cli.demo.story import Story
from aiopgq.cli.premises import own_schema
from aiopgq.cli.shape import Command
from aiopgq.errors import AiopgqError, ConfigError

__all__ = ["demo"]

_SCHEMA: Final = "aiopgq_demo"
_LOG: Final = "demo.log"
_SLOTS: Final = 20
_POLL_INTERVAL: Final = 5.0
_LONGEST: Final = 120.0
_ADVICE: Final = (
    "python -m aiopgq demo --keep ./shop    the same, and the database stays, to look around in",
    "python -m aiopgq --help                what else there is",
)


@click.command(
    cls=Command,
    short_help="Watch a few hundred jobs of all kinds, on a PostgreSQL of their own.",
    epilog="Example:\n  python -m aiopgq demo --keep ./shop",
)
@click.option("--keep", metavar="FOLDER", type=Path, help="Keep the database in this new folder, to look around in.")
@click.option("--dsn", metavar="DSN", help=f"Run on your server, in the schema {_SCHEMA}, which is dropped afterwards.")
def demo(keep: Path | None, dsn: str | None) -> None:
    """Watch a few hundred jobs of all kinds live and end, in about ten seconds.

    They run on an embedded PostgreSQL in a temporary folder. Everything shown is read from the database.
    """
    dsn = dsn or _typed_before()
    if keep is not None and dsn is not None:
        raise click.UsageError("--keep is about the embedded server; with --dsn there is none.")
    ending = Ending()
    try:
        with ending.watching():
            good = _on_server(dsn, ending) if dsn is not None else _embedded(keep, ending)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("\nStopped; nothing is left running.", err=True)
        _exit(128 + (ending.signal or 0))
    except AiopgqError:
        raise  # some are timeouts too
    except TimeoutError:
        click.echo(f"The story did not come to its end within {_LONGEST:g} s.", err=True)
        _exit(1)
    if not good:
        click.echo("\nNot all is as it should be. Please report it.", err=True)
        _exit(1)


def _exit(code: int) -> NoReturn:
    raise click.exceptions.Exit(code)


def _typed_before() -> str | None:
    """Return the DSN of `python -m aiopgq --dsn URL demo`; the environment speaks of a database in earnest."""
    root = click.get_current_context().find_root()
    typed: str | None = root.params["dsn"]

    return typed if root.get_parameter_source("dsn") is ParameterSource.COMMANDLINE else None


def _embedded(keep: Path | None, ending: Ending) -> bool:
    screen = open_screen()
    with folder_of(keep) as folder:
        with ExitStack() as stack:
            with screen.waiting(f"Starting a PostgreSQL in {folder}"):
                try:
                    server = stack.enter_context(server_in(folder))
                except ConfigError as error:
                    reason = error.reason.removesuffix(".")
                    raise ConfigError(error.setting, f"{reason}. Or give a server of yours: --dsn URL.") from error
            stack.enter_context(logging_to(folder / _LOG))
            good = ending.run(_tell(ConnectSettings(server.dsn, DEFAULT_SCHEMA), f"in {folder}", screen))
        screen.advise("Try next:", _ADVICE if keep is None else _advice_on(folder))

    return good


def _on_server(dsn: str, ending: Ending) -> bool:
    screen = open_screen()
    settings = ConnectSettings(_server_of(dsn), _SCHEMA)

    async def tell() -> bool:
        async with own_schema(settings, "demo"):
            return await _tell(settings, f"at {masked(dsn)}", screen)

    with folder_of(None) as folder, logging_to(folder / _LOG):
        good = ending.run(tell())
    screen.advise("Try next:", _ADVICE)

    return good


def _server_of(dsn: str) -> str:
    if dsn.startswith(EMBEDDED):
        raise ConfigError("--dsn", "takes the URL of a server; for an embedded one see --keep.")

    return normal(dsn)


async def _tell(settings: ConnectSettings, where: str, screen: Screen) -> bool:
    """Run the story and what happened past the screen; return whether all is as it should be."""
    jobs: App[None] = App(settings.dsn, schema=settings.schema, listen_dsn=settings.dsn)
    jobs.include(shop)
    line = Line(settings, "demo")
    worker = jobs.worker(concurrency=_SLOTS, poll_interval=_POLL_INTERVAL, job_log=False)
    async with asyncio.timeout(_LONGEST), AsyncExitStack() as stack:
        stack.push_async_callback(line.close)
        await jobs.migrate()
        [[version]] = await line.fetch("ask for its version", "SHOW server_version")
        await stack.enter_async_context(jobs)
        await stack.enter_async_context(worker)
        story = Story(jobs, line, screen)
        title = f"aiopgq demo: a worker with {_SLOTS} slots, PostgreSQL {version.split()[0]} {where}"
        try:
            with screen.live(title):
                picture = await story.tell()
        except BaseException:
            # Nobody wants to wait for the end of a video now.
            worker.stop(now=True)
            raise
    happened = facts(picture, story.notes, _POLL_INTERVAL)
    screen.conclude(picture, happened)

    return all(fact.good for fact in happened)


def _advice_on(folder: Path) -> Sequence[str]:
    playground = "-A aiopgq.cli.demo.playground"
    return [
        f"export AIOPGQ_DSN={shlex.quote(f'{EMBEDDED}{folder}')}",
        "python -m aiopgq dead list",
        f'python -m aiopgq enqueue {playground} send_mail \'{{"to": "you@example.com"}}\'',
        f"python -m aiopgq run {playground} --burst",
        f"less {shlex.quote(str(folder / _LOG))}",
    ]
