"""procrastinate: psycopg in C, a pool of twenty for the worker, LISTEN/NOTIFY on."""

from collections.abc import Sequence
from typing import ClassVar

from procrastinate import App, PsycopgConnector
from psycopg import AsyncConnection

from benchmarks.peers.protocol import Peer, Standing, ran


async def _noop(number: int) -> None:
    ran()


class Procrastinate(Peer):
    """procrastinate; finished jobs are kept, as is its default (deleting them was no faster)."""

    packages: ClassVar = ("procrastinate", "psycopg", "psycopg-binary", "uvloop")

    def _make(self, connections: int) -> App:
        app = App(connector=PsycopgConnector(conninfo=self.dsn, min_size=connections, max_size=connections))
        self._task = app.task(name="noop")(_noop)
        return app

    async def install(self) -> None:
        app = self._make(1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self, connections: int) -> None:
        self._looking = await AsyncConnection.connect(self.dsn, autocommit=True)
        await self._make(connections).open_async()

    async def enqueue(self, number: int) -> None:
        await self._task.defer_async(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._task.batch_defer_async(*({"number": number} for number in numbers))

    async def work(self, concurrency: int) -> None:
        app = self._make(20)
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

    async def standing(self) -> Standing:
        found = await self._looking.execute(
            "SELECT count(*) FILTER (WHERE status <> 'succeeded'), count(*) FILTER (WHERE status = 'succeeded')"
            " FROM procrastinate_jobs"
        )
        unfinished, finished = await found.fetchone()
        return Standing(unfinished, finished)


PEER = Procrastinate
