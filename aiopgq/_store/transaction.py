"""Transactions of runs: each on a connection of its own, which the handler uses and on which its job is settled.

A connection is made when one is needed and kept for the runs to come. Its transaction holds a lock that names the
run, so that whoever takes the job can end what a frozen or vanished worker has left open.
"""

import asyncio
import contextlib
from typing import Any, Final
from uuid import UUID

import asyncpg

from aiopgq._store.connection import CLOSE_TIMEOUT, STATEMENT_TIMEOUT, ConnectSettings
from aiopgq._store.statements import statement
from aiopgq._store.trouble import Conflict, translated
from aiopgq.errors import StoreError, StoreUnavailable

__all__ = ["Transaction", "Transactions"]

_ROLLBACK_TIMEOUT: Final = 1.0
_BROKEN: Final = (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Transaction:
    """The transaction of one run; a `Fetcher` while it is open.

    Attributes:
        connection: The asyncpg connection that the handler uses.
        settings: Where it leads.
    """

    def __init__(self, connection: Any, settings: ConnectSettings, pool: Any) -> None:
        self.connection = connection
        self.settings = settings
        self._pool = pool
        # Marks of this very run meet its settlement on one row; at a higher level that would be a conflict.
        self._block = connection.transaction(isolation="read_committed")

    async def begin(self, job_id: UUID, claim_id: UUID) -> bool:
        """Begin, and tell by a lock whose transaction it is; False if the job belongs to somebody else already."""
        await self._block.start()
        sql = statement("begin_run", self.settings.schema)

        return bool(await self.connection.fetchval(sql, job_id, claim_id))

    async def fetch(self, doing: str, sql: str, *args: Any) -> list[Any]:
        """Run a statement of ours in the transaction.

        Raises:
            StoreUnavailable: No answer in time, or the connection was lost; nothing is committed.
            StoreError: PostgreSQL said no, or the handler has ended the transaction.
        """
        try:
            with translated(doing, self.settings.schema):
                self._check_open(doing)
                async with asyncio.timeout(STATEMENT_TIMEOUT):
                    rows: list[Any] = await self.connection.fetch(sql, *args)
                    return rows
        except Conflict as error:
            # Only the whole transaction can be repeated, and that is the run.
            raise StoreError(str(error)) from error
        except StoreError as error:
            if not isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
                raise
            raise StoreError(
                f"Cannot {doing}: an error that the handler caught has aborted its transaction. "
                "Put what may fail into a savepoint: `async with current_job().connection.transaction():`."
            ) from error

    def _check_open(self, doing: str) -> None:
        if not self.connection.is_in_transaction() and not self.connection.is_closed():
            raise StoreError(f"Cannot {doing}: the handler has ended the transaction it was given.")

    async def commit(self) -> None:
        """Commit.

        Raises:
            StoreUnavailable: No answer, so it may be committed or not; the connection is ended.
            StoreError: PostgreSQL refused, and has rolled it back.
        """
        try:
            with translated("commit the transaction of a run", self.settings.schema):
                async with asyncio.timeout(STATEMENT_TIMEOUT):
                    await self._block.commit()
        except (StoreUnavailable, asyncio.CancelledError):
            self.cut()
            raise

    async def roll_back(self) -> bool:
        """Roll back; False if PostgreSQL has not confirmed it, so that its locks may last."""
        try:
            async with asyncio.timeout(_ROLLBACK_TIMEOUT):
                if self.connection.is_in_transaction():
                    await self._block.rollback()
                return not self.connection.is_closed()
        except (*_BROKEN, asyncio.CancelledError):
            self.cut()
            return False

    def cut(self) -> None:
        """End the connection without a word to PostgreSQL."""
        # One that is closed already belongs to the pool again, which says so by an error.
        with contextlib.suppress(asyncpg.InterfaceError):
            self.connection.terminate()

    async def release(self) -> None:
        """Give the connection back; whoever still holds it can no longer use it."""
        with contextlib.suppress(*_BROKEN):
            await self._pool.release(self.connection, timeout=_ROLLBACK_TIMEOUT)


class Transactions:
    """The connections for the transactional runs of one worker.

    Args:
        settings: How to connect.
        size: The most connections there may be: one for each run.
    """

    def __init__(self, settings: ConnectSettings, size: int) -> None:
        self._settings = settings

        async def connect(*_: Any, **__: Any) -> Any:
            return await settings.open("transaction")

        self._pool = asyncpg.create_pool(connect=connect, min_size=0, max_size=size)
        self._opened = False

    async def open(self) -> None:
        """Make ready; no connection is made yet."""
        await self._pool
        self._opened = True

    async def begin(self, job_id: UUID, claim_id: UUID) -> Transaction | None:
        """Begin the transaction of a run; None if its job belongs to somebody else already.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        with translated("begin the transaction of a run", self._settings.schema):
            async with asyncio.timeout(STATEMENT_TIMEOUT):
                transaction = Transaction(await self._pool.acquire(), self._settings, self._pool)
                ours = False
                try:
                    ours = await transaction.begin(job_id, claim_id)
                finally:
                    if not ours:
                        transaction.cut()
                        await transaction.release()

        return transaction if ours else None

    async def close(self) -> None:
        """Close the connections; one whose run does not end is cut."""
        if not self._opened:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._pool.close()
        except _BROKEN:
            self._pool.terminate()
