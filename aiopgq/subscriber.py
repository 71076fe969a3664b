"""Subscribers: a handler of a broker's messages, in one transaction with the record that each was received.

The message is recorded, the handler runs, the transaction commits, and only then is the broker told. If the process
dies before, the broker delivers again; if it dies after the commit, that delivery is a duplicate and is only answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from functools import wraps
from typing import Any, Final, Protocol, TypeVar, overload
from uuid import UUID

from aiopgq._store.foreign import begun, check_source, is_asyncpg
from aiopgq._words import options
from aiopgq.errors import MessageHeld, UsageError
from aiopgq.inbox import DEFAULT_TIMEOUT, Inbox

__all__ = ["Receives"]

log = logging.getLogger("aiopgq.subscriber")

Connection = TypeVar("Connection")
Connection_co = TypeVar("Connection_co", covariant=True)
Message = TypeVar("Message")

_PAUSE: Final = 1.0
# What NATS calls the id by which it drops duplicates, and what our outbox puts there.
_NATS_ID: Final = "Nats-Msg-Id"


class _Pool(Protocol[Connection_co]):
    """A pool of asyncpg."""

    def acquire(self) -> AbstractAsyncContextManager[Connection_co]: ...


class _Begins(Protocol[Connection_co]):
    """An async_sessionmaker or AsyncEngine of SQLAlchemy."""

    def begin(self) -> AbstractAsyncContextManager[Connection_co]: ...


class _Decorator(Protocol[Connection_co]):
    def __call__(
        self, handler: Callable[[Message, Connection_co], Awaitable[object]], /
    ) -> Callable[[Message], Coroutine[Any, Any, None]]: ...


class Receives:
    """Something that receives messages: an App."""

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        raise NotImplementedError

    @property
    def inbox(self) -> Inbox:
        """The inbox; the App need not be open."""
        return Inbox(self.schema)

    @overload
    def subscriber(
        self,
        *,
        consumer: str,
        transactions: _Begins[Connection],
        message_id: Callable[[Any], str | UUID] | None = None,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
        pause: float | timedelta = _PAUSE,
    ) -> _Decorator[Connection]: ...
    @overload
    def subscriber(
        self,
        *,
        consumer: str,
        transactions: _Pool[Connection],
        message_id: Callable[[Any], str | UUID] | None = None,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
        pause: float | timedelta = _PAUSE,
    ) -> _Decorator[Connection]: ...
    @overload
    def subscriber(
        self,
        *,
        consumer: str,
        transactions: Callable[[], AbstractAsyncContextManager[Connection]],
        message_id: Callable[[Any], str | UUID] | None = None,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
        pause: float | timedelta = _PAUSE,
    ) -> _Decorator[Connection]: ...
    @overload
    def subscriber(
        self,
        *,
        consumer: str,
        transactions: Any,
        message_id: Callable[[Any], str | UUID] | None = None,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
        pause: float | timedelta = _PAUSE,
    ) -> _Decorator[Any]: ...
    def subscriber(
        self,
        *,
        consumer: str,
        transactions: Any,
        message_id: Callable[[Any], str | UUID] | None = None,
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
        pause: float | timedelta = _PAUSE,
    ) -> Any:
        """Make a coroutine function of a message into a consumer for NATS JetStream (nats-py) or RabbitMQ (aio-pika).

        The handler gets the message and a connection in a transaction. What comes out takes the message alone: give
        it to `js.subscribe(cb=…)` or `queue.consume(…)`, or await it for each message of a pull subscription. It
        tells the broker after the commit; when anything fails it rolls back, logs an ERROR and has the message
        delivered again. Duplicates do not reach the handler. It raises only when it is cancelled: the broker then
        delivers again by itself, when its own time is up or the connection closes.

        Args:
            consumer: Who receives; each consumer handles a message once.
            transactions: Where transactions are begun: an asyncpg Pool, a SQLAlchemy async_sessionmaker or
                AsyncEngine, a function that returns an async context manager of a connection in a transaction, or
                one connection, which messages then use in turn.
            message_id: Finds the id in a message. Default: for NATS the header Nats-Msg-Id, or the stream and the
                sequence in it; for RabbitMQ the property message_id.
            timeout: Seconds (or a timedelta) to wait for another transaction that is receiving the same message;
                None for no limit. Default 10.
            pause: Seconds (or a timedelta) until a failed message is delivered again. Default 1. RabbitMQ would
                deliver at once, so the message is kept here meanwhile.

        Raises:
            ConfigError: The consumer, the timeout or the pause cannot be used.
            TypeError: transactions is nothing we can begin a transaction on.

        Example:
            >>> @jobs.subscriber(consumer="billing", transactions=pool)
            ... async def bill(message: Msg, connection: Connection) -> None:
            ...     await connection.execute("INSERT INTO invoices …", message.data)
            >>> await jetstream.subscribe("orders.>", durable="billing", cb=bill, manual_ack=True)
        """
        check_source("transactions", transactions)
        options.name("consumer", consumer)
        limit = None if timeout is None else options.seconds("timeout", timeout)
        length = options.seconds("pause", pause)
        find = message_id or _id_of
        inbox = self.inbox
        turn = asyncio.Lock() if is_asyncpg(transactions) or _is_one_session(transactions) else nullcontext()

        def decorate(handler: Callable[[Any, Any], Awaitable[object]]) -> Callable[[Any], Coroutine[Any, Any, None]]:
            @wraps(handler)
            async def receive(message: Any) -> None:
                name: object = "without an id"
                try:
                    name = find(message)
                    async with (
                        turn,
                        begun(transactions) as connection,
                        inbox.once(connection, consumer=consumer, message_id=name, timeout=limit) as first,
                    ):
                        if first:
                            await handler(message, connection)
                except MessageHeld as error:
                    log.warning("%s It is delivered again in %g s.", error, length, extra={"consumer": consumer})
                    await _answer(message, length)
                except Exception:
                    log.exception(
                        "consumer %r failed on message %s; it is delivered again in %g s",
                        consumer,
                        name,
                        length,
                        extra={"consumer": consumer},
                    )
                    await _answer(message, length)
                else:
                    await _answer(message, None)

            return receive

        return decorate


def _is_one_session(source: Any) -> bool:
    return hasattr(source, "begin") and hasattr(source, "execute")


def _is_of(module: str, message: Any) -> bool:
    """Tell by where its class comes from whose message it is, so that nothing is imported for it."""
    return any(cls.__module__.partition(".")[0] == module for cls in type(message).__mro__)


def _id_of(message: Any) -> str:
    if _is_of("nats", message):
        if found := (message.headers or {}).get(_NATS_ID):
            return str(found)
        # A message of core NATS has none of it, and says so itself.
        metadata = message.metadata
        return f"{metadata.stream}:{metadata.sequence.stream}"
    if found := getattr(message, "message_id", None):
        return str(found)
    raise UsageError(
        "The message has no id, so a second delivery of it cannot be told. Let its publisher set message_id, or say "
        "where the id is: `@jobs.subscriber(message_id=lambda message: …)`."
    )


async def _answer(message: Any, pause: float | None) -> None:
    """Tell the broker: done, or deliver again after a pause."""
    try:
        if pause is None:
            await message.ack()
        elif _is_of("nats", message):
            await message.nak(delay=pause)
        else:
            await asyncio.sleep(pause)
            await message.nack(requeue=True)
    except Exception as error:  # noqa: BLE001  # whatever the broker's client raises, the message comes again
        log.warning(
            "the broker could not be told of a message (%s: %s); it delivers again", type(error).__name__, error
        )
