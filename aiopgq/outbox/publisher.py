"""What a publisher is: takes events, gives an outcome for each; and what goes over the wire."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable

__all__ = [
    "Envelope",
    "Message",
    "Outcomes",
    "Publisher",
    "Route",
    "Settings",
    "cloud_events",
    "plain",
    "send_each",
    "topic",
    "unavailable",
]

Outcomes = Sequence[BaseException | None]


class Publisher(Protocol):
    """Hands events to a broker.

    A relay never passes two events of one aggregate in one call, and none before the one before it has been
    confirmed; so a publisher may send all at once, in any order.

    If it has a coroutine method `close`, the relay calls it at its end.

    Example:
        >>> class Printer:
        ...     async def publish(self, events):
        ...         print(*(event.event_type for event in events))
        ...         return [None] * len(events)
    """

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events, and return for each None once the broker has confirmed it, or why it was refused.

        An OSError (BrokerUnavailable and TimeoutError are such) says nothing against the event: it is tried again
        when the broker is back. What was refused is tried again with growing pauses, while its aggregate waits.

        Raises:
            BrokerUnavailable: The broker takes nothing now; all of them are tried again. A relay takes OSError
                and TimeoutError for the same. Cancellation means that the time is up.
        """
        ...


@dataclass(frozen=True, slots=True)
class Message:
    """An event as it goes over the wire.

    Attributes:
        body: The bytes.
        headers: What goes along, where the broker has headers.
        content_type: Of the body.
    """

    body: bytes
    headers: dict[str, str]
    content_type: str


Envelope = Callable[[Event], Message]
Route = Callable[[Event], str]

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Settings:
    """What all publishers to brokers take.

    Attributes:
        route: Gives the subject, routing key, stream or topic of an event.
        envelope: Gives the message of an event.
        timeout: Seconds the broker has to confirm.
    """

    route: Route
    envelope: Envelope
    timeout: float


async def send_each(
    broker: str,
    prepare: Callable[[Event], Callable[[], Awaitable[Any]]],
    events: Sequence[Event],
    refusals: tuple[type[BaseException], ...],
    close: Callable[[], Awaitable[None]],
) -> Outcomes:
    """Send events at the same time over one connection, and close it unless each was confirmed or refused.

    What such a connection has kept must not be sent behind our back, nor its confirmations be left to nobody.

    Args:
        broker: Its name.
        prepare: Makes the message of an event, and returns what sends it and returns when it is confirmed. What it
            raises says something against the event.
        events: The events.
        refusals: What says something against an event; anything else says it against the broker.
        close: Closes the connection.
    """
    outcomes: list[BaseException | None] = []

    async def send(event: Event) -> None:
        try:
            sends = prepare(event)
        except Exception as error:  # envelope and route are the user's code
            raise _UnpreparedError from error
        await sends()

    try:
        # A broken connection may cancel what waits on it; cancelled itself, gather raises instead.
        for outcome in await asyncio.gather(*map(send, events), return_exceptions=True):
            if outcome is None or isinstance(outcome, refusals):
                outcomes.append(outcome)
            elif isinstance(outcome, _UnpreparedError):
                outcomes.append(outcome.__cause__)
            else:
                outcomes.append(unavailable(broker, outcome))
    except BaseException:
        await close()
        raise
    if any(isinstance(outcome, BrokerUnavailable) for outcome in outcomes):
        await close()

    return outcomes


class _UnpreparedError(Exception):
    """No message could be made of an event."""


def unavailable(broker: str, error: BaseException) -> BrokerUnavailable:
    """Say by what a broker, or its client, showed that it takes no events now."""
    made = BrokerUnavailable(broker, f"{type(error).__name__}: {error}")
    made.__cause__ = error

    return made


def topic(event: Event) -> str:
    """Return `outbox.event.<aggregate type>`, where the Outbox Event Router of Debezium sends an event as well."""
    return f"outbox.event.{event.aggregate_type}"


def plain(event: Event) -> Message:
    """Put the payload into the body and the rest into headers.

    The headers: id (the event id), type, aggregate-type, aggregate-id, and those of the event.
    """
    headers = {
        **event.headers,
        "id": str(event.event_id),
        "type": event.event_type,
        "aggregate-type": event.aggregate_type,
        "aggregate-id": event.aggregate_id,
    }

    return Message(event.payload.encode(), headers, "application/json")


def cloud_events(source: str) -> Envelope:
    """Make an envelope in the structured JSON format of CloudEvents 1.0.

    Args:
        source: Where events come from, a URI such as `/shop/orders`.
    """

    def envelope(event: Event) -> Message:
        cloud = {
            "specversion": "1.0",
            "id": str(event.event_id),
            "source": source,
            "type": event.event_type,
            "subject": event.aggregate_id,
            "time": event.created_at.isoformat(),
            "datacontenttype": "application/json",
            "aggregatetype": event.aggregate_type,
            "data": msgspec.Raw(event.payload.encode()),
        }
        message = plain(event)

        return Message(_encode(cloud), message.headers, "application/cloudevents+json")

    return envelope
