"""oban, its open-source part: psycopg in C, a pool of ten, default intervals."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from oban import Oban, worker
from oban.schema import install
from psycopg import AsyncConnection

from benchmarks.peers.protocol import Peer, Standing, ran


class Noop:
    """The job; oban finds it by its name."""

    async def process(self, job: Any) -> None:
        """Do nothing."""
        ran()


class ObanPeer(Peer):
    """oban; a queue's limit is the concurrency."""

    packages: ClassVar = ("oban", "psycopg", "psycopg-binary", "uvloop")

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._noop: Any = worker(queue="default")(Noop)

    async def install(self) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=1, max_size=1)
        await install(pool)
        await pool.close()

    async def open(self, connections: int) -> None:
        self._looking = await AsyncConnection.connect(self.dsn, autocommit=True)
        pool = await Oban.create_pool(self.dsn, min_size=connections, max_size=connections)
        self._oban = Oban(pool=pool)

    async def enqueue(self, number: int) -> None:
        await self._oban.enqueue(self._noop.new({"number": number}))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._oban.enqueue_many([self._noop.new({"number": number}) for number in numbers])

    async def work(self, concurrency: int) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=10, max_size=10)
        async with Oban(pool=pool, queues={"default": concurrency}):
            await asyncio.Event().wait()

    async def standing(self) -> Standing:
        found = await self._looking.execute(
            "SELECT count(*) FILTER (WHERE state <> 'completed'), count(*) FILTER (WHERE state = 'completed')"
            " FROM oban_jobs"
        )
        unfinished, finished = await found.fetchone()
        return Standing(unfinished, finished)


PEER = ObanPeer
