"""Publish by HTTP POST; needs the extra `webhook`."""

import asyncio
import base64
import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable
from aiopgq.outbox.publisher import Envelope, Outcomes, plain, unavailable

__all__ = ["WebhookPublisher", "WebhookRefused", "sign"]

_AWAY: Final = frozenset([429, 502, 503, 504])
_SUCCESS: Final = range(200, 300)
_DRIPPING: Final = 2
# The name of a header that HTTP cannot carry is a ValueError or a LocalProtocolError.
_ABOUT_EVENT: Final = (
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    httpx.LocalProtocolError,
    httpx.DecodingError,
    httpx.TooManyRedirects,
    ValueError,
)
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]|%|^ | $")


class WebhookRefused(Exception):
    """The receiver answered, but not with success.

    Attributes:
        status: The status of its answer.
    """

    def __init__(self, status: int, said: str) -> None:
        self.status = status
        super().__init__(f"the receiver answered {status}: {said[:200]}")


class WebhookPublisher:
    """Posts each event to a URL, signed as Standard Webhooks say: webhook-id, webhook-timestamp, webhook-signature.

    Any 2xx confirms. 429, 502, 503, 504 and a connection that cannot be made mean that the receiver is away; any
    other answer, a redirection too, or none in time, is about the event. Headers are ASCII: other characters in their
    values, and `%`, are percent-encoded as UTF-8.

    Args:
        url: Where to post.
        secret: What the signature is made with; the receiver has the same.
        timeout: Seconds the receiver has to answer. Default 10.
        concurrency: How many requests may be under way. Default 20.
        envelope: Gives the message of an event. Default: the payload, with headers.
        options: Further keyword arguments for `httpx.AsyncClient`.

    Example:
        >>> jobs.outbox.relay(WebhookPublisher("https://example.com/events", secret=os.environ["HOOK_SECRET"]))
    """

    name = "the webhook"

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes,
        timeout: float = 10.0,
        concurrency: int = 20,
        envelope: Envelope = plain,
        **options: Any,
    ) -> None:
        self._url = url
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._timeout = timeout
        self._envelope = envelope
        self._free = asyncio.Semaphore(concurrency)
        self._options = options
        self._client: Any = None

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout, **self._options)
        outcomes = await asyncio.gather(*map(self._post, events))
        if len(outcomes) > 1 and all(isinstance(outcome, httpx.TimeoutException) for outcome in outcomes):
            raise BrokerUnavailable(self.name, "no answer in time to any of several events")

        return outcomes

    async def close(self) -> None:
        """Close the connections; the next event opens them again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, event: Event) -> BaseException | None:
        message = self._envelope(event)
        moment = int(time.time())
        headers = {
            **{name: _UNPRINTABLE.sub(_percent, one) for name, one in message.headers.items()},
            "Content-Type": message.content_type,
            "webhook-id": str(event.event_id),
            "webhook-timestamp": str(moment),
            "webhook-signature": sign(self._secret, str(event.event_id), moment, message.body),
        }
        async with self._free:
            try:
                # Each read and write has its time; a receiver that drips would have it for ever.
                async with asyncio.timeout(_DRIPPING * self._timeout):
                    answer = await self._client.post(self._url, content=message.body, headers=headers)
            except TimeoutError:
                return httpx.ReadTimeout("the answer was not complete in time")
            except _ABOUT_EVENT as error:
                return error
            except httpx.TransportError as error:
                return unavailable(self.name, error)

        return self._judged(answer)

    def _judged(self, answer: httpx.Response) -> BaseException | None:
        if answer.status_code in _SUCCESS:
            return None
        if answer.status_code in _AWAY:
            return BrokerUnavailable(self.name, f"it answered {answer.status_code}")

        return WebhookRefused(answer.status_code, answer.text)


def sign(secret: bytes, event_id: str, moment: int, body: bytes) -> str:
    """Return the signature of a message, `v1,` and the base64 of an HMAC-SHA256 over id, moment and body.

    Args:
        secret: What both sides know.
        event_id: The header webhook-id.
        moment: The header webhook-timestamp, seconds since 1970. Receivers refuse old ones.
        body: The bytes of the body.
    """
    signed = hmac.new(secret, f"{event_id}.{moment}.".encode() + body, hashlib.sha256)

    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def _percent(hit: re.Match[str]) -> str:
    return "%20" if hit[0] == " " else quote(hit[0], safe="")
