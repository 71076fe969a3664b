"""Publish to NATS JetStream; needs the extra `nats`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import nats
import nats.errors
import nats.js.errors

from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable
from aiopgq.outbox.publisher import Envelope, Outcomes, Route, Settings, plain, topic, unavailable

__all__ = ["NatsPublisher", "NatsRefused", "NoStream"]

_NO_RESPONDERS: Final = "503"
# Below it, an error of the server is about the message.
_SERVER_ERROR: Final = 500
_NO_TOKENS: Final = ("", "*", ">")


class NatsRefused(Exception):
    """JetStream refused a message.

    Attributes:
        code: The code it gave, like those of HTTP.
    """

    def __init__(self, code: int, said: str) -> None:
        self.code = code
        super().__init__(f"JetStream answered {code}: {said}")


class NoStream(Exception):
    """No stream takes the subject; make one, or see whether JetStream is enabled.

    Attributes:
        subject: The subject.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no stream takes subject {subject!r}")


# What is wrong with one message, as the client or the server sees it.
_REFUSALS: Final = (
    NatsRefused,
    NoStream,
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
    nats.errors.MaxPayloadError,
)


class NatsPublisher:
    """Publishes to a JetStream stream that takes the subjects, and waits for its confirmation.

    The event id goes along as `Nats-Msg-Id`, so that the stream drops what it got within its duplicate window.
    A reconnect is never left to the client: it would send what it had kept after what was sent meanwhile.

    Args:
        servers: One URL or several.
        route: Gives the subject of an event. Default: `outbox.event.<aggregate type>`.
        envelope: Gives the message of an event. Default: the payload, with headers.
        timeout: Seconds the server has to confirm. Default 5.
        options: Further keyword arguments for `nats.connect`.

    Example:
        >>> jobs.outbox.relay(NatsPublisher("nats://localhost:4222"))
    """

    name = "NATS"

    def __init__(
        self,
        servers: str | list[str] = "nats://localhost:4222",
        *,
        route: Route = topic,
        envelope: Envelope = plain,
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        self._servers = servers
        self._settings = Settings(route, envelope, timeout)
        self._options = options
        self._client: Any = None
        self._inbox = ""
        self._sent = 0
        self._waiting: dict[str, tuple[str, asyncio.Future[None]]] = {}

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        await self._connect()
        try:
            sent = [await self._send(event) for event in events]
            # The connection may have been lost while they were sent.
            if self._client.is_closed:
                await self._lost()
            if waiting := [one for one in sent if isinstance(one, asyncio.Future)]:
                await asyncio.wait(waiting, timeout=self._settings.timeout)
            outcomes = [_outcome(one) for one in sent]
        except (nats.errors.Error, OSError) as error:
            await self.close()
            raise unavailable(self.name, error) from error
        except BaseException:
            # Who is cancelled leaves confirmations behind that nobody reads.
            await self.close()
            raise

        return await self._judged(outcomes)

    async def close(self) -> None:
        """Close the connection; the next event opens it again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        self._waiting.clear()

    async def _connect(self) -> None:
        if self._client is not None and self._client.is_connected:
            return
        await self.close()
        try:
            self._client = await nats.connect(
                self._servers,
                allow_reconnect=False,
                connect_timeout=max(1, int(self._settings.timeout)),
                error_cb=_ignore,
                closed_cb=self._lost,
                disconnected_cb=self._lost,
                **self._options,
            )
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(f"{self._inbox}.*", cb=self._heard)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await self.close()
            raise unavailable(self.name, error) from error

    async def _send(self, event: Event) -> asyncio.Future[None] | BaseException:
        try:
            message = self._settings.envelope(event)
            subject = self._settings.route(event)
            headers = {
                **message.headers,
                "Content-Type": message.content_type,
                "Nats-Msg-Id": str(event.event_id),
            }
            _check(subject, message.body, headers, self._client.max_payload)
        except _REFUSALS as error:
            return error
        self._sent += 1
        token, future = str(self._sent), asyncio.get_running_loop().create_future()
        self._waiting[token] = subject, future
        try:
            await self._client.publish(subject, message.body, reply=f"{self._inbox}.{token}", headers=headers)
        except _REFUSALS as error:
            del self._waiting[token]
            return error

        return future

    async def _heard(self, message: Any) -> None:
        """Take a confirmation, or a refusal."""
        subject, future = self._waiting.pop(message.subject.rpartition(".")[2], ("", None))
        if future is None or future.done():
            return
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            future.set_exception(NoStream(subject))
            return
        try:
            answer = msgspec.json.decode(message.data, type=_Answer)
        except msgspec.DecodeError:
            answer = _Answer()
        if answer.error is not None:
            future.set_exception(NatsRefused(answer.error.code, answer.error.description))
        elif answer.stream:
            future.set_result(None)
        else:
            # Somebody else who listens to the subject; what he says does not mean that it is stored.
            self._waiting[message.subject.rpartition(".")[2]] = subject, future

    async def _lost(self) -> None:
        """Wait no longer for confirmations that cannot come."""
        while self._waiting:
            _, (_, future) = self._waiting.popitem()
            if not future.done():
                future.set_exception(nats.errors.ConnectionClosedError())
                # Whoever has given up waiting does not look any more.
                future.exception()

    async def _judged(self, outcomes: list[BaseException | None]) -> Outcomes:
        """Tell what is wrong with an event from what is wrong with the broker."""
        # A server that starts has no stream for anything either, but nor does it answer questions about streams.
        first = outcomes[0]
        nobody_listens = all(isinstance(outcome, NoStream) for outcome in outcomes) and not (
            isinstance(first, NoStream) and await self._knows_none(first.subject)
        )
        judged: list[BaseException | None] = []
        for outcome in outcomes:
            busy = isinstance(outcome, NatsRefused) and outcome.code >= _SERVER_ERROR
            if outcome is None or (isinstance(outcome, _REFUSALS) and not nobody_listens and not busy):
                judged.append(outcome)
            else:
                judged.append(unavailable(self.name, outcome))
        if any(isinstance(outcome, BrokerUnavailable) for outcome in judged):
            await self.close()

        return judged

    async def _knows_none(self, subject: str) -> bool:
        """Tell whether JetStream itself says that no stream takes a subject."""
        try:
            await self._client.jetstream(timeout=self._settings.timeout).find_stream_name_by_subject(subject)
        except nats.js.errors.NotFoundError:
            return True
        except (nats.errors.Error, OSError):
            return False

        return False


class _Error(msgspec.Struct):
    code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    """What JetStream answers to a message."""

    stream: str = ""
    error: _Error | None = None


def _check(subject: str, body: bytes, headers: Mapping[str, str], limit: int) -> None:
    """Check what the client does not: the server would close the connection, or store what nobody finds.

    Raises:
        BadSubjectError: It is a pattern, or has an empty part.
        MaxPayloadError: With its headers it is larger than the server takes.
    """
    if any(token in _NO_TOKENS for token in subject.split(".")):
        raise nats.errors.BadSubjectError
    told = "".join(f"{name}: {one}\r\n" for name, one in headers.items())
    if len(body) + len(f"NATS/1.0\r\n{told}\r\n".encode()) > limit:
        raise nats.errors.MaxPayloadError


def _outcome(sent: asyncio.Future[Any] | BaseException) -> BaseException | None:
    if isinstance(sent, BaseException):
        return sent
    if not sent.done():
        return TimeoutError("no confirmation in time")
    return sent.exception()


async def _ignore(_error: Exception) -> None:
    """What goes wrong is seen where it matters: by who waits for a confirmation."""
