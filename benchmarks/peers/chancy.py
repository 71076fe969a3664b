"""chancy: psycopg in C, AsyncExecutor, eager polling, poll every second."""

import logging
from collections.abc import Sequence
from typing import ClassVar

from chancy import Chancy, Queue, Worker, job
from psycopg import AsyncConnection

from benchmarks.peers.protocol import Peer, Standing, ran

_EXECUTOR = "chancy.executors.asyncex.AsyncExecutor"


async def noop(*, number: int) -> None:
    """Do nothing; chancy imports it by its name."""
    ran()


class ChancyPeer(Peer):
    """chancy, with its default plugins."""

    packages: ClassVar = ("chancy", "psycopg", "psycopg-binary", "uvloop")

    def _make(self, connections: int) -> Chancy:
        return Chancy(
            self.dsn,
            min_connection_pool_size=connections,
            max_connection_pool_size=connections,
            log=logging.getLogger("chancy"),
        )

    async def install(self) -> None:
        async with self._make(1) as chancy:
            await chancy.migrate()

    async def open(self, connections: int) -> None:
        self._looking = await AsyncConnection.connect(self.dsn, autocommit=True)
        self._job = job(queue="default")(noop).job
        self._chancy = self._make(connections)
        await self._chancy.__aenter__()

    async def enqueue(self, number: int) -> None:
        await self._chancy.push(self._job.with_kwargs(number=number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        async for _ in self._chancy.push_many([self._job.with_kwargs(number=number) for number in numbers]):
            pass

    async def work(self, concurrency: int) -> None:
        async with self._make(10) as chancy:
            queue = Queue(
                "default", concurrency=concurrency, executor=_EXECUTOR, polling_interval=1, eager_polling=True
            )
            await chancy.declare(queue, upsert=True)
            async with Worker(chancy, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()

    async def standing(self) -> Standing:
        found = await self._looking.execute(
            "SELECT count(*) FILTER (WHERE state <> 'succeeded'), count(*) FILTER (WHERE state = 'succeeded')"
            " FROM chancy_jobs"
        )
        unfinished, finished = await found.fetchone()
        return Standing(unfinished, finished)


PEER = ChancyPeer
