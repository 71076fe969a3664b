"""Where the jobs of a worker run and are settled; it outlives the worker's incarnations.

Wires the steps from a claimed job on: the runner turns jobs into settlements, the settler writes them; report,
rescue, tick and upkeep go beside, on one connection together.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from aiopgq._flow.gates import Gatekeeper
from aiopgq._flow.report import Reporter
from aiopgq._flow.rescue import Rescuer
from aiopgq._flow.run import Runner
from aiopgq._flow.settle import Settler
from aiopgq._flow.tell import Teller
from aiopgq._flow.tick import Ticker
from aiopgq._flow.transact import Transactor
from aiopgq._flow.upkeep import Upkeep
from aiopgq._store.connection import Line
from aiopgq._store.inbox import Inbox
from aiopgq._store.jobs import Jobs
from aiopgq._store.limits import Limits
from aiopgq._store.schedules import Schedules
from aiopgq._store.transaction import Transactions
from aiopgq._store.workers import Workers
from aiopgq._words.clock import monotonic
from aiopgq._words.conclusion import release_untouched, replace_unstorable
from aiopgq._words.counted import counted
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq._words.prefetch import TICK, Prefetch
from aiopgq.equipment import Equipment, Manners

__all__ = ["Workshop", "first_of"]

log = logging.getLogger("aiopgq.worker")

# A handler that ignores its cancellation for so long is left behind.
STUBBORN: Final = 2.0
_LAST_SETTLEMENTS: Final = 10.0
_LAST_EVENTS: Final = 5.0


class Workshop:
    """The runs and outcomes of one worker process.

    Args:
        equipment: What the App gives.
        manners: How the worker behaves.
        nudge: Called when the claimer should look again.
        incarnation: Gives the id under which the worker claims just now.
        may_start: Tells whether claimed jobs may begin: the worker is not told to stop, and its lease holds.

    Attributes:
        lines: Its connections.
        prefetch: The jobs that wait for a slot.
        ended: How many runs ended with each kind of settlement.
        left_behind: After the end: jobs whose handlers ignored cancellation, and outcomes not written.
    """

    def __init__(
        self,
        equipment: Equipment,
        manners: Manners,
        nudge: Callable[[], None],
        incarnation: Callable[[], UUID | None],
        may_start: Callable[[], bool],
    ) -> None:
        self._slots = equipment.slots
        self._manners = manners
        self._nudge = nudge
        self._may_start = may_start
        self.lines = [Line(equipment.connect, purpose) for purpose in ("settle", "beside")]
        settling, beside = (Jobs(line) for line in self.lines)
        keep = equipment.retention > 0
        teller = Teller(equipment.handlers)
        self._teller = teller if teller.listened_to else None
        written = None if self._teller is None else self._teller.ended
        self._settler = Settler(settling, keep=keep, refused=self._refused, written=written)
        self._transactions = Transactions(equipment.connect, self._slots.total)
        self._transactor = Transactor(self._transactions, beside, manners.name, self._settler.add, keep=keep)
        self.runner = Runner(
            equipment.tasks,
            manners.name,
            self._slots.total,
            self._finished,
            self._transactor,
            around=equipment.around,
            timed=self._teller is not None,
            max_result_bytes=equipment.max_result_bytes,
            job_log=manners.job_log,
        )
        tasks = equipment.tasks
        self.prefetch = Prefetch(
            self._slots,
            # A job that waits here takes room of a limit from those that could run elsewhere.
            {task.queue for task in tasks.values() if not task.may_wait} | equipment.queue_rules.keys(),
            # If the worker dies a job has spent its attempt, begun or not: the last one is not put at risk.
            lambda job: tasks[job.task].may_wait and job.attempts < job.max_attempts,
        )
        self._loop = asyncio.get_running_loop()
        self._ticking: asyncio.TimerHandle | None = None
        self._reporter = Reporter(beside, self.runner.running, self.cancel)
        self.upkeep = Upkeep(
            beside,
            Workers(self.lines[1]),
            Inbox(self.lines[1]),
            list(equipment.tasks),
            equipment.retention,
            equipment.inbox_window,
        )
        self.ticker = Ticker(Schedules(self.lines[1]), equipment.schedules)
        rules, unlimited = equipment.rules()
        queues = equipment.queue_rules
        self.gatekeeper = Gatekeeper(
            Limits(self.lines[1]), rules, unlimited, queues, frozenset(self._slots.queues) - queues.keys()
        )
        self._tasks = tasks
        self._rescuer = Rescuer(Workers(self.lines[1]), incarnation, manners.beat_interval, keep=keep)
        self.ended = {"completed": 0, "cancelled": 0, "failed": 0, "pending": 0}
        self.left_behind = 0

    @property
    def loops(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on as long as the worker lives."""
        beside = [self._reporter.run, self.upkeep.run, self.ticker.run, self._rescuer.run, self.gatekeeper.run]
        if self._teller is not None:
            beside.append(self._teller.run)
        return [self._settler.run, self._transactor.run, *beside]

    @property
    def running(self) -> int:
        """How many jobs run."""
        return len(self.runner.running)

    @property
    def unfinished(self) -> int:
        """How many jobs run or wait for a slot."""
        return self.running + len(self.prefetch)

    @property
    def unsettled(self) -> int:
        """How many outcomes are not written yet."""
        return self._settler.unsettled + self._transactor.unsettled

    @property
    def stuck_for(self) -> float:
        """Seconds the oldest unwritten outcomes have been under way; 0 when none are."""
        return max(self._settler.stuck_for, self._transactor.stuck_for)

    async def open(self) -> None:
        """Connect.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        await self._transactions.open()
        for line in self.lines:
            await line.open()
        await self.gatekeeper.open()

    async def close(self) -> None:
        """Close the connections."""
        await self._transactions.close()
        for line in self.lines:
            await line.close()

    def accept(self, job: ClaimedJob, *, runs: bool) -> None:
        """Take a claimed job: start it, let it wait for a slot, or release it if it may do neither."""
        if runs and self._slots.take(job.queue):
            self.runner.start(job)
            if self._teller is not None and self.runner.runs(job):
                self._teller.started(job)
        # A claim whose answer came late may find its slots taken.
        elif runs and self.prefetch.add(job):
            if self._ticking is None:
                self._ticking = self._loop.call_later(TICK, self._tick)
        else:
            self._settler.add(release_untouched(job))

    def release_waiting(self) -> None:
        """Give back the jobs that wait for a slot."""
        for job in self.prefetch.clear():
            self._settler.add(release_untouched(job))

    def cancel(self, job_id: UUID) -> None:
        """Ask a run to end because somebody wants its job cancelled; one that waits is released, which cancels it."""
        if (run := self.runner.running.get(job_id)) is not None:
            self.runner.stop(run, "cancel")
        elif (job := self.prefetch.remove(job_id)) is not None:
            self._settler.add(release_untouched(job))

    def _tick(self) -> None:
        self._ticking = None
        for job in self.prefetch.tick():
            self._settler.add(release_untouched(job))
        if len(self.prefetch):
            self._ticking = self._loop.call_later(TICK, self._tick)

    async def relieved(self) -> None:
        """Wait until some outcomes are written."""
        await self._settler.progress()

    async def settled(self, within: float) -> bool:
        """Wait until every outcome is written, so many seconds at most; tell whether that came true."""
        began = monotonic()
        # What a transaction leaves to be written is written after it.
        return await self._transactor.settled(within) and await self._settler.settled(within + began - monotonic())

    async def end_all(self) -> None:
        """After a lost lease: wait a moment for the runs that were told to end; what ignores it is reported."""
        if not await self.runner.done(STUBBORN):
            log.critical(
                "%s ignored a cancellation although others may run these jobs now: %s",
                counted(self.running, "handler"),
                ", ".join(f"{run.task} {run.id}" for run in self.runner.running.values()),
            )
            if self._manners.parent is not None:
                logging.shutdown()
                os._exit(1)

    async def finish(self, hurry: asyncio.Event, give_back: Callable[[], Awaitable[None]]) -> None:
        """Let jobs finish for the grace, cancel and release the rest, write what is unsettled.

        Args:
            hurry: Set when running jobs get no grace.
            give_back: Releases what claims took whose answer was lost.
        """
        self.release_waiting()
        if self.running:
            log.info("stopping: %s may run for %g s more", counted(self.running, "job"), self._manners.shutdown_grace)
        await first_of(self.runner.done(self._manners.shutdown_grace), hurry.wait())
        self.runner.stop_all("shutdown")
        await self.runner.done(STUBBORN)
        await give_back()
        await self.settled(_LAST_SETTLEMENTS)
        if self._teller is not None:
            await self._teller.told(_LAST_EVENTS)
        self.left_behind = self.running + self.unsettled
        if self.left_behind:
            log.error(
                "left behind: %s whose handlers ignored their cancellation, %s that could not be written",
                counted(self.running, "job"),
                counted(self.unsettled, "outcome"),
            )

    def _finished(self, settlement: Settlement, seconds: float) -> None:
        self.ended[settlement.kind] += 1
        if not settlement.settled:
            self._settler.add(settlement)
        else:
            if self._teller is not None:
                self._teller.ended(settlement)
            if (task := self._tasks.get(settlement.job.task)) is not None and task.restraint is not None:
                self.gatekeeper.ask()
        queue = settlement.job.queue
        self.prefetch.ran(settlement.job, seconds)
        none_was_free = self._slots.give_back(queue)
        if (waiting := self.prefetch.next(queue)) is not None:
            self.accept(waiting, runs=self._may_start())
            if self.prefetch.is_low(queue):
                self._nudge()
        # Jobs may be in line for this very slot; a burst wants to know when all is done.
        elif none_was_free or (self._manners.burst and not self.running):
            self._nudge()

    def _refused(self, unstorable: Settlement, error: Exception) -> Settlement:
        return replace_unstorable(unstorable, error, self._manners.name)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of several things; the others are no longer waited for."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
