"""What an App does with calls: through the batcher, part by part or in one statement, if their queues have room."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Protocol

from aiopgq._flow.enqueue import DEADLINE, Attempt, Batcher
from aiopgq._flow.pressure import Count, Pressure
from aiopgq._store.jobs import Jobs
from aiopgq._store.new_rows import count_ready_foreign, enqueue_foreign
from aiopgq._words.job import NewJob
from aiopgq._words.pending import MaxPending
from aiopgq._words.unique import Standing
from aiopgq.call import Call, common_connection
from aiopgq.errors import ArgumentError
from aiopgq.handle import Home, JobHandle
from aiopgq.inflow import Inflow, Unpourable
from aiopgq.middleware import Chain

__all__ = ["Producer"]


class Supply(Protocol):
    """What an open App enqueues by."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def batcher(self) -> Batcher: ...

    def busy(self) -> AbstractContextManager[None]: ...

    async def pour(self, parts: Iterable[Sequence[NewJob]]) -> Attempt | None: ...

    async def insert(
        self, batch: Sequence[NewJob], *, once: bool, keep: bool, before: Attempt | None = None
    ) -> list[Standing]: ...


class ProducerHome(Home, Protocol):
    """What it needs of its App."""

    @property
    def schema(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    def supply(self, doing: str) -> Supply: ...


class Producer:
    """Enqueues the calls of one App.

    Args:
        home: The App.
        bounds: The queues that may not grow without end.
        chain: What goes around each enqueue.
    """

    def __init__(self, home: ProducerHome, bounds: Mapping[str, MaxPending], chain: Chain) -> None:
        self._home = home
        self._pressure = Pressure(bounds)
        self._bounded = bool(bounds)
        self._chain = chain

    async def many(self, calls: Iterable[Call[Any]], connection: Any) -> list[JobHandle[Any]]:
        """Enqueue calls in one transaction, all or none.

        Raises:
            ArgumentError: A call debounces without a delay. Nothing is enqueued.
            AiopgqError: What `App.enqueue_many` raises.
        """
        inflow = Inflow(self._home, calls)
        inflow.take()
        # What goes around an enqueue, and what looks for room, has to see all calls before the first is sent.
        apart = not self._bounded and not self._chain.around_enqueue
        if apart and connection is None and inflow.is_pourable:
            supply = self._home.supply("enqueue jobs")
            with supply.busy():
                return await self._pour(inflow, supply)
        inflow.take(None)

        return await self._whole(inflow.taken, connection)

    async def _pour(self, inflow: Inflow, supply: Supply) -> list[JobHandle[Any]]:
        """Enqueue calls part by part; if they cannot go so, all at once."""
        handles: list[JobHandle[Any]] = []
        before: Attempt | None = None
        with suppress(Unpourable):
            before = await supply.pour(self._jobs(inflow, handles))
            if before is None:
                return handles
        if inflow.failure is not None:
            raise inflow.failure
        if before is not None and before.maybe_committed:
            # Remembered by this very enqueue: whoever gets them is not told that they existed.
            for call in inflow.taken:
                call.once = False
        inflow.take(None)

        return await self._whole(inflow.taken, None, supply, before)

    def _jobs(self, inflow: Inflow, handles: list[JobHandle[Any]]) -> Iterator[list[NewJob]]:
        """Give the jobs of calls; make the handles of each part while it is being written."""
        for part in inflow.parts():
            yield [call.job for call in part]
            handles += [JobHandle(self._home, call.job.id, call.definition.codec) for call in part]
        # From here on they may be committed.
        _remember(inflow.taken)

    async def _whole(
        self, calls: Sequence[Call[Any]], connection: Any, supply: Supply | None = None, before: Attempt | None = None
    ) -> list[JobHandle[Any]]:
        connection = common_connection(calls, connection)
        if not calls:
            return []
        for call in calls:
            job = call.job
            debounces = job.unique is not None and job.unique.on_conflict == "debounce"
            if debounces and job.delay is None and job.run_at is None:
                raise ArgumentError(job.task, "unique", "debounce needs to know the delay; write options(delay=…).")

        return await self._chain.enqueue(calls, partial(self._insert, calls, connection, supply, before))

    async def _insert(
        self, calls: Sequence[Call[Any]], connection: Any, supply: Supply | None = None, before: Attempt | None = None
    ) -> list[JobHandle[Any]]:
        home = self._home
        if connection is None and supply is None:
            home.supply("enqueue jobs")
        dropped = await self._dropped(calls, connection) if self._bounded else set()
        batch = [call.job for number, call in enumerate(calls) if number not in dropped]
        once = any(call.once for call in calls) or len({job.id for job in batch}) < len(batch)
        _remember(calls)
        if not batch:
            standings = []
        elif connection is not None:
            standings = await enqueue_foreign(connection, home.schema, batch, once=once)
        else:
            standings = await (supply or home.supply("enqueue jobs")).insert(
                batch, once=once, keep=home.keeps_results, before=before
            )
        standing = iter(standings)

        return [
            _dropped(home, call) if number in dropped else _handle(home, call, next(standing), connection)
            for number, call in enumerate(calls)
        ]

    async def one(self, call: Call[Any]) -> JobHandle[Any]:
        """Enqueue one call; one without a key, an id and a connection goes through the batcher."""
        if call.connection is not None or call.once or call.job.unique is not None:
            [handle] = await self.many([call], call.connection)
            return handle
        if not self._chain.around_enqueue:
            return await self._gather(call)
        [handle] = await self._chain.enqueue([call], partial(self._gathered, call))

        return handle

    async def _gathered(self, call: Call[Any]) -> list[JobHandle[Any]]:
        if call.once:
            # Middleware that goes on again after an error gets the job of its first try, if there is one.
            return await self._insert([call], None)
        call.once = True

        return [await self._gather(call)]

    async def _gather(self, call: Call[Any]) -> JobHandle[Any]:
        supply = self._home.supply("enqueue a job")
        if self._bounded and await self._dropped([call], None):
            return _dropped(self._home, call)
        await supply.batcher.add(call.job)

        return JobHandle(self._home, call.job.id, call.definition.codec)

    async def _dropped(self, calls: Sequence[Call[Any]], connection: Any) -> set[int]:
        """Find room for calls; return the places of those that are dropped.

        Raises:
            QueueFull: There is no room for the calls of some queue; none is to be enqueued.
        """
        wanted = Counter(call.job.queue for call in calls if self._pressure.on(call.job.queue))
        count: Count = self._count
        if connection is not None and not self._home.is_open:
            count = partial(count_ready_foreign, connection, self._home.schema)
        room = {
            queue: await self._pressure.admit(queue, jobs, count, may_wait=connection is None)
            for queue, jobs in wanted.items()
        }
        dropped = set()
        for number, call in enumerate(calls):
            queue = call.job.queue
            if queue in room:
                room[queue] -= 1
                if room[queue] < 0:
                    dropped.add(number)

        return dropped

    async def _count(self, queue: str, limit: int) -> int:
        async with asyncio.timeout(DEADLINE):
            return await self._home.supply("count ready jobs").jobs.ready(queue, limit)


def _remember(calls: Iterable[Call[Any]]) -> None:
    """Let whoever enqueues the same calls again, after a lost answer say, get the same jobs."""
    for call in calls:
        call.once = True


def _handle(home: Home, call: Call[Any], standing: Standing, connection: Any) -> JobHandle[Any]:
    codec = call.definition.codec
    return JobHandle(home, standing.id, codec, existing=standing.verdict != "new", connection=connection)


def _dropped(home: Home, call: Call[Any]) -> JobHandle[Any]:
    return JobHandle(home, call.job.id, call.definition.codec, dropped=True)
