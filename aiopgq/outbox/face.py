"""`jobs.outbox`: add events in the caller's transaction, make relays, look and mend."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.events import Events, add_event_foreign
from aiopgq._store.foreign import check_connection
from aiopgq._words import options
from aiopgq._words.backoff import Backoff
from aiopgq._words.clock import uuid7
from aiopgq._words.outbox_event import EventInfo, Lag, encode_payload
from aiopgq.errors import ConfigError
from aiopgq.opened import Opened
from aiopgq.outbox.publisher import Publisher
from aiopgq.outbox.relay import Relay
from aiopgq.outbox.tenure import Conduct

__all__ = ["Outbox", "WithOutbox"]

_DAY: Final = 86_400.0
_BATCH: Final = 5000
_STATUSES: Final = ("unpublished", "waiting", "retry", "blocked", "set aside", "published", "skipped")


class WithOutbox(ABC):
    """What an App is as the home of an outbox."""

    @property
    def outbox(self) -> "Outbox":
        """Events that are written with the data they are about, and published by relays."""
        return Outbox(self)

    @property
    @abstractmethod
    def schema(self) -> str:
        """The schema of the tables."""

    @property
    @abstractmethod
    def max_args_bytes(self) -> int:
        """The largest payload of an event, encoded, like the arguments of a job."""

    @abstractmethod
    def supply(self, doing: str) -> Opened:
        """Return the connections of the opened App.

        Raises:
            AppNotOpen: It is not open.
            WrongLoop: It is open in another event loop.
        """

    @abstractmethod
    async def __aenter__(self) -> Any: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...


class Outbox:
    """The outbox of an App; `jobs.outbox`."""

    def __init__(self, app: WithOutbox) -> None:
        self._app = app

    # add

    async def add(
        self,
        connection: Any,
        *,
        aggregate_type: str,
        aggregate_id: object,
        event_type: str,
        payload: Any,
        headers: Mapping[str, str] | None = None,
        event_id: UUID | None = None,
    ) -> UUID:
        """Add an event in the caller's transaction: it is published if that commits, and only then.

        Whatever can be checked is checked before anything is sent, so an error of ours leaves the transaction
        usable. The App need not be open.

        Args:
            connection: An asyncpg Connection or a SQLAlchemy AsyncSession or AsyncConnection.
            aggregate_type: What kind of thing it is about, `order` for example; 1 to 200 bytes.
            aggregate_id: Which one; its `str` has 1 to 200 bytes. The events of an aggregate are published in order.
            event_type: What happened, `OrderPlaced` for example; 1 to 200 bytes.
            payload: What is told: JSON values, a msgspec Struct, a dataclass or a pydantic model; 1 MiB at most.
            headers: What goes along.
            event_id: The same for each delivery, so that receivers can tell a duplicate. Default: a new UUIDv7.
                One that is there already adds nothing.

        Returns:
            The event id.

        Raises:
            ConfigError: Something cannot be stored.
            TypeError: `connection` is of no kind we know.

        Example:
            >>> async with pool.acquire() as connection, connection.transaction():
            ...     await connection.execute("INSERT INTO orders …")
            ...     await jobs.outbox.add(
            ...         connection,
            ...         aggregate_type="order",
            ...         aggregate_id=order.id,
            ...         event_type="OrderPlaced",
            ...         payload={"total": 42},
            ...     )
        """
        check_connection(connection)
        event_id = uuid7() if event_id is None else options.identity("event_id", event_id)
        row = [
            options.name("aggregate_type", aggregate_type),
            options.name("aggregate_id", str(aggregate_id)),
            options.name("event_type", event_type),
            encode_payload(payload, self._app.max_args_bytes),
            msgspec.json.encode(options.headers("headers", headers or {})).decode(),
            event_id,
        ]
        await add_event_foreign(connection, self._app.schema, row)

        return event_id

    async def add_event(
        self,
        connection: Any,
        event: Any,
        *,
        aggregate_id: object,
        aggregate_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        event_id: UUID | None = None,
    ) -> UUID:
        """Add a typed event: a msgspec Struct, a dataclass or a pydantic model; its class names what happened.

        Args:
            connection: As for `add`.
            event: What is told. The event type is the name of its class, or what its class says as `event_type`.
            aggregate_id: Which thing it is about.
            aggregate_type: What kind of thing. Default: what the event's class says as `aggregate_type`.
            headers: What goes along.
            event_id: As for `add`.

        Returns:
            The event id.

        Raises:
            ConfigError: The aggregate type is not said, or something cannot be stored.
            TypeError: `connection` is of no kind we know.

        Example:
            >>> class OrderPlaced(msgspec.Struct):
            ...     aggregate_type: ClassVar[str] = "order"
            ...     total: int
            >>> await jobs.outbox.add_event(connection, OrderPlaced(total=42), aggregate_id=7)
        """
        kind = type(event)
        aggregate_type = aggregate_type or getattr(kind, "aggregate_type", None)
        if not isinstance(aggregate_type, str):
            raise ConfigError(
                "aggregate_type", f"is not given, and class {kind.__name__} does not say `aggregate_type = …` either."
            )
        named = getattr(kind, "event_type", None)

        return await self.add(
            connection,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            event_type=named if isinstance(named, str) else kind.__name__,
            payload=event,
            headers=headers,
            event_id=event_id,
        )

    # publish

    def relay(
        self,
        publisher: Publisher,
        *,
        name: str | None = None,
        burst: bool = False,
        on_poison: Literal["block", "set_aside"] = "block",
        max_attempts: int = 10,
        backoff: Backoff = Backoff(base=1, factor=2, cap=300),  # noqa: B008  # frozen
        lease: float | timedelta = 15.0,
        poll_interval: float | timedelta = 5.0,
        publish_timeout: float | timedelta = 30.0,
        longest_pause: float | timedelta = 30.0,
        retention: float | timedelta = 7 * _DAY,
    ) -> Relay:
        """Make a relay for this process; relays share the aggregates, so start as many as you like.

        All of them publish to the same place: with different publishers, each event would go to one of them only.

        Args:
            publisher: Where events go.
            name: How it is called in logs. Default: the host's name.
            burst: End when nothing is left to publish, instead of waiting for more.
            on_poison: What becomes of an event that the broker refuses: it blocks its aggregate, and is tried
                again, until it passes or an operator skips it; or after `max_attempts` it is set aside, and its
                aggregate goes on without it. Other aggregates go on in any case.
            max_attempts: How often an event may fail before it is set aside. Default 10.
            backoff: The pauses between the tries of an event that failed. Default 1 s, doubling up to 5 min.
            lease: Seconds a silent relay keeps its aggregates. Default 15; at least 2.
            poll_interval: Seconds between looks while asleep: the net below the notifications. Default 5.
            publish_timeout: Seconds a publisher may take for a wave of events before the broker is taken to be
                away. Default 30.
            longest_pause: The longest pause, in seconds, between tries while the broker is away. Default 30.
            retention: Seconds published events are kept. Default 7 days; 0 deletes them within a minute.

        Raises:
            ConfigError: An option cannot be used.
        """
        if on_poison not in ("block", "set_aside"):
            raise ConfigError("on_poison", f'is "block" or "set_aside", not {on_poison!r}.')
        conduct = Conduct(
            name=None if name is None else options.name("name", name),
            burst=burst,
            most=options.attempts("max_attempts", max_attempts) if on_poison == "set_aside" else None,
            backoff=backoff,
            lease=options.lease("lease", lease),
            poll_interval=max(0.01, options.seconds("poll_interval", poll_interval)),
            publish_timeout=options.seconds("publish_timeout", publish_timeout),
            longest_pause=options.seconds("longest_pause", longest_pause),
            retention=options.seconds("retention", retention),
        )

        return Relay(self._app, self._where, publisher, conduct)

    def _where(self) -> tuple[ConnectSettings, ConnectSettings]:
        database = self._app.supply("start a relay").database
        return database.connect, database.listen

    # look and mend

    @property
    def _events(self) -> Events:
        return Events(self._app.supply("look at the outbox").lines)

    async def lag(self) -> Lag:
        """Say how far relays are behind: what is unpublished, and the age of the oldest in seconds.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._events.lag()

    async def events(
        self,
        *,
        status: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: object | None = None,
        limit: int = 100,
    ) -> Sequence[EventInfo]:
        """List events, oldest first.

        Args:
            status: unpublished, waiting, retry, blocked, "set aside", published or skipped. Default: any.
            aggregate_type: Only of this kind.
            aggregate_id: Only of this aggregate.
            limit: The most to return.

        Raises:
            ConfigError: There is no such status.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if status is not None and status not in _STATUSES:
            raise ConfigError("status", f"is one of {', '.join(_STATUSES)}, not {status!r}.")
        found = None if aggregate_id is None else str(aggregate_id)

        return await self._events.find(status, aggregate_type, found, limit)

    async def retry(self, event_ids: Sequence[UUID] | None = None) -> Sequence[UUID]:
        """Let failed events be tried again at once, and those set aside return to the line.

        What is set aside has been overtaken by its successors; it is published late, not in order.

        Args:
            event_ids: Which. Default: all that failed or were set aside.

        Returns:
            Those that were.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._events.retry(event_ids)

    async def skip(self, event_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Give up events that are not published; what is blocked behind them goes on.

        One that a relay is publishing at this moment may still arrive, and is then listed as published.

        Returns:
            Those that were given up.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._events.skip(event_ids)

    async def prune(self, retention: float | timedelta = 7 * _DAY, *, unpublished: bool = False) -> int:
        """Delete events published longer ago than the retention; a relay does it by itself.

        Args:
            retention: Seconds they are kept.
            unpublished: Delete those that no relay published instead, by their age: where something else reads
                the table's changes, as Debezium does.

        Returns:
            How many were deleted, in batches of a transaction each.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        seconds, total = options.seconds("retention", retention), 0
        while pruned := await self._events.prune(seconds, _BATCH, unpublished=unpublished):
            total += pruned

        return total
