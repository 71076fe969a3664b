"""The worker as programs hold it: its faces, its start and its end.

It is one incarnation after another (`incarnation.py`), each working in the same workshop (`workshop.py`).
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import anyio

from aiopgq._store.patience import Patience, comes
from aiopgq._words.clock import monotonic
from aiopgq.equipment import Equipment, Manners, Parentage
from aiopgq.errors import JobFailed, StoreError, StoreUnavailable, UsageError
from aiopgq.incarnation import Incarnation
from aiopgq.inspector import Inspector
from aiopgq.workshop import Workshop, first_of

__all__ = ["Drained", "Health", "Worker", "drain"]

log = logging.getLogger("aiopgq.worker")

# Outcomes that could not be written for so long are a failure of health.
_STUCK: Final = 30.0


class Health(NamedTuple):
    """How a worker is.

    Attributes:
        listening: Notifications arrive; while they do not, it polls.
        claiming: The last claim had an answer.
        settling: Outcomes are written; False when some have waited for 30 seconds.
        last_heartbeat: Seconds since the last acknowledged beat was sent; None before the first.
        running: Jobs that run.
        unsettled: Outcomes not written yet.
    """

    listening: bool
    claiming: bool
    settling: bool
    last_heartbeat: float | None
    running: int
    unsettled: int


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
        drained: Whether somebody asked it, from outside, to claim no more, finish, and end.
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
        lease: float,
        beat_interval: float,
        hang_limit: float,
        parent: Parentage | None = None,
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
            lease=lease,
            beat_interval=beat_interval,
            hang_limit=hang_limit,
        )
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._incarnation: Incarnation | None = None
        self._workshop: Workshop | None = None
        self.left_behind = 0
        self.ended: Mapping[str, int] = {}
        self.drained = False

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
                await comes(self._stopping, patience.failed(error))

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
            self._drained = asyncio.Event()
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
        self._nudge()

    async def _work(self) -> None:
        assert self._ready is not None  # noqa: S101  # set by __aenter__
        equipment = self._equip()
        workshop = self._workshop = Workshop(equipment, self._manners, self._nudge, self._myself, self._may_start)
        try:
            async with equipment.state():
                await self._live(equipment, workshop, self._ready)
        except BaseException as error:
            if self._ready.done():
                log.critical("the worker has died: %s", error, exc_info=error)
            raise
        finally:
            await workshop.close()
            self.left_behind = workshop.left_behind
            self.ended = workshop.ended
            self.drained = self._drained.is_set()
        log.info("worker %s has stopped", self._manners.name)

    async def _live(self, equipment: Equipment, workshop: Workshop, ready: asyncio.Future[None]) -> None:
        """Be one incarnation after the other until told to stop; what runs gets its end, whatever ends the claiming."""
        await workshop.open()
        incarnation = await self._born(equipment, workshop)
        try:
            await workshop.upkeep.work()
            await workshop.ticker.work()
            async with anyio.create_task_group() as beside:
                for loop in workshop.loops:
                    beside.start_soon(loop)
                ready.set_result(None)
                try:
                    while True:
                        beside.start_soon(incarnation.listen)
                        beside.start_soon(incarnation.fence)
                        await incarnation.claim()
                        if incarnation.lost is None or self._stopping.is_set() or self._drained.is_set():
                            break
                        await incarnation.leave(retire=False)
                        await incarnation.fenced.wait()
                        if (reborn := await self._reborn(equipment, workshop)) is None:
                            break
                        incarnation = reborn
                finally:
                    with anyio.CancelScope(shield=True):
                        if self._drained.is_set():
                            workshop.release_waiting()
                            # Nobody is in a hurry: what runs may take the time it needs, until we are stopped.
                            await first_of(workshop.runner.done(None), self._stopping.wait())
                        await workshop.finish(self._hurry, incarnation.give_back)
                        await incarnation.leave(retire=not workshop.left_behind)
                    beside.cancel_scope.cancel()
        finally:
            await incarnation.leave(retire=False)

    async def _born(self, equipment: Equipment, workshop: Workshop) -> Incarnation:
        incarnation = self._incarnation = Incarnation(equipment, self._manners, workshop, self._stopping, self._drained)
        await incarnation.register()

        return incarnation

    async def _reborn(self, equipment: Equipment, workshop: Workshop) -> Incarnation | None:
        """Return from a lost lease as a new incarnation, when the database is back; None if told to stop before."""
        patience = Patience(log, "return as a new incarnation")
        while not self._stopping.is_set():
            try:
                return await self._born(equipment, workshop)
            except StoreError as error:
                await comes(self._stopping, patience.failed(error))

        return None

    def _nudge(self) -> None:
        if self._incarnation is not None:
            self._incarnation.sleeper.nudge()

    def _myself(self) -> UUID | None:
        return None if self._incarnation is None else self._incarnation.identity.id

    def _may_start(self) -> bool:
        return self._incarnation is not None and self._incarnation.may_start

    def health(self) -> Health:
        """Say how the worker is; safe to call at any time, asks nobody.

        Returns:
            Whether it listens, claims and settles, when it last beat, and how much is unsettled.
        """
        incarnation, workshop = self._incarnation, self._workshop
        if incarnation is None or workshop is None:
            return Health(False, False, True, None, 0, 0)  # noqa: FBT003  # a worker that has not begun
        lives = self._main is not None and not self._main.done()
        beat_at = incarnation.pulse.beat_at if lives else None

        return Health(
            listening=lives and not incarnation.sleeper.deaf,
            claiming=lives and incarnation.claiming,
            settling=workshop.stuck_for < _STUCK,
            last_heartbeat=None if beat_at is None else monotonic() - beat_at,
            running=workshop.running,
            unsettled=workshop.unsettled,
        )


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
