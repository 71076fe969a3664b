"""One incarnation of a worker: wires the steps of a job's life together, and knows how to end.

    enqueue → wake → claim → run → settle

The steps do not know each other. Here the sleeper decides when to look, the claimer fills free slots, the runner
turns jobs into settlements, the settler writes them; pulse, report, listen and upkeep go beside.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
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
from aiopgq._words.slots import Group, Slots
from aiopgq._words.task import TaskDefinition
from aiopgq.errors import StoreError

__all__ = ["Equipment", "Incarnation", "Manners"]

log = logging.getLogger("aiopgq.worker")

# A handler that ignores its cancellation for so long is left behind.
_STUBBORN: Final = 2.0
_LAST_SETTLEMENTS: Final = 10.0
_FAREWELL: Final = 2.0
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


@dataclass(frozen=True, slots=True)
class Manners:
    """How a worker behaves.

    Attributes:
        name: How it is called in logs and in the errors of jobs.
        burst: End when nothing is due.
        poll_interval: Seconds between looks while asleep.
        shutdown_grace: Seconds running jobs may take to finish at the end.
        job_log: Write a line for each completed job.
        parent: The process that watches over it, if there is one.
    """

    name: str
    burst: bool
    poll_interval: float
    shutdown_grace: float
    job_log: bool
    parent: UUID | None


class Incarnation:
    """One life of a worker, from its registration to its last settlement, under an id never used again.

    Args:
        equipment: What the App gives.
        manners: How it behaves.
        stopping: Set when it shall end: no job is claimed any more.
        hurry: Set when running jobs get no grace.

    Attributes:
        left_behind: After the end: jobs whose handlers ignored cancellation, and outcomes not written.
        ended: How many runs ended with each kind of settlement.
    """

    def __init__(self, equipment: Equipment, manners: Manners, stopping: asyncio.Event, hurry: asyncio.Event) -> None:
        self._equipment = equipment
        self._manners = manners
        self._stopping = stopping
        self._hurry = hurry
        self._slots = equipment.slots
        self.identity = WorkerIdentity(
            id=uuid7(),
            name=manners.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=equipment.version,
            parent=manners.parent,
        )
        self.left_behind = 0
        self.ended = {"completed": 0, "cancelled": 0, "failed": 0, "pending": 0}
        self._lines = [Line(equipment.connect, purpose) for purpose in ("claim", "settle", "pulse")]
        claiming, settling, self._beside = (Jobs(line) for line in self._lines)
        tasks = list(equipment.tasks)
        self._settler = Settler(settling, keep=equipment.retention > 0, refused=self._refused)
        self._runner = Runner(
            equipment.tasks,
            manners.name,
            self._slots.total,
            self._finished,
            max_result_bytes=equipment.max_result_bytes,
            job_log=manners.job_log,
        )
        self._pulse = Pulse(self._beside, self.identity.id, stopping.is_set, self._cancel)
        self._claimer = Claimer(claiming, self.identity.id, tasks, self._pulse.fleet)
        self._sleeper = Sleeper(
            claiming, self._slots.queues, manners.poll_interval, self._claimer.seconds_until_due, self._pulse.fleet
        )
        self._reporter = Reporter(self._beside, self._runner.running, self._cancel)
        self._upkeep = Upkeep(self._beside, tasks, equipment.retention)

    def nudge(self) -> None:
        """Look again at once: something was decided from outside."""
        self._sleeper.nudge()

    async def live(self, ready: asyncio.Future[None]) -> None:
        """Register, claim and run jobs until told to stop, finish what runs.

        Args:
            ready: Set when jobs are claimed.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._equipment.state())
            for line in self._lines:
                stack.push_async_callback(line.close)
            await self._register()
            await self._upkeep.work()
            async with anyio.create_task_group() as beside:
                deaf = asyncio.Event()
                beside.start_soon(self._listen, deaf)
                for loop in (self._settler.run, self._pulse.run, self._reporter.run, self._upkeep.run):
                    beside.start_soon(loop)
                ready.set_result(None)
                try:
                    await self._claim()
                finally:
                    # Whatever ends the claiming, what runs gets its end.
                    with anyio.CancelScope(shield=True):
                        await self._finish()
                        deaf.set()
                        await self._say_goodbye()
                    beside.cancel_scope.cancel()
        log.info("worker %s has stopped", self.identity.name)

    async def _register(self) -> None:
        for line in self._lines:
            await line.open()
        await self._beside.register_worker(
            self.identity,
            self._slots.queues,
            list(self._equipment.tasks),
            self._slots.total,
            LEASE,
            [pid for line in self._lines if (pid := line.backend_pid) is not None],
        )
        log.info(
            "worker %s serves %s with %d slots", self.identity.name, ", ".join(self._slots.queues), self._slots.total
        )

    async def _listen(self, deaf: asyncio.Event) -> None:
        def heard(topic: str, payload: str) -> None:
            if topic == "cancel":
                # Anybody may notify anything on this channel.
                with contextlib.suppress(ValueError):
                    self._cancel(UUID(payload))
            else:
                self._sleeper.heard(payload)

        def hearing(hears: bool) -> None:
            self._sleeper.hearing(deaf=not hears)

        await keep_listening(self._equipment.listen, ("", "cancel"), heard, hearing, deaf)

    async def _claim(self) -> None:
        """Keep the slots filled until told to stop."""
        patience = Patience(log, "claim jobs")
        sweep = True
        while not self._stopping.is_set():
            try:
                if await self._look(sweep=sweep):
                    sweep = False
                elif self._manners.burst and not self._runner.running:
                    if sweep and not self._settler.unsettled:
                        return
                    # What is being written may come back at once, as a retry without delay does.
                    await self._settler.settled(_LAST_SETTLEMENTS)
                    sweep = True
                else:
                    await self._sleeper.rest(partial(self._look, sweep=True))
                    sweep = True
                patience.worked()
            except StoreError as error:
                await _set_or_passed(self._stopping, patience.failed(error))
                sweep = True

    async def _look(self, *, sweep: bool) -> bool:
        """Claim for every group of queues with free slots; True if there was work, no slot for it, or no time."""
        groups = self._slots.groups()
        if not groups or self._settler.unsettled > max(_FEWEST_UNSETTLED, 2 * self._slots.total):
            await self._sleeper.pause()
            return True
        # Looking takes the nudge that stop() gives, so whoever is stopped does not look.
        while not self._stopping.is_set():
            self._sleeper.looking()
            found = await self._fill(groups, sweep=sweep)
            self._sleeper.lower_flags()
            due = (sweep and not found) or self._claimer.time_to_promote()
            promoted = due and await self._claimer.promote()
            if found or not promoted:
                return found
            sweep = True

        return True

    async def _fill(self, groups: list[Group], *, sweep: bool) -> bool:
        found = False
        for group in groups:
            for job in await self._claimer.claim(group, sweep=sweep):
                found = True
                # A claim whose answer came late may find its slots taken.
                if self._stopping.is_set() or not self._slots.take(job.queue):
                    self._settler.add(release(job))
                else:
                    self._runner.start(job)

        return found

    async def _finish(self) -> None:
        """Let jobs finish for the grace, cancel and release the rest, write what is unsettled."""
        running = self._runner.running
        if running:
            log.info("stopping: %d jobs may run for %g s more", len(running), self._manners.shutdown_grace)
        await _first_of(self._runner.done(self._manners.shutdown_grace), self._hurry.wait())
        self._runner.stop_all("shutdown")
        await self._runner.done(_STUBBORN)
        with contextlib.suppress(StoreError):
            for job in await self._claimer.leftovers():
                self._settler.add(release(job))
        await self._settler.settled(_LAST_SETTLEMENTS)
        self.left_behind = len(running) + self._settler.unsettled
        if self.left_behind:
            log.error(
                "%d jobs are left behind: %d handlers ignore their cancellation, %d outcomes could not be written",
                self.left_behind,
                len(running),
                self._settler.unsettled,
            )

    async def _say_goodbye(self) -> None:
        """Take the flags down and the row out; good manners only, so a database that hangs is not waited for."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._sleeper.leave()
                if not self.left_behind:
                    await self._beside.retire_worker(self.identity.id)

    # what the steps are given

    def _finished(self, settlement: Settlement) -> None:
        self.ended[settlement.kind] += 1
        self._settler.add(settlement)
        # Jobs may be waiting for this very slot; a burst wants to know when all is done.
        if self._slots.give_back(settlement.job.queue) or self._manners.burst:
            self._sleeper.nudge()

    def _cancel(self, job_id: UUID) -> None:
        if (run := self._runner.running.get(job_id)) is not None:
            self._runner.stop(run, "cancel")

    def _refused(self, unstorable: Settlement, error: Exception) -> Settlement:
        return replace_unstorable(unstorable, error, self.identity.name)


async def _set_or_passed(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
