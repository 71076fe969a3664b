"""The inbox: a message that a broker delivers twice has its effect once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import anyio

from aiopgq._store.foreign import check_connection, in_transaction, is_asyncpg, is_within
from aiopgq._store.inbox import forget_foreign, receive_foreign
from aiopgq._words import options
from aiopgq.errors import ConfigError, MessageHeld, UsageError

__all__ = ["DEFAULT_TIMEOUT", "DEFAULT_WINDOW", "Inbox"]

# Shorter than the 30 seconds that NATS waits for an answer to a delivery.
DEFAULT_TIMEOUT: Final = 10.0
# Longer than an outage, and than a broker keeps what nobody takes, by most settings.
DEFAULT_WINDOW: Final = 7 * 86_400.0
_ID_BYTES: Final = 1000
_TAKE_BACK_TIMEOUT: Final = 5.0


class Inbox:
    """The messages that consumers have received; `jobs.inbox`. It needs no opened App.

    Args:
        schema: The schema of the tables.
    """

    def __init__(self, schema: str) -> None:
        self._schema = schema

    @asynccontextmanager
    async def once(
        self,
        connection: Any,
        *,
        consumer: str,
        message_id: str | UUID,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,  # noqa: ASYNC109  # PostgreSQL waits, not the loop
    ) -> AsyncIterator[bool]:
        """Record a message in the transaction of its effect; tell whether to do the effect.

        Yields True the first time and False for a duplicate, which changes nothing. If another transaction is
        receiving the same message, waits for its outcome: committed, this one is a duplicate; rolled back, it is
        the first. The record is part of the caller's transaction: it commits and rolls back with the effect. Let an
        error reach the transaction; if the caller keeps it from there and commits, the record alone is taken back,
        so that the next delivery is tried again.

        Under REPEATABLE READ and SERIALIZABLE, a message whose record was committed after the transaction took its
        snapshot raises a serialization failure (40001), as the driver has it; repeat the whole transaction.

        Args:
            connection: An asyncpg Connection in a transaction, or a SQLAlchemy AsyncSession or AsyncConnection.
            consumer: Who receives, 1 to 200 bytes; each consumer receives a message once.
            message_id: What names the message in each of its deliveries, 1 to 1,000 bytes.
            timeout: Seconds (or a timedelta) to wait for another transaction; None for no limit. Default 10.

        Raises:
            MessageHeld: That transaction has not ended in time. This one goes on, and nothing is recorded in it.
            UsageError: No transaction is open.
            ConfigError: The consumer, the id or the timeout cannot be used.
            TypeError: connection is of no kind we know.

        Example:
            >>> async with connection.transaction():
            ...     async with jobs.inbox.once(connection, consumer="billing", message_id=order_id) as first:
            ...         if first:
            ...             await connection.execute("INSERT INTO invoices …")
        """
        check_connection(connection)
        options.name("consumer", consumer)
        message_id = _checked(message_id)
        seconds = None if timeout is None else options.seconds("timeout", timeout)
        if is_asyncpg(connection) and not in_transaction(connection):
            raise UsageError(_NO_TRANSACTION)
        first, held_by = await receive_foreign(connection, self._schema, consumer, message_id, seconds)
        if first is None:
            raise MessageHeld(consumer, message_id, seconds or 0.0, " or ".join(map(str, held_by)) or None)
        if not await is_within(connection):
            if first:
                # In autocommit the record alone is committed by now.
                await forget_foreign(connection, self._schema, consumer, message_id)
            raise UsageError(_NO_TRANSACTION)
        try:
            yield first
        except (Exception, asyncio.CancelledError):
            # Cancelled too: a timeout of the caller's ends so, and he may well commit after it. What PostgreSQL has
            # refused rolls back anyhow, and so does what it no longer hears of.
            with suppress(Exception), anyio.move_on_after(_TAKE_BACK_TIMEOUT, shield=True):
                if first and in_transaction(connection):
                    await forget_foreign(connection, self._schema, consumer, message_id)
            raise


_NO_TRANSACTION: Final = (
    "No transaction is open, so the effect would not be in that of its message. Begin one first: "
    "`async with connection.transaction():`, or a SQLAlchemy session that is not in AUTOCOMMIT."
)


def _checked(message_id: str | UUID) -> str:
    if isinstance(message_id, UUID):
        return str(message_id)
    if not isinstance(message_id, str):
        raise ConfigError("message_id", f"takes a string or a UUID, not {type(message_id).__name__}.")
    try:
        size = len(message_id.encode())
    except UnicodeEncodeError:
        raise ConfigError("message_id", f"{message_id[:50]!r} holds a lone surrogate.") from None
    if not 1 <= size <= _ID_BYTES or "\x00" in message_id:
        raise ConfigError("message_id", f"an id has 1 to {_ID_BYTES:,} bytes and no NUL, this one {size} bytes.")

    return message_id
