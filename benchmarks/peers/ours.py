"""aiopgq, with its defaults: the archive is on."""

from collections.abc import Sequence
from typing import ClassVar

import asyncpg

from aiopgq import App
from benchmarks.peers.protocol import Peer, Standing, ran


class Ours(Peer):
    """aiopgq through its public face."""

    packages: ClassVar = ("aiopgq", "asyncpg", "uvloop")

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._jobs: App[None] = App(dsn)

        @self._jobs.task(name="bench.noop")
        async def noop(number: int) -> None:
            ran()

        self._noop = noop

    async def install(self) -> None:
        await self._jobs.migrate()

    async def open(self, connections: int) -> None:
        await self._jobs.__aenter__()
        self._looking = await asyncpg.connect(self.dsn)

    async def enqueue(self, number: int) -> None:
        await self._noop.enqueue(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._jobs.enqueue_many(self._noop.call(number) for number in numbers)

    async def work(self, concurrency: int) -> None:
        await self._jobs.worker(concurrency=concurrency, job_log=False).run()

    async def standing(self) -> Standing:
        if await self._looking.fetchval("SELECT EXISTS (SELECT FROM aiopgq.jobs)"):
            return Standing(await self._looking.fetchval("SELECT count(*) FROM aiopgq.jobs"), None)
        return Standing(
            0, await self._looking.fetchval("SELECT count(*) FROM aiopgq.archive WHERE status = 'completed'")
        )


PEER = Ours
