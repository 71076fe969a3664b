"""Publish to Kafka; needs the extra `kafka`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)

from aiopgq._words.outbox_event import Event
from aiopgq.outbox.publisher import Envelope, Outcomes, Route, Settings, plain, send_each, topic, unavailable

__all__ = ["KafkaPublisher"]

_REFUSALS: Final = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    ValueError,
    TypeError,
)


class KafkaPublisher:
    """Publishes with an idempotent producer, confirmed by all in-sync replicas; the key is the aggregate id.

    Args:
        servers: `host:port`, several separated by commas.
        route: Gives the topic of an event. Default: `outbox.event.<aggregate type>`.
        envelope: Gives the message of an event. Default: the payload, with headers.
        timeout: Seconds the cluster has to confirm. Default 20.
        options: Further keyword arguments for `aiokafka.AIOKafkaProducer`.

    Example:
        >>> jobs.outbox.relay(KafkaPublisher("localhost:9092"))
    """

    name = "Kafka"

    def __init__(
        self,
        servers: str = "localhost:9092",
        *,
        route: Route = topic,
        envelope: Envelope = plain,
        timeout: float = 20.0,
        **options: Any,
    ) -> None:
        self._servers = servers
        self._settings = Settings(route, envelope, timeout)
        self._options = options
        self._producer: Any = None

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        await self._connect()

        return await send_each(self.name, self._prepared, events, _REFUSALS, self.close)

    async def close(self) -> None:
        """Close the producer; the next event opens another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                async with asyncio.timeout(1):
                    await producer.stop()
            except (KafkaError, OSError, TimeoutError):
                # It waits for what it cannot send.
                await producer.client.close()

    async def _connect(self) -> None:
        if self._producer is not None:
            return
        producer = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            enable_idempotence=True,
            request_timeout_ms=int(self._settings.timeout * 1000),
            **self._options,
        )
        try:
            async with asyncio.timeout(self._settings.timeout):
                await producer.start()
        except BaseException as error:
            await producer.stop()
            if isinstance(error, KafkaError | OSError | TimeoutError):
                raise unavailable(self.name, error) from error
            raise
        self._producer = producer

    def _prepared(self, event: Event) -> Callable[[], Awaitable[Any]]:
        message = self._settings.envelope(event)
        headers = {**message.headers, "content-type": message.content_type}

        return partial(
            self._producer.send_and_wait,
            self._settings.route(event),
            message.body,
            key=event.aggregate_id.encode(),
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
