"""The worker: wires the steps of a job's life together, and knows when to stop.

    enqueue → wake → claim → run → settle

The steps do not know each other. Here the sleeper decides when to look, the claimer fills free slots, the runner
turns jobs into settlements, the settler writes them; pulse, report, listen and upkeep go beside.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

import anyio

from aiopgq._flow.claim import Claimer
from aiopgq._flow.listen import keep_listening
from aiopgq._flow.pulse import LEASE, Pulse
from aiopgq._flow.report import Reporter
from aiopgq._flow.run import Runner
from aiopgq._flow.settle import Settler
from aiopgq._flow.upkeep import Upkeep
from aiopgq._flow.wake import Sleeper
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import Patience
from aiopgq._words.clock import uuid7
from aiopgq._words.conclusion import release, replace_unstorable
from aiopgq._words.job import Settlement, WorkerIdentity
from aiopgq._words.slots import Slots
from aiopgq._words.task import TaskDefinition
from aiopgq.errors import StoreError, StoreUnavailable

__all__ = ["Equipment", "Worker"]

log = logging.getLogger("aiopgq.worker")

# A handler that ignores its cancellation for so long is left behind.
_STUBBORN: Final = 2.0
_LAST_SETTLEMENTS: Final = 10.0
_MANNERS: Final = 2.0
_FEWEST_UNSETTLED: Final = 2000


@dataclass(slots=True)
class Equipment:
    """What an App gives its workers.

    Attributes:
        connect: Where the database is.
        listen: Where notifications come from; a direct connection if `connect` goes through a pooler.
        tasks: The tasks known, by name and alias.
        slots: The queues served, and how much may run at once.
        state: Enters the App's state for one worker process.
        retention: Seconds finished jobs are kept; 0 keeps nothing.
        max_result_bytes: The largest result kept.
        version: Of aiopgq, for the row of the worker.
    """

    connect: ConnectSettings
    listen: ConnectSettings
    tasks: Mapping[str, TaskDefinition]
    slots: Slots
    state: Callable[[], AbstractAsyncContextManager[None]]
    retention: float
    max_result_bytes: int
    version: str


class Worker:
    """Runs jobs until it is told to stop; made by `jobs.worker(…)`.

    Use one of its faces:

    - `async with jobs, jobs.worker():` beside your own program
    - `await jobs.worker().run()` as a program of its own
    - `FastAPI(lifespan=jobs.worker().lifespan)`, `app.cleanup_ctx.append(jobs.worker().cleanup_ctx)`

    It installs no signal handlers, configures no logging and never ends the process.

    Attributes:
        left_behind: After the end: jobs whose handlers ignored cancellation, and outcomes not written.
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
        self._name = name
        self._burst = burst
        self._poll_interval = poll_interval
        self._shutdown_grace = shutdown_grace
        self._job_log = job_log
        self._parent = parent
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._sleeper: Sleeper | None = None
        self.left_behind = 0

    # faces

    async def run(self) -> None:
        """Open the App if need be and work until stopped, or with burst until nothing is due.

        While PostgreSQL cannot be reached at the start it is tried again, with a growing pause.

        Raises:
            SchemaError: The schema is missing, behind or too far ahead.
            AiopgqError: The configuration cannot be used.
        """
        patience = Patience(log, "start the worker")
        while not self._stopping.is_set():
            try:
                async with self._app, self:
                    assert self._main is not None  # noqa: S101  # set by __aenter__
                    await asyncio.wait([self._main])
                return
            except StoreUnavailable as error:
                pause = patience.failed(error)
            await _set_or_passed(self._stopping, pause)

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
            AiopgqError: It cannot start.
        """
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        # A task of its own: an app's lifespan may enter and leave in different tasks.
        self._main = self._loop.create_task(self._work())
        await asyncio.wait([self._main, self._ready], return_when=asyncio.FIRST_COMPLETED)
        if self._main.done():
            self._main.result()

        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop claiming, let jobs finish for the grace, release the rest."""
        self.stop()
        if self._main is not None:
            await self._main

    def stop(self, *, now: bool = False) -> None:
        """Stop, from any thread and at any time, also before the start; more than once is fine.

        Args:
            now: Skip the grace: cancel and release what runs.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, now)
        else:
            self._stop(now)

    def _stop(self, now: bool) -> None:
        self._stopping.set()
        if now:
            self._hurry.set()
        if self._sleeper is not None:
            self._sleeper.nudge()

    # the life of an incarnation

    async def _work(self) -> None:
        """Be one incarnation, from its registration to its last settlement."""
        equipment = self._equip()
        slots = equipment.slots
        identity = WorkerIdentity(
            id=uuid7(),
            name=self._name or socket.gethostname(),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=equipment.version,
            parent=self._parent,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(equipment.state())
            lines = [Line(equipment.connect, purpose) for purpose in ("claim", "settle", "pulse")]
            for line in lines:
                stack.push_async_callback(line.close)
            steps = self._wire(equipment, identity, slots, *(Jobs(line) for line in lines))
            await steps.beside.register_worker(
                identity,
                slots.queues,
                list(equipment.tasks),
                slots.total,
                LEASE,
                [line.backend_pid or 0 for line in lines],
            )
            await steps.upkeep.work()
            log.info("worker %s serves %s with %d slots", identity.name, ", ".join(slots.queues), slots.total)
            await self._run_steps(steps, equipment, identity)
        log.info("worker %s has stopped", identity.name)

    def _wire(
        self,
        equipment: Equipment,
        identity: WorkerIdentity,
        slots: Slots,
        claiming: Jobs,
        settling: Jobs,
        beside: Jobs,
    ) -> "_Steps":
        """Pass each step the functions of the others that it needs."""

        def finished(settlement: Settlement) -> None:
            settler.add(settlement)
            # Jobs may be waiting for this very slot; a burst wants to know when all is done.
            if slots.give_back(settlement.job.queue) or self._burst:
                sleeper.nudge()

        def cancel(job_id: UUID) -> None:
            if (run := runner.running.get(job_id)) is not None:
                runner.stop(run, "cancel")

        settler = Settler(
            settling,
            keep=equipment.retention > 0,
            refused=lambda unstorable, error: replace_unstorable(unstorable, error, identity.name),
        )
        runner = Runner(
            equipment.tasks,
            identity.name,
            slots.total,
            finished,
            max_result_bytes=equipment.max_result_bytes,
            job_log=self._job_log,
        )
        pulse = Pulse(beside, identity.id, self._stopping.is_set, cancel)
        claimer = Claimer(claiming, identity.id, list(equipment.tasks), pulse.fleet)
        sleeper = Sleeper(claiming, slots.queues, self._poll_interval, claimer.seconds_until_due, pulse.fleet)
        reporter = Reporter(beside, runner.running, cancel)
        upkeep = Upkeep(beside, list(equipment.tasks), equipment.retention)
        self._sleeper = sleeper

        return _Steps(slots, sleeper, claimer, runner, settler, pulse, reporter, upkeep, beside, cancel)

    async def _run_steps(self, steps: "_Steps", equipment: Equipment, identity: WorkerIdentity) -> None:
        deaf = asyncio.Event()

        def heard(topic: str, payload: str) -> None:
            if topic == "cancel":
                steps.cancel(UUID(payload))
            else:
                steps.sleeper.heard(payload)

        def hearing(hears: bool) -> None:
            steps.sleeper.hearing(deaf=not hears)

        async with anyio.create_task_group() as beside:
            for loop in (steps.settler.run, steps.pulse.run, steps.reporter.run, steps.upkeep.run):
                beside.start_soon(loop)
            beside.start_soon(keep_listening, equipment.listen, ("", "cancel"), heard, hearing, deaf)
            assert self._ready is not None  # noqa: S101  # set by __aenter__
            self._ready.set_result(None)
            try:
                await self._claim(steps)
            finally:
                # Whatever ends the claiming, what runs gets its end.
                with anyio.CancelScope(shield=True):
                    await self._finish(steps)
                    deaf.set()
                    await _quietly(steps.sleeper.leave())
                    if not self.left_behind:
                        await _quietly(steps.beside.retire_worker(identity.id))
                beside.cancel_scope.cancel()

    async def _claim(self, steps: "_Steps") -> None:
        """Keep the slots filled until told to stop."""
        patience = Patience(log, "claim jobs")
        sweep = True
        while not self._stopping.is_set():
            try:
                if await self._look(steps, sweep=sweep):
                    sweep = False
                elif self._burst and not steps.busy:
                    return
                else:
                    await steps.sleeper.rest(partial(self._look, steps, sweep=True))
                    sweep = True
                patience.worked()
            except StoreError as error:
                await _set_or_passed(self._stopping, patience.failed(error))
                sweep = True

    async def _look(self, steps: "_Steps", *, sweep: bool) -> bool:
        """Claim once for every group of queues with free slots; True if there was work, or no slot for it."""
        groups = steps.slots.groups()
        if not groups or steps.settler.unsettled > max(_FEWEST_UNSETTLED, 2 * steps.slots.total):
            await steps.sleeper.pause()
            return True
        steps.sleeper.looking()
        found = False
        for group in groups:
            for job in await steps.claimer.claim(group, sweep=sweep):
                found = True
                steps.slots.take(job.queue)
                if self._stopping.is_set():
                    steps.slots.give_back(job.queue)
                    steps.settler.add(release(job))
                else:
                    steps.runner.start(job)
        steps.sleeper.lower_flags()
        if (sweep and not found) or steps.claimer.time_to_promote():
            promoted = await steps.claimer.promote()
            if promoted and not found:
                return await self._look(steps, sweep=True)

        return found

    async def _finish(self, steps: "_Steps") -> None:
        """Let jobs finish for the grace, cancel and release the rest, write what is unsettled."""
        if steps.runner.running:
            log.info("stopping: %d jobs may run for %g s more", len(steps.runner.running), self._shutdown_grace)
        await _first_of(steps.runner.done(self._shutdown_grace), self._hurry.wait())
        steps.runner.stop_all("shutdown")
        await steps.runner.done(_STUBBORN)
        await steps.settler.settled(_LAST_SETTLEMENTS)
        self.left_behind = len(steps.runner.running) + steps.settler.unsettled
        if self.left_behind:
            log.error(
                "%d jobs are left behind: %d handlers ignore their cancellation, %d outcomes could not be written",
                self.left_behind,
                len(steps.runner.running),
                steps.settler.unsettled,
            )


@dataclass(slots=True)
class _Steps:
    """The steps of one incarnation, wired."""

    slots: Slots
    sleeper: Sleeper
    claimer: Claimer
    runner: Runner
    settler: Settler
    pulse: Pulse
    reporter: Reporter
    upkeep: Upkeep
    beside: Jobs
    cancel: Callable[[UUID], None]

    @property
    def busy(self) -> bool:
        """Whether a job runs or an outcome is not written yet."""
        return bool(self.runner.running) or self.settler.unsettled > 0


async def _set_or_passed(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _quietly(work: Awaitable[None]) -> None:
    """Do what is good manners but not needed; a database that hangs must not hold up the end."""
    with contextlib.suppress(StoreError, TimeoutError):
        async with asyncio.timeout(_MANNERS):
            await work
