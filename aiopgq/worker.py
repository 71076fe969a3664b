"""The worker as programs hold it: its faces, its start and its end.

What it does is in `incarnation.py`, which wires the steps of a job's life.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Self
from uuid import UUID

from aiopgq._store.patience import Patience
from aiopgq.errors import JobFailed, StoreUnavailable, UsageError
from aiopgq.incarnation import Equipment, Incarnation, Manners
from aiopgq.inspector import Inspector

__all__ = ["Drained", "Worker", "drain"]

log = logging.getLogger("aiopgq.worker")


class Worker:
    """Runs jobs until it is told to stop; made by `jobs.worker(…)`.

    Use one of its faces:

    - `async with jobs, jobs.worker():` beside your own program
    - `await jobs.worker().run()` as a program of its own
    - `FastAPI(lifespan=jobs.worker().lifespan)`, `app.cleanup_ctx.append(jobs.worker().cleanup_ctx)`

    It installs no signal handlers, configures no logging and never ends the process.

    Attributes:
        left_behind: After the end: jobs whose handlers ignored cancellation, and outcomes not written.
        ended: After the end: how many runs ended with each kind of settlement.
    """

    def __init__(
        self,
        app: AbstractAsyncContextManager[Any],
        equip: Callable[[], Equipment],
        *,
        name: str | None,
        burst: bool,
        poll_interval: float,
        shutdown_grace: float,
        job_log: bool,
        parent: UUID | None = None,
    ) -> None:
        self._app = app
        self._equip = equip
        self._manners = Manners(
            name=name or socket.gethostname(),
            burst=burst,
            poll_interval=poll_interval,
            shutdown_grace=shutdown_grace,
            job_log=job_log,
            parent=parent,
        )
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._incarnation: Incarnation | None = None
        self.left_behind = 0
        self.ended: Mapping[str, int] = {}

    # faces

    async def run(self) -> None:
        """Open the App if need be and work until stopped, or with burst until nothing is due.

        While PostgreSQL cannot be reached at the start it is tried again, with a growing pause.

        Raises:
            SchemaError: The schema is missing, behind or too far ahead.
            AiopgqError: The configuration cannot be used.
        """
        # Known before the App is open, so that stop() from a thread ends a pause between tries as well.
        self._loop = asyncio.get_running_loop()
        patience = Patience(log, "start the worker")
        while not self._stopping.is_set():
            try:
                async with self._app, self:
                    assert self._main is not None  # noqa: S101  # set by __aenter__
                    await asyncio.wait([self._main])
                return
            except StoreUnavailable as error:
                pause = patience.failed(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Serve as the lifespan of a Starlette or FastAPI app; opens the App as well."""
        async with self._app, self:
            yield

    async def cleanup_ctx(self, _app: Any) -> AsyncIterator[None]:
        """Serve as an aiohttp cleanup context; opens the App as well."""
        async with self._app, self:
            yield

    async def __aenter__(self) -> Self:
        """Start, and return when the worker claims jobs.

        Raises:
            UsageError: It is entered already.
            AiopgqError: It cannot start.
        """
        if self._main is not None:
            raise UsageError("This worker is entered already; make another with jobs.worker(…).")
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        # A task of its own: an app's lifespan may enter and leave in different tasks.
        self._main = self._loop.create_task(self._work())
        try:
            await asyncio.wait([self._main, self._ready], return_when=asyncio.FIRST_COMPLETED)
            if self._main.done():
                self._main.result()
        except BaseException:
            try:
                await self._end(now=True)
            finally:
                # It may be entered again, unless somebody asked for the end meanwhile.
                if not self._asked:
                    self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
            raise

        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop claiming, let jobs finish for the grace, release the rest."""
        try:
            await self._end(now=False)
        finally:
            # A program may enter it again, in another loop perhaps: a web app under test does.
            self._stopping, self._hurry, self._loop = asyncio.Event(), asyncio.Event(), None
            self._asked = False

    async def _end(self, *, now: bool) -> None:
        """Stop and wait for the end; being cancelled meanwhile only takes the grace away."""
        self._stop(now)
        main, self._main = self._main, None
        if main is None:
            return
        cancelled: asyncio.CancelledError | None = None
        while not main.done():
            try:
                await asyncio.wait([main])
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop(now=True)
        if cancelled is not None:
            raise cancelled
        main.result()

    def stop(self, *, now: bool = False) -> None:
        """Stop, from any thread and at any time, also before the start; more than once is fine.

        Args:
            now: Skip the grace: cancel and release what runs.
        """
        self._asked = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, now)
        else:
            self._stop(now)

    def _stop(self, now: bool) -> None:
        self._stopping.set()
        if now:
            self._hurry.set()
        if self._incarnation is not None:
            self._incarnation.nudge()

    async def _work(self) -> None:
        assert self._ready is not None  # noqa: S101  # set by __aenter__
        incarnation = self._incarnation = Incarnation(self._equip(), self._manners, self._stopping, self._hurry)
        try:
            await incarnation.live(self._ready)
        except BaseException as error:
            if self._ready.done():
                log.critical("the worker has died: %s", error, exc_info=error)
            raise
        finally:
            self.left_behind = incarnation.left_behind
            self.ended = incarnation.ended


class Drained(NamedTuple):
    """What `jobs.drain()` has run.

    Attributes:
        completed: Runs that completed their job.
        cancelled: Runs that cancelled it.
        failed: Runs that made it a dead letter.
        pending: Runs that put it back: retries and snoozes.
    """

    completed: int
    cancelled: int
    failed: int
    pending: int


async def drain(worker: Worker, inspector: Inspector, limit: float | None, *, raises: bool) -> Drained:
    """Let a worker with `burst` run to its end, and look for jobs that failed meanwhile.

    Raises:
        JobFailed: There are some.
        TimeoutError: It took longer than `limit` seconds.
    """
    known = set(await inspector.dead())
    async with asyncio.timeout(limit):
        await worker.run()
    if raises:
        dead = [job_id for job_id in await inspector.dead() if job_id not in known]
        if dead:
            raise await _failure(inspector, dead)

    return Drained(**worker.ended)


async def _failure(inspector: Inspector, dead: Sequence[UUID]) -> JobFailed:
    first, *others = [await inspector.job(job_id) for job_id in dead]
    failure = JobFailed(first.id, first.last_error, first.errors)
    traceback = first.errors[-1]["traceback"] if first.errors else None
    failure.add_note(f"Task {first.task}, attempt {first.attempts}:\n{traceback or first.last_error}")
    for other in others:
        failure.add_note(f"Job {other.id} failed as well: task {other.task}: {other.last_error}")

    return failure
