"""An event: something that happened to an aggregate, to be told to the world in the order it happened."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from aiopgq._words import hooks, lossless
from aiopgq._words.lossless import Lossy, type_name
from aiopgq._words.plan import fault
from aiopgq.errors import ConfigError

__all__ = ["Event", "EventInfo", "Lag", "encode_payload"]

_decode: Final[Callable[[str], Any]] = msgspec.json.Decoder().decode
_JSON: Final = (str, int, float, bool, type(None), dict, list, tuple)


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a publisher gets it.

    Attributes:
        id: Its place in the outbox; within an aggregate, events are published in this order.
        shard: The shard of its aggregate.
        event_id: The same each time it is published, so that whoever receives it twice can tell.
        aggregate_type: What kind of thing it is about, `order` for example.
        aggregate_id: Which one.
        event_type: What happened, `OrderPlaced` for example.
        payload: What is told, as JSON text.
        headers: What goes along.
        created_at: When it was added.
        attempts: How often publishing it has failed.
    """

    id: int
    shard: int
    event_id: UUID
    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: str
    headers: dict[str, str]
    created_at: datetime
    attempts: int

    @property
    def aggregate(self) -> tuple[str, str]:
        """The aggregate: its type and id."""
        return self.aggregate_type, self.aggregate_id

    def decoded(self) -> Any:
        """Return the payload as plain JSON values."""
        return _decode(self.payload)


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event as an operator sees it.

    Attributes:
        status: waiting, retry (failed, tried again at `retry_at`), blocked (behind such a one of its aggregate),
            set aside, published or skipped.
        payload: What is told, as plain JSON values; as JSON text where SQL added what is nested too deeply for Python.
    """

    id: int
    event_id: UUID
    status: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: Any
    headers: dict[str, str]
    created_at: datetime
    published_at: datetime | None
    retry_at: datetime | None
    attempts: int
    last_error: str | None


class Lag(NamedTuple):
    """How far the relays are behind.

    Attributes:
        unpublished: Events to be published, those that failed and wait for another try among them.
        oldest_seconds: The age of the oldest of them; None if there is none.
        retrying: Events that failed and are tried again.
        blocked: Events that wait behind one of their aggregate that failed.
        set_aside: Events given up until somebody retries or skips them.
        relays: Relays that seem to live.
    """

    unpublished: int
    oldest_seconds: float | None
    retrying: int
    blocked: int
    set_aside: int
    relays: int


def encode_payload(value: Any, limit: int) -> str:
    """Encode what is told: JSON values, msgspec Structs, dataclasses, pydantic models.

    Args:
        value: What is told.
        limit: The most bytes of UTF-8 the text may have.

    Raises:
        ConfigError: JSON or PostgreSQL cannot hold it, or it is too large.
    """
    kind = type(value)
    try:
        found = lossless.unstorable(value, "payload", hooks.encode) if isinstance(value, _JSON) else None
        if found is not None:
            raise found  # noqa: TRY301  # told below, like what encoding finds
        raw = lossless.storable(hooks.encode((hooks.ANYTHING if kind in _JSON else hooks.shape(kind)).dump(value)))
    except Lossy as error:
        raise ConfigError(error.path or "payload", error.reason) from None
    except Exception as error:  # noqa: BLE001  # encoding runs the caller's own classes
        raise ConfigError("payload", f"{type_name(value)} cannot be encoded: {fault(error)[1]}") from None
    if len(raw) > limit:
        raise ConfigError("payload", f"has {len(raw):,} bytes of JSON, the limit is {limit:,}; send a reference")

    return raw.decode()
