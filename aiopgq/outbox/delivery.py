"""Deliver: events in line become confirmed messages, and confirmed messages become marks.

Events go in waves. A wave holds at most one event of each aggregate, and the next one of an aggregate goes only when
the one before it was confirmed; so whatever is lost, refused or cut off, an aggregate's first deliveries are in order.

If the process dies here, what was confirmed and not marked is published again by whoever holds its shard.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

from aiopgq._store.events import Events
from aiopgq._words.backoff import Backoff
from aiopgq._words.failure import describe
from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable
from aiopgq.outbox.publisher import Outcomes, Publisher

__all__ = ["Delivery"]

log = logging.getLogger("aiopgq.relay")

# An event, why it failed, and the ids of those of its aggregate that were to follow.
_Failed = tuple[Event, BaseException, list[int]]

_WAVE: Final = 500
_MARK: Final = 1000


class Delivery:
    """Delivers for one tenure.

    Args:
        relay: The id of the tenure; what it writes names it.
        events: The store.
        publisher: Where events go.
        timeout: Seconds a wave may take until the broker is taken to be away.
        backoff: When an event that failed is tried again.
        most: Set an event aside that failed so often; None: never.

    Attributes:
        published: Events that the broker confirmed.
        held: Whether events failed since somebody last set it to False.
        freed: Whether some no longer block their aggregate, since somebody last set it to False.
    """

    def __init__(
        self, relay: UUID, events: Events, publisher: Publisher, timeout: float, backoff: Backoff, most: int | None
    ) -> None:
        self._relay = relay
        self._events = events
        self._publisher = publisher
        self._timeout = timeout
        self._backoff = backoff
        self._most = most
        self._unmarked: list[int] = []
        self._marking: asyncio.Task[None] | None = None
        self._wave = _WAVE
        self.published = 0
        self.held = False
        self.freed = False

    async def deliver(self, due: Sequence[Event], found: Sequence[Event], holds: Callable[[], bool]) -> None:
        """Publish events, an aggregate's in their order.

        Args:
            due: Events that failed before; their aggregates are blocked behind them.
            found: Events in line.
            holds: Whether the relay still holds its shards.

        Raises:
            BrokerUnavailable: The broker takes nothing; what it confirmed before is marked.
            StoreError: PostgreSQL refused, or did not answer; `flush` tries to mark again.
        """
        again = {event.id for event in due}
        queues: dict[tuple[str, str], deque[Event]] = {}
        for event in (*due, *found):
            queues.setdefault(event.aggregate, deque()).append(event)
        try:
            while queues and holds():
                wave = [queue[0] for queue in islice(queues.values(), self._wave)]
                failed: list[_Failed] = []
                away: BaseException | None = None
                for event, outcome in zip(wave, await self._publish(wave), strict=True):
                    if isinstance(outcome, OSError):
                        # BrokerUnavailable and TimeoutError are such; nothing is known of the event itself.
                        away = outcome
                    elif outcome is None:
                        self._confirm(event)
                        self.freed = self.freed or event.id in again
                        queues[event.aggregate].popleft()
                        if not queues[event.aggregate]:
                            del queues[event.aggregate]
                    else:
                        behind = [one.id for one in queues.pop(event.aggregate) if one is not event]
                        failed.append((event, outcome, behind))
                if failed:
                    await self._hold(failed)
                if away is not None:
                    raise away if isinstance(away, BrokerUnavailable) else self._unavailable(away)
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Mark all that was confirmed.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        while self._unmarked or self._marking is not None:
            marking = self._marking or self._begin_marking()
            try:
                await asyncio.shield(marking)
            finally:
                if marking.done() and self._marking is marking:
                    self._marking = None

    async def abandon(self) -> None:
        """Mark nothing more; what is not marked is published again."""
        self._unmarked.clear()
        if self._marking is not None:
            self._marking.cancel()
            await asyncio.wait([self._marking])

    def _confirm(self, event: Event) -> None:
        self.published += 1
        self._unmarked.append(event.id)
        if self._marking is None or self._marking.done():
            self._begin_marking()

    def _begin_marking(self) -> asyncio.Task[None]:
        self._marking = asyncio.ensure_future(self._mark())
        # Whoever flushes sees the error.
        self._marking.add_done_callback(lambda done: done.cancelled() or done.exception())

        return self._marking

    async def _mark(self) -> None:
        """Mark what was confirmed, and what is confirmed meanwhile."""
        while self._unmarked:
            ids = sorted(self._unmarked[:_MARK])
            await self._events.mark_published(self._relay, ids)
            del self._unmarked[: len(ids)]

    async def _publish(self, wave: Sequence[Event]) -> Outcomes:
        try:
            return await self._attempt(wave)
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # a publisher is the user's code
            if len(wave) == 1:
                return [error]
        # One of them, or all? Each alone tells.
        outcomes: list[BaseException | None] = []
        for event in wave:
            try:
                outcomes += await self._publish([event])
            except BrokerUnavailable as error:
                # What was confirmed before is not forgotten.
                return [*outcomes, *[error] * (len(wave) - len(outcomes))]
        if all(outcome is not None for outcome in outcomes):
            raise BrokerUnavailable(self._name, f"all of {len(wave)} events fail: {outcomes[0]!r}") from outcomes[0]

        return outcomes

    async def _attempt(self, wave: Sequence[Event]) -> Outcomes:
        try:
            async with asyncio.timeout(self._timeout):
                outcomes = await self._publisher.publish(wave)
        except BrokerUnavailable:
            raise
        except TimeoutError as error:
            # What was confirmed of it is not known. A slow receiver would never be done with a wave of this size.
            self._wave = max(1, len(wave) // 2)
            raise self._unavailable(error) from error
        except OSError as error:
            raise self._unavailable(error) from error
        self._wave = min(_WAVE, self._wave * 2)
        if len(outcomes) != len(wave):
            raise BrokerUnavailable(self._name, f"gave {len(outcomes)} outcomes for {len(wave)} events")

        return outcomes

    def _unavailable(self, error: BaseException) -> BrokerUnavailable:
        return BrokerUnavailable(self._name, describe(error))

    @property
    def _name(self) -> str:
        return str(getattr(self._publisher, "name", type(self._publisher).__name__))

    async def _hold(self, failed: Sequence[_Failed]) -> None:
        """Note failures, block what is behind them; the aggregates of those that were set aside go on."""
        self.held = True
        ids = [event.id for event, _, _ in failed]
        errors = [describe(error) for _, error, _ in failed]
        delays = [self._backoff.delay(event.attempts + 1) for event, _, _ in failed]
        became = await self._events.hold(self._relay, ids, errors, delays, self._most)
        self.freed = self.freed or "set aside" in became.values()
        blocked = [one for event, _, behind in failed if became.get(event.id) == "retry" for one in behind]
        if blocked:
            await self._events.block(self._relay, blocked)
        for (event, _, _), error, delay in zip(failed, errors, delays, strict=True):
            what = f"{event.event_type} of {event.aggregate_type} {event.aggregate_id}"
            facts = {"event_id": str(event.event_id), "attempt": event.attempts + 1}
            if became.get(event.id) == "set aside":
                log.error("event %s is set aside: %s (python -m aiopgq outbox list)", what, error, extra=facts)
            else:
                log.warning("event %s failed, again in %.3g s: %s", what, delay, error, extra=facts)
