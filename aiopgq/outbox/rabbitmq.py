"""Publish to RabbitMQ; needs the extra `rabbitmq`."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import aio_pika
from aio_pika.exceptions import AMQPError, DeliveryError, PublishError
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelPreconditionFailed,
    ConnectionFrameError,
    ConnectionSyntaxError,
)

from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable
from aiopgq.outbox.publisher import Envelope, Outcomes, Route, Settings, plain, send_each, topic, unavailable

__all__ = ["RabbitPublisher", "RabbitRefused"]

_PERSISTENT: Final = aio_pika.DeliveryMode.PERSISTENT
_REFUSALS: Final = (DeliveryError, PublishError, ValueError, TypeError)
# With these RabbitMQ closes the channel or the connection over one message: too large, headers that fill a frame,
# a routing key that the user may not use.
_CLOSED_OVER: Final = (ChannelAccessRefused, ChannelPreconditionFailed, ConnectionFrameError, ConnectionSyntaxError)


class RabbitRefused(Exception):
    """RabbitMQ closed the channel or the connection over a message; it says why."""


class RabbitPublisher:
    """Publishes to an exchange, as persistent messages, mandatory and confirmed.

    A message that no queue takes is returned by RabbitMQ and counts as refused: bind a queue first.
    The event id is the message id.

    Args:
        url: `amqp://user:password@host/vhost`.
        exchange: The exchange; "" is the default one, whose routing keys are names of queues. Default `outbox`.
        declare: Declare the exchange, durable and of type topic, where it is not there. Default: yes.
        route: Gives the routing key of an event. Default: `outbox.event.<aggregate type>`.
        envelope: Gives the message of an event. Default: the payload, with headers.
        timeout: Seconds the server has to confirm. Default 10.
        options: Further keyword arguments for `aio_pika.connect`.

    Example:
        >>> jobs.outbox.relay(RabbitPublisher("amqp://guest:guest@localhost/"))
    """

    name = "RabbitMQ"

    def __init__(
        self,
        url: str = "amqp://guest:guest@localhost/",
        *,
        exchange: str = "outbox",
        declare: bool = True,
        route: Route = topic,
        envelope: Envelope = plain,
        timeout: float = 10.0,
        **options: Any,
    ) -> None:
        self._url = url
        self._exchange_name = exchange
        self._declare = declare
        self._settings = Settings(route, envelope, timeout)
        self._options = options
        self._connection: Any = None
        self._exchange: Any = None

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        await self._connect()
        outcomes = list(await send_each(self.name, self._prepared, events, _REFUSALS, self.close))
        causes = [None if outcome is None else outcome.__cause__ for outcome in outcomes]
        if not any(isinstance(cause, _CLOSED_OVER) for cause in causes):
            return outcomes
        if len(events) == 1:
            # Its own error is one of a connection, which would say nothing against the event.
            return [RabbitRefused(str(causes[0]))]
        for number, event in enumerate(events):
            # It does not say over which message it closed: each of the unconfirmed ones alone tells.
            if isinstance(outcomes[number], BrokerUnavailable):
                try:
                    [outcomes[number]] = await self.publish([event])
                except BrokerUnavailable as error:
                    outcomes[number] = error
                    break

        return outcomes

    async def close(self) -> None:
        """Close the connection; the next event opens it again."""
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> None:
        if self._exchange is not None and not self._exchange.channel.is_closed:
            return
        await self.close()
        try:
            self._connection = await aio_pika.connect(self._url, timeout=self._settings.timeout, **self._options)
            channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            if not self._exchange_name:
                self._exchange = channel.default_exchange
            elif self._declare:
                self._exchange = await channel.declare_exchange(
                    self._exchange_name, aio_pika.ExchangeType.TOPIC, durable=True, timeout=self._settings.timeout
                )
            else:
                self._exchange = await channel.get_exchange(self._exchange_name)
        except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
            await self.close()
            raise unavailable(self.name, error) from error

    def _prepared(self, event: Event) -> Callable[[], Awaitable[Any]]:
        message = self._settings.envelope(event)

        return partial(
            self._exchange.publish,
            aio_pika.Message(
                message.body,
                headers=dict(message.headers),
                content_type=message.content_type,
                delivery_mode=_PERSISTENT,
                message_id=str(event.event_id),
                timestamp=event.created_at,
                type=event.event_type,
            ),
            self._settings.route(event),
            mandatory=True,
            timeout=self._settings.timeout,
        )
