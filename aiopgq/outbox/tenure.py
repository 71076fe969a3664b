"""One tenure of a relay: it holds shards under an id never used again, as long as its lease holds.

Reads the line, has it delivered, sleeps. If the process dies here, its shards are taken by another relay once that
has itself seen it silent for a whole lease; what was published and not marked is published again.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
from dataclasses import dataclass
from typing import Any, Final

import anyio

from aiopgq._flow.listen import keep_listening
from aiopgq._flow.wake import Sleeper
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.events import Events
from aiopgq._store.patience import Patience, comes
from aiopgq._words.backoff import Backoff
from aiopgq._words.clock import monotonic, uuid7
from aiopgq._words.horizon import SHARDS, Horizon
from aiopgq._words.observation import Observation
from aiopgq._words.outbox_event import Event
from aiopgq.errors import BrokerUnavailable, StoreError
from aiopgq.outbox.delivery import Delivery
from aiopgq.outbox.publisher import Publisher

__all__ = ["Conduct", "Tenure"]

log = logging.getLogger("aiopgq.relay")

_TOPIC: Final = "outbox"
_MENDED: Final = "mended"
_FAREWELL: Final = 2.0
_BATCH: Final = 1000
_BATCH_BYTES: Final = 8 * 1024 * 1024
_FREE: Final = 5000
_PRUNE: Final = 5000
_PRUNE_INTERVAL: Final = 60.0
# The line is read from its very start now and then: a net, for events that somebody mended while nobody listened.
_SWEEP: Final = 30.0
# Not zero: a machine may have been up for less than a sweep.
_NEVER: Final = -math.inf
# What waits for an unfinished transaction is announced by nobody if that rolls back.
_LOOK_FOR_WRITERS: Final = 0.25
_BURST_PAUSE: Final = 0.05
_FENCE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a relay behaves; `jobs.outbox.relay` explains each."""

    name: str | None
    burst: bool
    most: int | None
    backoff: Backoff
    lease: float
    poll_interval: float
    publish_timeout: float
    longest_pause: float
    retention: float

    @property
    def beat_interval(self) -> float:
        """Seconds between beats: four in a lease at least."""
        return min(2.0, self.lease / 5)


