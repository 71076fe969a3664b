"""The workers in the database: incarnations, their beats, and what becomes of their jobs when they die."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.statements import statement
from aiopgq._words.job import WorkerIdentity
from aiopgq._words.observation import SeenBeat
from aiopgq._words.workers import WorkerInfo

__all__ = ["Beat", "Workers"]


class Beat(NamedTuple):
    """Answer to a heartbeat: still alive, live incarnations in all, own jobs that shall be cancelled, shall it end."""

    alive: bool
    fleet: int
    cancelled: list[UUID]
    drain: bool


class Workers:
    """The statements about workers, on one line."""

    def __init__(self, line: Fetcher) -> None:
        self._line = line
        self._schema: str = line.settings.schema

    async def _fetch(self, doing: str, name: str, *args: Any) -> list[Any]:
        return await fetch_whole(self._line, doing, statement(name, self._schema), *args)

    async def register(
        self,
        worker: WorkerIdentity,
        queues: Sequence[str],
        tasks: Sequence[str],
        concurrency: int,
        lease: float,
        backend_pids: Sequence[int],
    ) -> None:
        """Announce a new incarnation."""
        await self._fetch(
            "register the worker",
            "register_worker",
            worker.id,
            worker.parent,
            worker.name,
            worker.host,
            worker.pid,
            worker.version,
            queues,
            tasks,
            concurrency,
            lease,
            backend_pids,
        )

    async def heartbeat(self, worker: UUID, *, draining: bool) -> Beat:
        """Beat once."""
        [row] = await self._fetch("beat", "heartbeat", worker, draining)
        return Beat(row[0], row[1], list(row[2] or ()), bool(row[3]))

    async def retire(self, worker: UUID) -> None:
        """Say that an incarnation has ended."""
        await self._fetch("retire the worker", "retire_worker", worker)

    async def listed(self, *, ended: bool) -> list[WorkerInfo]:
        """List incarnations, the youngest first."""
        return [WorkerInfo(*row) for row in await self._fetch("list workers", "worker_list", ended)]

    async def drain(self, workers: Sequence[UUID]) -> list[UUID]:
        """Ask incarnations to finish and end. Returns those that live."""
        return [row[0] for row in await self._fetch("drain workers", "drain_workers", workers)]

    async def beats(self) -> list[SeenBeat]:
        """Read the beats of all incarnations that are not dead."""
        return [
            SeenBeat(row[0], row[1], row[2], row[3].total_seconds())
            for row in await self._fetch("read the beats", "beats")
        ]

    async def rescue(self, worker: UUID, beat: int, *, keep: bool) -> int | None:
        """Declare an incarnation dead if its beat still stands; return how many jobs were taken, None if it lives."""
        [row] = await self._fetch("rescue the jobs of a dead worker", "rescue_worker", worker, beat, keep)
        taken: int | None = row[0]
        return taken

    async def bury(self, parent: UUID, pid: int, *, keep: bool) -> int:
        """Declare a child process dead that its parent saw end; return how many jobs were taken."""
        return await self._count("bury a worker process", "bury_worker", parent, pid, keep)

    async def rescue_orphans(self, *, keep: bool) -> int:
        """Take the jobs of incarnations that are dead or unknown; return how many."""
        return await self._count("rescue orphaned jobs", "rescue_orphans", keep)

    async def forget(self, after: float) -> int:
        """Delete the rows of incarnations that ended so many seconds ago."""
        return await self._count("forget dead workers", "forget_workers", after)

    async def _count(self, doing: str, name: str, *args: Any) -> int:
        [row] = await self._fetch(doing, name, *args)
        return int(row[0])
