"""The inbox in the database: on the caller's connection for who receives, on a line of ours for who looks after it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.foreign import fetch_foreign
from aiopgq._store.statements import statement

__all__ = ["Inbox", "Received", "Reception", "forget_foreign", "receive_foreign"]

_BATCH: Final = 5_000
_BEFORE_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Received(NamedTuple):
    """What one consumer has received, as far as it is kept.

    Attributes:
        consumer: Its name.
        messages: How many.
        oldest: When the oldest was received.
        newest: When the newest was.
    """

    consumer: str
    messages: int
    oldest: datetime
    newest: datetime


class Reception(NamedTuple):
    """Whether a message is received for the first time; None: another transaction holds it, with one of these pids."""

    first: bool | None
    held_by: Sequence[int]


async def receive_foreign(
    connection: Any, schema: str, consumer: str, message_id: str, seconds: float | None
) -> Reception:
    """Record a message on the caller's connection."""
    sql = statement("receive_message", schema)
    [row] = await fetch_foreign(connection, sql, ("text", "text", "float8"), [consumer, message_id, seconds])

    return Reception(row[0], row[1] or ())


async def forget_foreign(connection: Any, schema: str, consumer: str, message_id: str) -> None:
    """Take back, on the caller's connection, that a message was received."""
    await fetch_foreign(connection, statement("forget_message", schema), ("text", "text"), [consumer, message_id])


class Inbox:
    """The statements about all messages, on one line or several."""

    def __init__(self, line: Fetcher) -> None:
        self._line = line
        self._schema: str = line.settings.schema

    async def prune(self, window: float) -> int:
        """Delete what was received longer ago than the window, each batch in a transaction; return how many."""
        sql = statement("prune_inbox", self._schema)
        total, pruned, after = 0, _BATCH, _BEFORE_ALL
        while pruned == _BATCH:
            [[pruned, after]] = await fetch_whole(self._line, "prune the inbox", sql, window, after, _BATCH)
            total += pruned

        return total

    async def consumers(self) -> list[Received]:
        """Read what each consumer has received."""
        sql = statement("inbox_consumers", self._schema)
        return [Received(*row) for row in await fetch_whole(self._line, "look at the inbox", sql)]
