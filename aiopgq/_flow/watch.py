"""Watch, beside the path: how far jobs are, for any number of watchers in a process.

All watchers of an App share one statement every half second, however many jobs they watch: reports are written once a
second, so looking more often would show nothing new. Nobody watches, nobody asks.

If the process dies here, nothing is lost: watching changes nothing.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final
from uuid import UUID

from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import comes
from aiopgq._words.clock import monotonic
from aiopgq._words.progress import Progress
from aiopgq.errors import AiopgqError, AppNotOpen, StoreError, StoreUnavailable

__all__ = ["Watch"]

_TICK: Final = 0.5
# Watchers that come together are served together; nobody waits longer than that for the first look.
_GATHER: Final = 0.02
_SILENCE: Final = 10.0
_BATCH: Final = 1000


class _Watcher:
    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.seen: Progress | None = None
        self.error: AiopgqError | None = None


class Watch:
    """The watchers of one App.

    Args:
        jobs: The store.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._watchers: dict[UUID, set[_Watcher]] = {}
        self._joined = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def updates(self, job_id: UUID) -> AsyncGenerator[Progress, None]:
        """Give how far a job is, now and whenever that has changed, until it has ended or is not there (any more).

        Raises:
            AppNotOpen: The App was closed meanwhile.
            StoreUnavailable: PostgreSQL did not answer for ten seconds.
        """
        watcher, last = _Watcher(), None
        self._watchers.setdefault(job_id, set()).add(watcher)
        self._joined.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            while True:
                await watcher.news.wait()
                watcher.news.clear()
                if watcher.error is not None:
                    raise watcher.error
                if (seen := watcher.seen) is None:
                    return
                if seen != last:
                    last = seen
                    yield seen
                if seen.final:
                    return
        finally:
            self._watchers[job_id].discard(watcher)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    async def close(self) -> None:
        """Send the watchers away."""
        self._tell(AppNotOpen("watch a job any longer"))
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        answered_at = monotonic()
        while self._watchers:
            await asyncio.sleep(_GATHER)
            self._joined.clear()
            try:
                await self._look_once()
                answered_at = monotonic()
            except StoreUnavailable as error:
                if monotonic() - answered_at >= _SILENCE:
                    self._tell(error)
            except StoreError as error:
                self._tell(error)
            await comes(self._joined, _TICK)

    async def _look_once(self) -> None:
        # Who joins while the answer is under way is not in it; the next look, at once, is for him.
        watched = {job_id: list(watchers) for job_id, watchers in self._watchers.items()}
        ids = list(watched)
        seen: dict[UUID, Progress] = {}
        for at in range(0, len(ids), _BATCH):
            seen |= await self._jobs.progress(ids[at : at + _BATCH])
        for job_id, watchers in watched.items():
            for watcher in watchers:
                watcher.seen = seen.get(job_id)
                watcher.news.set()

    def _tell(self, error: AiopgqError) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.error = error
                watcher.news.set()
