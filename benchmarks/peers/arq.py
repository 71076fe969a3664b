"""arq: Redis through hiredis, polls every 10 ms instead of every 500, keeps no result; it has no bulk call."""

from typing import Any, ClassVar

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.protocol import Peer, Standing, ran


async def noop(_context: dict[str, Any], number: int) -> None:
    """Do nothing; arq knows it by its name."""
    ran()


class Arq(Peer):
    """arq."""

    packages: ClassVar = ("arq", "redis", "hiredis", "uvloop")

    async def install(self) -> None:
        pool = await create_pool(RedisSettings.from_dsn(self.dsn))
        await pool.flushall()
        await pool.aclose()

    async def open(self, connections: int) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.dsn))

    async def enqueue(self, number: int) -> None:
        await self._pool.enqueue_job("noop", number)

    async def work(self, concurrency: int) -> None:
        worker = Worker(
            [noop],
            redis_settings=RedisSettings.from_dsn(self.dsn),
            max_jobs=concurrency,
            poll_delay=0.01,
            keep_result=0,
            log_results=False,
            handle_signals=False,
        )
        await worker.async_run()

    async def standing(self) -> Standing:
        return Standing(await self._pool.zcard("arq:queue"), None)


PEER = Arq
