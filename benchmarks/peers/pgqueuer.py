"""PgQueuer: asyncpg, autovacuum as its `pgq autovac` sets it, "concurrency" is the batch size."""

from collections.abc import Sequence
from typing import ClassVar

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.protocol import Peer, Standing, ran


async def _noop(job: Job) -> None:
    ran()


class PgQueuerPeer(Peer):
    """PgQueuer; tasks running at once are not capped, as is its default."""

    packages: ClassVar = ("pgqueuer", "asyncpg", "uvloop")

    async def install(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        queries = Queries.from_asyncpg_connection(connection)
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    async def open(self, connections: int) -> None:
        self._looking = await asyncpg.connect(self.dsn)
        if connections == 1:
            self._queries = Queries.from_asyncpg_connection(await asyncpg.connect(self.dsn))
        else:
            pool = await asyncpg.create_pool(self.dsn, min_size=connections, max_size=connections)
            self._queries = Queries.from_asyncpg_pool(pool)

    async def enqueue(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        size = len(numbers)
        await self._queries.enqueue(["noop"] * size, [b"%d" % number for number in numbers], [0] * size)

    async def work(self, concurrency: int) -> None:
        worker = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.dsn))
        worker.entrypoint("noop")(_noop)
        await worker.run(batch_size=concurrency)

    async def standing(self) -> Standing:
        unfinished = await self._looking.fetchval("SELECT count(*) FROM pgqueuer")
        if unfinished:
            return Standing(unfinished, None)
        return Standing(
            0, await self._looking.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
        )


PEER = PgQueuerPeer
