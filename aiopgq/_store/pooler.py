"""Poolers in transaction mode, as PgBouncer: what goes wrong behind them is found at the start, not under load.

Such a pooler gives each transaction another server process. It may lose prepared statements, and it accepts LISTEN
without ever delivering a notification, except for those that a process sends to itself.
"""

import asyncio
from typing import Any, Final

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.statements import statement

__all__ = ["check_pooler", "is_direct"]

_TRIES: Final = 3
# A pooler with one server process keeps its own second client waiting; that is no answer either way.
_PATIENCE: Final = 2.0


async def is_direct(connection: Any) -> bool:
    """Tell whether the server process that answers is the one the connection was told of when it was made."""
    return bool(await _answering(connection) == connection.get_server_pid())


async def check_pooler(line: Line) -> None:
    """Check that a pooler, if there is one, keeps the statements that asyncpg prepares.

    Raises:
        StatementLost: It does not.
        StoreUnavailable: PostgreSQL did not answer.
        StoreError: It refuses.
    """
    async with line.borrow("look for a pooler") as connection:
        if not await is_direct(connection):
            await _provoke(line.settings, connection)


async def _provoke(settings: ConnectSettings, first: Any) -> None:
    """Let a statement that was prepared on one server process run on another, if the pooler can be brought to it."""
    second = await settings.open("check")
    try:
        async with asyncio.timeout(_PATIENCE):
            for _ in range(_TRIES):
                prepared_on = await _answering(first)
                async with second.transaction():
                    # The pooler gives the process that was used last; while it is taken, the first gets another.
                    if await _answering(second) == prepared_on:
                        await _answering(first)
                        return
    except TimeoutError:
        return
    finally:
        # The first may be waiting still; its line makes another.
        first.terminate()
        second.terminate()


async def _answering(connection: Any) -> int:
    pid: int = await connection.fetchval(statement("backend_pid"))
    return pid
