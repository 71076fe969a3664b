"""Raw asyncpg with our tables and statements: what no framework around them could do. A floor, not a queue to use."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import asyncpg

from aiopgq import App
from benchmarks import raw
from benchmarks.peers.protocol import Peer, Standing, ran


class Floor(Peer):
    """The plainest INSERTs; a loop that claims on one connection while it completes on another."""

    packages: ClassVar = ("asyncpg", "uvloop")

    async def install(self) -> None:
        await App(self.dsn).migrate()

    async def open(self, connections: int) -> None:
        self._looking = await asyncpg.connect(self.dsn)
        self._alone = await asyncpg.connect(self.dsn) if connections == 1 else None
        self._pool = await asyncpg.create_pool(self.dsn, min_size=connections, max_size=connections)

    async def enqueue(self, number: int) -> None:
        if self._alone is not None:
            await raw.insert_notifying(self._alone)
        else:
            await raw.insert_one(self._pool)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        connection = self._alone or self._looking
        await raw.insert_batch(connection, len(numbers))

    async def work(self, concurrency: int) -> None:
        woken = asyncio.Event()
        lane = raw.Lane(concurrency)
        completing: asyncio.Task[None] | None = None
        async with raw.connected(self.dsn) as listening, raw.connected(self.dsn) as one, raw.connected(self.dsn) as two:
            await listening.add_listener(raw.CHANNEL, lambda *_: woken.set())
            while True:
                while claimed := await lane.claim(one):
                    for _ in claimed.ids:
                        ran()
                    if completing is not None:
                        await completing
                    completing = asyncio.create_task(raw.complete(two, claimed))
                await woken.wait()
                woken.clear()

    async def standing(self) -> Standing:
        unfinished = await self._looking.fetchval("SELECT count(*) FROM aiopgq.jobs")
        if unfinished:
            return Standing(unfinished, None)
        return Standing(
            0, await self._looking.fetchval("SELECT count(*) FROM aiopgq.archive WHERE status = 'completed'")
        )


PEER = Floor