class Tenure:
    """One tenure, from its registration to its last mark.

    Args:
        name: Of the relay, for logs.
        connect: Where the database is.
        listen: Where notifications come from.
        publisher: Where events go.
        conduct: How the relay behaves.

    Attributes:
        lost: Why its lease is over; None while it holds.
    """

    def __init__(
        self, name: str, connect: ConnectSettings, listen: ConnectSettings, publisher: Publisher, conduct: Conduct
    ) -> None:
        self.id = uuid7()
        self.lost: str | None = None
        self._name = name
        self._listen = listen
        self._conduct = conduct
        self._line = Line(connect, "relay")
        self._beat_line = Line(connect, "relay beat")
        self._events = Events(self._line)
        self._beats = Events(self._beat_line)
        self._horizon = Horizon()
        self._observation = Observation(conduct.lease)
        # A shard held, and up to which id all is done there.
        self._done: dict[int, int] = {}
        self._surplus: list[int] = []
        # One changes hands at a time; unsure: whether the table agrees about what is held.
        self._changing = asyncio.Lock()
        self._unsure = False
        self._compared_at = monotonic()
        self._relays = 1
        self._deadline = 0.0
        self._stopping = asyncio.Event()
        self._retry_at = 0.0
        self._swept_at = _NEVER
        self._delivery = Delivery(
            self.id, self._events, publisher, conduct.publish_timeout, conduct.backoff, conduct.most
        )
        self._sleeper = Sleeper(
            self._events, [_TOPIC], conduct.poll_interval, self._next_due, lambda: max(1, self._relays)
        )

    @property
    def published(self) -> int:
        """Events that the broker confirmed."""
        return self._delivery.published

    @property
    def holds(self) -> bool:
        """Whether nobody can have taken its shards yet."""
        return self.lost is None and monotonic() < self._deadline

    @property
    def _may_publish(self) -> bool:
        return self.holds and not self._stopping.is_set()

    def stop(self) -> None:
        """Publish nothing more, and let `serve` return."""
        self._stopping.set()
        self._sleeper.nudge()

    async def begin(self) -> None:
        """Announce the relay and take its share.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        try:
            sent = monotonic()
            await self._beats.register(self.id, self._name, socket.gethostname(), os.getpid(), self._conduct.lease)
            self._deadline = sent + _FENCE * self._conduct.lease
            await self._beat()
        except BaseException:
            # It is given up, and another made: its connection must not stay behind.
            await self._beat_line.close()
            raise
        log.info("relay %s holds %d of %d shards", self._name, len(self._done), SHARDS)

    async def serve(self) -> None:
        """Publish until told to stop, the lease is lost, or with burst nothing is left."""
        deaf = asyncio.Event()
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(keep_listening, self._listen, (_TOPIC,), self._heard, self._hearing, deaf)
                beside.start_soon(self._keep_beating)
                beside.start_soon(self._keep_pruning)
                try:
                    await self._work()
                finally:
                    deaf.set()
                    beside.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._leave()

    async def _leave(self) -> None:
        """Take the flag down, give the shards back; good manners only, so a database that hangs is not waited for."""
        for goodbye in (self._delivery.flush, self._sleeper.leave, self._forget):
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await goodbye()
        await self._delivery.abandon()
        await self._line.close()
        await self._beat_line.close()

    async def _forget(self) -> None:
        await self._beats.forget(self.id)

    # the line

    async def _work(self) -> None:
        patience = Patience(log, "read the outbox")
        broker = Patience(log, "publish events", self._conduct.longest_pause)
        while not self._stopping.is_set():
            if not self.holds:
                self.lost = self.lost or "no beat was acknowledged for nine tenths of the lease"
                log.warning("relay %s has lost its lease: %s", self._name, self.lost)
                return
            before = self.published
            try:
                if not await self._look():
                    if self._conduct.burst:
                        if await self._nothing_left():
                            return
                        await comes(self._stopping, _BURST_PAUSE)
                    else:
                        await self._sleeper.rest(self._look)
                patience.worked()
            except StoreError as error:
                await comes(self._stopping, patience.failed(error))
            except BrokerUnavailable as error:
                if self.published > before:
                    broker.worked()
                await comes(self._stopping, broker.failed(error))
            else:
                if self.published > before:
                    broker.worked()

    async def _look(self) -> bool:
        """Publish what is in line; True if there was something, or no time for it."""
        self._sleeper.looking()
        if not self._may_publish:
            return True
        await self._delivery.flush()
        await self._give()
        if self._delivery.freed:
            await self._free()
            self._delivery.freed = False
        if monotonic() - self._swept_at > _SWEEP:
            await self._sweep()
        shards = dict(self._done)
        if not shards:
            return False
        newest, writers = await self._events.writers()
        bounds = self._horizon.read(newest, writers, shards)
        found = await self._events.next(bounds, min(shards.values()), _BATCH, _BATCH_BYTES)
        self._sleeper.lower_flags(found=bool(found))
        # Who was given a shard meanwhile is another's; what was taken meanwhile was not asked for.
        blocked = [event.id for event, is_blocked in found if is_blocked]
        if blocked:
            await self._events.block(self.id, blocked)
        due = await self._due()
        await self._delivery.deliver(
            due, [event for event, is_blocked in found if not is_blocked], lambda: self._may_publish
        )
        if not self._may_publish:
            return True
        reach = found[-1][0].id if found else newest
        for shard in shards:
            if shard in self._done:
                self._done[shard] = max(self._done[shard], min(bounds[shard], reach))
        if self._delivery.held:
            self._delivery.held = False
            self._retry_at = monotonic()

        return bool(found or due)

    async def _nothing_left(self) -> bool:
        """Tell whether there is nothing to publish but what failed, here or at other relays."""
        lag = await self._events.lag()

        return lag.unpublished == lag.retrying + lag.blocked

    async def _due(self) -> list[Event]:
        """Return the events that failed and are to be tried again now."""
        if not self._retry_at or monotonic() < self._retry_at:
            return []
        retrying = await self._events.retrying(self.id, _BATCH)
        later = [wait for _, wait in retrying if wait > 0]
        self._retry_at = monotonic() + later[0] if later else 0.0
        due = [event for event, wait in retrying if wait <= 0 and event.shard in self._done]
        if due:
            # Until it is known what became of them.
            self._retry_at = monotonic()

        return due

    async def _sweep(self) -> None:
        """Begin at the start: whatever was mended, freed or missed is met again."""
        self._retry_at = monotonic()
        # Before, not after: what is mended meanwhile asks for another.
        self._swept_at = monotonic()
        try:
            await self._free()
        except StoreError:
            self._swept_at = _NEVER
            raise

    async def _free(self) -> None:
        while await self._events.free(self.id, _FREE) == _FREE:
            pass
        self._done = dict.fromkeys(self._done, 0)

    def _next_due(self) -> float | None:
        """Return the seconds until something is to be done that nobody announces."""
        waits = [_SWEEP + self._swept_at - monotonic()]
        if self._retry_at:
            waits.append(self._retry_at - monotonic())

        if self._horizon.waiting:
            waits.append(_LOOK_FOR_WRITERS)

        return max(0.0, min(waits))

    def _heard(self, _topic: str, payload: str) -> None:
        if payload == _MENDED:
            self._swept_at = _NEVER
        self._sleeper.heard(_TOPIC)

    def _hearing(self, hears: bool) -> None:
        self._sleeper.hearing(deaf=not hears)

    # the share

    async def _keep_beating(self) -> None:
        patience = Patience(log, "beat")
        while self.lost is None:
            await asyncio.sleep(self._conduct.beat_interval)
            try:
                await self._beat()
                await self._watch()
            except StoreError as error:
                self._observation.start_anew()
                patience.failed(error)
            else:
                patience.worked()

    async def _beat(self) -> None:
        """Beat, and see that the share is fair."""
        sent = monotonic()
        alive, relays = await self._beats.beat(self.id)
        if not alive:
            self.lost = "another relay took its shards"
            self._sleeper.nudge()
            return
        self._deadline = sent + _FENCE * self._conduct.lease
        if relays != self._relays:
            self._relays = relays
        if self._changing.locked():
            # The line gives some away just now; the next beat comes soon, and must not wait for that.
            return
        await self._agree()
        fair = math.ceil(SHARDS / max(1, relays))
        held = len(self._done)
        if held < fair:
            await self._take(fair - held)
        elif held > fair:
            self._surplus = sorted(self._done)[fair:]
            self._sleeper.nudge()

    async def _watch(self) -> None:
        """Take the shards from relays that this one has seen silent for a whole lease."""
        began = monotonic()
        reading: list[Any] = [seen for seen in await self._beats.beats() if seen.id != self.id]
        for silent in self._observation.silent(reading, began, monotonic()):
            if await self._beats.forget(silent.id, silent.beat):
                log.warning("relay %s is dead: its shards are taken by others", silent.name)

    async def _take(self, most: int) -> None:
        async with self._changing:
            # Until the answer is there: a shard that was taken and is not known of would be published by nobody.
            self._unsure = True
            taken = await self._beats.take_shards(self.id, most)
            self._unsure = False
            if taken:
                self._done.update(dict.fromkeys(taken, 0))
                self._swept_at = _NEVER
                self._sleeper.nudge()

    async def _give(self) -> None:
        """Give surplus shards to other relays; nothing of them is under way here."""
        surplus, self._surplus = self._surplus, []
        if surplus:
            async with self._changing:
                surplus = [shard for shard in surplus if self._done.pop(shard, None) is not None]
                self._horizon = Horizon()
                self._unsure = True
                await self._events.give_shards(self.id, surplus)
                self._unsure = False

    async def _agree(self) -> None:
        """Give back what the table says is held and this relay does not know of: an answer was lost."""
        if self._unsure or monotonic() - self._compared_at > _SWEEP:
            async with self._changing:
                unknown = [shard for shard in range(SHARDS) if shard not in self._done]
                if given := await self._beats.give_shards(self.id, unknown):
                    log.info("relay %s gave back %d shards it did not know it held", self._name, given)
                self._unsure, self._compared_at = False, monotonic()

    async def _keep_pruning(self) -> None:
        patience = Patience(log, "prune the outbox")
        while True:
            try:
                while await self._beats.prune(self._conduct.retention, _PRUNE) == _PRUNE:
                    pass
            except StoreError as error:
                patience.failed(error)
            else:
                patience.worked()
            await asyncio.sleep(_PRUNE_INTERVAL)
