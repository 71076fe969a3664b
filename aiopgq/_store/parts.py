"""Many new jobs in one transaction, part by part: while PostgreSQL writes one, the next is made."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import asyncpg

from aiopgq._store.connection import Lines
from aiopgq._store.new_rows import insertion
from aiopgq._store.statements import statement
from aiopgq._words.job import NewJob

__all__ = ["Parts"]


class Parts:
    """One transaction that inserts jobs with new ids and without keys.

    Args:
        lines: One of them is taken until the end.

    Attributes:
        committing: Whether COMMIT was sent: until it is answered, nobody knows.
    """

    def __init__(self, lines: Lines) -> None:
        self.committing = False
        self._lines = lines

    async def write(self, parts: Iterable[Sequence[NewJob]]) -> None:
        """Insert them all and commit, however long it takes. Cancelling it ends the connection.

        Args:
            parts: Read one after the other; what it raises rolls back, and is raised.

        Raises:
            StoreError: Nothing is committed, except perhaps when `committing`.
        """
        sql = statement("enqueue", self._lines.settings.schema)
        async with self._lines.borrow("enqueue jobs", timed=False) as connection:
            # Nothing here can meet another transaction; at a higher level PostgreSQL would look for it.
            block = connection.transaction(isolation="read_committed")
            under_way = await _sent(block.start())
            try:
                for part in parts:
                    _, _, columns = insertion(part, once=False)
                    await under_way
                    under_way = await _sent(connection.fetch(sql, *columns))
                await under_way
            except Exception:
                # A connection takes the next statement when the one before has its answer.
                await asyncio.gather(under_way, return_exceptions=True)
                await _roll_back(connection, block)
                raise
            except BaseException:
                # Whoever is cancelled waits for nothing, and nobody may go on in this transaction.
                under_way.cancel()
                connection.terminate()
                raise
            self.committing = True
            await block.commit()


async def _sent(statement: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    task = asyncio.create_task(statement)
    try:
        # One turn of the loop, in which it gets away.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        task.cancel()
        raise

    return task


async def _roll_back(connection: Any, block: Any) -> None:
    try:
        if connection.is_in_transaction():
            await block.rollback()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
