"""Publish to Redis Streams; needs the extra `redis`."""

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    DataError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from aiopgq._words.outbox_event import Event
from aiopgq.outbox.publisher import Envelope, Outcomes, Route, Settings, plain, topic, unavailable

__all__ = ["RedisPublisher"]

_ABOUT_SERVER: Final = (BusyLoadingError, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
# The disk is full, replicas are away, a script runs.
_SAYS_SERVER: Final = ("MISCONF", "NOREPLICAS", "BUSY", "UNKILLABLE")


class RedisPublisher:
    """Appends to streams; an entry holds the headers as fields, and the message under `payload`.

    Redis confirms when it has the entry in memory; how much it loses in a crash is what its `appendfsync` says.

    Args:
        url: `redis://host:6379/0`.
        longest: Trim each stream to about so many entries. Default: never.
        route: Gives the key of the stream. Default: `outbox.event.<aggregate type>`.
        envelope: Gives the message of an event. Default: the payload, with headers.
        timeout: Seconds the server has to answer. Default 5.
        options: Further keyword arguments for `redis.asyncio.from_url`.

    Example:
        >>> jobs.outbox.relay(RedisPublisher("redis://localhost"))
    """

    name = "Redis"

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        longest: int | None = None,
        route: Route = topic,
        envelope: Envelope = plain,
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        self._url = url
        self._longest = longest
        self._settings = Settings(route, envelope, timeout)
        self._options = options
        self._client: Any = None

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        if self._client is None:
            self._client = redis.asyncio.from_url(
                self._url,
                socket_timeout=self._settings.timeout,
                socket_connect_timeout=self._settings.timeout,
                **self._options,
            )
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            message = self._settings.envelope(event)
            fields = {**message.headers, "content-type": message.content_type, "payload": message.body}
            pipeline.xadd(self._settings.route(event), fields, maxlen=self._longest, approximate=True)
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except DataError:
            # An envelope gave what Redis has no type for; nothing was sent.
            raise
        except (RedisError, OSError) as error:
            await self.close()
            raise unavailable(self.name, error) from error

        return [self._outcome(answer) for answer in answers]

    async def close(self) -> None:
        """Close the connections; the next event opens them again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _outcome(self, answer: Any) -> BaseException | None:
        if not isinstance(answer, Exception):
            return None
        # Some complaints are about the server, not about the event; the client has no class for each.
        about_server = isinstance(answer, _ABOUT_SERVER) or str(answer).startswith(_SAYS_SERVER)
        if isinstance(answer, ResponseError) and not about_server:
            return answer
        return unavailable(self.name, answer)
