"""The outbox in the database: one short coroutine for each statement; rows become values."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.foreign import fetch_foreign
from aiopgq._store.jobs import Asleep
from aiopgq._store.statements import statement
from aiopgq._words.observation import SeenBeat
from aiopgq._words.outbox_event import Event, EventInfo, Lag

__all__ = ["Events", "Writers", "add_event_foreign"]

# The slot of sleepers that belongs to relays; 0 to 15 are those of queues.
_SLOT: Final = 16
_ADD_TYPES: Final = ("text", "text", "text", "jsonb", "jsonb", "uuid")
_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_decode: Final[Callable[[str], Any]] = msgspec.json.Decoder().decode


class Writers(NamedTuple):
    """The last id drawn, and the unfinished transactions that added events, by shard."""

    newest: int
    by_shard: dict[int, set[str]]


class Events:
    """The statements about the outbox, on one line."""

    def __init__(self, line: Fetcher) -> None:
        self._line = line
        self._schema: str = line.settings.schema

    async def _fetch(self, doing: str, name: str, *args: Any) -> list[Any]:
        return await fetch_whole(self._line, doing, statement(name, self._schema), *args)

    async def _count(self, doing: str, name: str, *args: Any) -> int:
        [row] = await self._fetch(doing, name, *args)
        return int(row[0])

    # relays and their shards

    async def register(self, relay: UUID, name: str, host: str, pid: int, lease: float) -> None:
        """Announce a relay."""
        await self._fetch("register the relay", "register_relay", relay, name, host, pid, lease)

    async def beat(self, relay: UUID) -> tuple[bool, int]:
        """Beat once; return whether the relay is still known, and how many relays seem to live."""
        [row] = await self._fetch("beat", "relay_beat", relay)
        return bool(row[0]), int(row[1])

    async def beats(self) -> list[SeenBeat]:
        """Read the beats of all relays."""
        return [SeenBeat(*row) for row in await self._fetch("read the beats of relays", "relay_beats")]

    async def forget(self, relay: UUID, beat: int | None = None) -> bool:
        """Take a relay's shards from it; with a beat, only if it still stands."""
        [row] = await self._fetch("forget a relay", "forget_relay", relay, beat)
        return bool(row[0])

    async def take_shards(self, relay: UUID, limit: int) -> list[int]:
        """Take shards that nobody holds."""
        return [row[0] for row in await self._fetch("take shards", "take_shards", relay, limit)]

    async def give_shards(self, relay: UUID, shards: Sequence[int]) -> int:
        """Give shards back; return how many."""
        return await self._count("give shards back", "give_shards", relay, shards)

    # the line

    async def writers(self) -> Writers:
        """Read the last id drawn, and then who is still writing."""
        [(newest, shards, transactions)] = await self._fetch("look for unfinished transactions", "event_writers")
        by_shard: dict[int, set[str]] = {}
        for shard, transaction in zip(shards, transactions, strict=True):
            by_shard.setdefault(shard, set()).add(transaction)
        return Writers(newest, by_shard)

    async def next(self, bounds: Sequence[int], after: int, limit: int, size: int) -> list[tuple[Event, bool]]:
        """Read the next events, up to a number and about so many bytes, each with whether one before it is held."""
        rows = await self._fetch("read the outbox", "next_events", bounds, after, limit, size)
        return [(_event(row), row[2]) for row in rows]

    async def retrying(self, relay: UUID, limit: int) -> list[tuple[Event, float]]:
        """Read events that failed, each with the seconds until it is tried again."""
        rows = await self._fetch("read events that failed", "retrying_events", relay, limit)
        return [(_event(row), row[2]) for row in rows]

    async def mark_published(self, relay: UUID, ids: Sequence[int]) -> int:
        """Mark events that a broker has confirmed; return how many were still the relay's."""
        return len(await self._fetch("mark published events", "mark_published", relay, ids))

    async def hold(
        self, relay: UUID, ids: Sequence[int], errors: Sequence[str], delays: Sequence[float], most: int | None
    ) -> dict[int, str]:
        """Note that events failed; return what became of those that were still the relay's: retry or set aside."""
        rows = await self._fetch("hold events that failed", "hold_events", relay, ids, errors, delays, most)
        return {row[0]: row[1] for row in rows}

    async def block(self, relay: UUID, ids: Sequence[int]) -> int:
        """Take events out of the line that wait for one of their aggregate."""
        return await self._count("block events", "block_events", relay, ids)

    async def free(self, relay: UUID, limit: int) -> int:
        """Put events back into the line that wait for no other any more."""
        return await self._count("free blocked events", "free_events", relay, limit)

    async def prune(self, retention: float, limit: int, *, unpublished: bool = False) -> int:
        """Delete events published so many seconds ago; return how many."""
        return await self._count("prune the outbox", "prune_events", retention, limit, unpublished)

    # sleepers; what `_flow.wake.Sleeper` needs, for the one slot of relays

    async def fall_asleep(
        self, _slots: Sequence[int], seen: Sequence[int], seconds: float, lowered: Sequence[int] | None
    ) -> Asleep:
        """Raise the flag of relays for so many seconds; `lowered` is None if the flag seen is not trusted."""
        [row] = await self._fetch("raise the flag of a sleeper", "fall_asleep", [_SLOT], seen, seconds, lowered)
        return Asleep(*row)

    async def horizon_passed(self, horizon: int) -> bool:
        """Tell whether all transactions older than the horizon have ended."""
        [row] = await self._fetch("read the oldest transaction", "horizon_passed", horizon)
        return bool(row[0])

    async def wake_up(self, _slots: Sequence[int], flags: Sequence[int]) -> None:
        """Lower the flag if it still holds its value."""
        await self._fetch("lower the flag of a sleeper", "wake_up", [_SLOT], flags)

    async def leave_sleepers(self, _slots: Sequence[int], flags: Sequence[int], _queues: Sequence[str]) -> None:
        """Lower the flag if it still holds its value, and wake other relays that sleep by it."""
        await self._fetch("leave the sleepers", "leave_relays", flags[0])

    # look and mend

    async def lag(self) -> Lag:
        """Tell how far relays are behind."""
        [row] = await self._fetch("look at the outbox", "outbox_lag")
        return Lag(*row)

    async def find(
        self, status: str | None, aggregate_type: str | None, aggregate_id: str | None, limit: int
    ) -> Sequence[EventInfo]:
        """List events, oldest first."""
        rows = await self._fetch("list events", "outbox_events", status, aggregate_type, aggregate_id, limit)
        return [_info(row) for row in rows]

    async def retry(self, event_ids: Sequence[UUID] | None) -> Sequence[UUID]:
        """Let failed events be tried again at once; None: all. Returns those."""
        return [row[0] for row in await self._fetch("retry events", "retry_events", event_ids)]

    async def skip(self, event_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Give up events. Returns those."""
        return [row[0] for row in await self._fetch("skip events", "skip_events", event_ids)]


async def add_event_foreign(connection: Any, schema: str, row: Sequence[Any]) -> None:
    """Add an event in the caller's transaction, on his connection."""
    await fetch_foreign(connection, statement("add_event", schema), _ADD_TYPES, row)


def _event(row: Any) -> Event:
    return Event(
        row["id"],
        row["shard"],
        row["event_id"],
        row["aggregate_type"],
        row["aggregate_id"],
        row["event_type"],
        row["payload"],
        _headers(row["headers"]),
        row["created_at"],
        row["attempts"],
    )


def _headers(text: str) -> dict[str, str]:
    """Decode headers; SQL may have added some that are no strings, which go along as JSON."""
    found: dict[str, Any] = _decode(text)

    return {name: one if isinstance(one, str) else _encode(one).decode() for name, one in found.items()}


def _info(row: Any) -> EventInfo:
    fields = dict(row.items())
    # SQL may add what Python cannot nest; the list of events shows it all the same.
    with suppress(RecursionError):
        fields["payload"] = _decode(fields["payload"])
    fields["headers"] = _headers(fields["headers"])

    return EventInfo(**fields)
