"""`inbox`: which messages consumers have received, and pruning them."""

import click

from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json, duration
from aiopgq.cli.tell import note, number, table, tell, tell_json
from aiopgq.inspector import Inspector, Received

__all__ = ["inbox"]


@click.group(cls=Group)
def inbox() -> None:
    """Look at the messages that were received, or prune them."""


@inbox.command("status", epilog="Example:\n  python -m aiopgq inbox status")
@as_json
@reaching
def status(reach: Reach, *, as_json: bool) -> None:
    """Count the messages of each consumer. Reads the whole inbox."""

    async def look(inspector: Inspector) -> list[Received]:
        return await inspector.inbox()

    found = reach.inspect(look)
    if as_json:
        tell_json([one._asdict() for one in found])
        return
    table(("CONSUMER", "MESSAGES", "OLDEST", "NEWEST"), found)
    if not found:
        note("No message was received.")


@inbox.command("prune", epilog="Example:\n  python -m aiopgq inbox prune --window 3d")
@click.option(
    "--window", type=duration, metavar="DURATION", help="How long a message is known: 12h, 7d; default: the App's, 7d."
)
@reaching
def prune(reach: Reach, *, window: float | None) -> None:
    """Delete the messages received before the window; workers do it hourly.

    A message that the broker delivers again after that is taken for a new one.
    """
    known_for = reach.app().inbox_window if window is None else window

    async def work(inspector: Inspector) -> int:
        return await inspector.prune_inbox(known_for)

    tell(f"{number(reach.inspect(work), 'message')} deleted.")
