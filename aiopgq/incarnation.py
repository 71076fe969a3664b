"""One incarnation of a worker: it claims under an id never used again, as long as its lease holds.

Wires the steps before a run: the sleeper decides when to look, the claimer fills free slots, the pulse says that the
incarnation lives.
"""

import asyncio
import contextlib
import logging
import os
import socket
from typing import Final
from uuid import UUID

from aiopgq._flow.claim import Claimer
from aiopgq._flow.listen import keep_listening
from aiopgq._flow.pulse import Heart, Pulse
from aiopgq._flow.wake import Sleeper
from aiopgq._store.connection import Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.patience import Patience
from aiopgq._store.workers import Beat, Workers
from aiopgq._words.clock import monotonic, uuid7
from aiopgq._words.counted import counted
from aiopgq._words.job import WorkerIdentity
from aiopgq.equipment import Equipment, Manners
from aiopgq.errors import StoreError
from aiopgq.workshop import Workshop, first_of

__all__ = ["Incarnation"]

log = logging.getLogger("aiopgq.worker")

_FAREWELL: Final = 2.0
_FEWEST_UNSETTLED: Final = 2000
_FEW: Final = 10
_LAST_SETTLEMENTS: Final = 10.0
# Claims, and what goes before sleep, take milliseconds: what has waited so long for its answer gets none.
_UNANSWERED: Final = 5.0


class Incarnation:
    """One incarnation, from its registration to its last claim.

    Args:
        equipment: What the App gives.
        manners: How the worker behaves.
        workshop: Where its jobs run and are settled; it outlives the incarnation.
        stopping: Set when the worker shall end: no job is claimed any more.
        drained: Set here when somebody asks the worker to claim no more, finish, and end.

    Attributes:
        lost: Why its lease is over; None while it holds.
        fenced: Set when the lease is over and its runs have ended, or been reported.
    """

    def __init__(
        self,
        equipment: Equipment,
        manners: Manners,
        workshop: Workshop,
        stopping: asyncio.Event,
        drained: asyncio.Event,
    ) -> None:
        self._equipment = equipment
        self._manners = manners
        self._workshop = workshop
        self._stopping = stopping
        self._drained = drained
        self.identity = WorkerIdentity(
            id=uuid7(),
            name=manners.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=equipment.version,
            parent=None if manners.parent is None else manners.parent.id,
        )
        self.lost: str | None = None
        self._answered = False
        self.fenced = asyncio.Event()
        self._over = asyncio.Event()
        self._left = False
        self._deaf = asyncio.Event()
        self._line = Line(equipment.connect, "claim")
        jobs = Jobs(self._line)
        heart = Heart(manners.lease, manners.beat_interval, manners.hang_limit, exits=manners.parent is not None)
        self.pulse = Pulse(
            equipment.listen,
            self.identity.id,
            heart,
            draining=lambda: stopping.is_set() or drained.is_set(),
            heard=self._heard_beat,
            lost=self._lose,
        )
        self._claimer = Claimer(jobs, self.identity.id, list(equipment.tasks), lambda: self.pulse.fleet)
        self.sleeper = Sleeper(
            jobs,
            equipment.slots.queues,
            manners.poll_interval,
            self._claimer.seconds_until_due,
            lambda: self.pulse.fleet,
        )

    @property
    def claiming(self) -> bool:
        """Whether the last claim had an answer, and what is under way can still get one."""
        return self._answered and self._line.waits_for < _UNANSWERED

    @property
    def may_start(self) -> bool:
        """Whether what it has claimed may begin to run."""
        return not self._ending and self.pulse.holds

    @property
    def _ending(self) -> bool:
        return self._stopping.is_set() or self._drained.is_set() or self.lost is not None

    async def register(self) -> None:
        """Announce the incarnation.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        try:
            registered_at = await self._register()
        except BaseException:
            # It is given up, and another made: its connection must not stay behind.
            await self._line.close()
            raise
        self.pulse.start(registered_at)
        slots = self._equipment.slots
        log.info(
            "worker %s serves %s with %s", self.identity.name, ", ".join(slots.queues), counted(slots.total, "slot")
        )

    async def _register(self) -> float:
        await self._line.open()
        workers, slots = Workers(self._line), self._equipment.slots
        keep, parent = self._equipment.retention > 0, self._manners.parent
        if parent is not None:
            parent.announce(self._equipment.connect, keep)
            # Before the registration: a predecessor may have had the pid of this process.
            for pid in parent.predecessors:
                await workers.bury(parent.id, pid, keep=keep)
        backends = [one for line in (self._line, *self._workshop.lines) if (one := line.backend_pid) is not None]
        sent = monotonic()
        await workers.register(
            self.identity, slots.queues, list(self._equipment.tasks), slots.total, self._manners.lease, backends
        )

        return sent

    async def listen(self) -> None:
        """Hear about pending jobs and cancel requests until the incarnation leaves."""

        def heard(topic: str, payload: str) -> None:
            if topic == "cancel":
                # Anybody may notify anything on this channel.
                with contextlib.suppress(ValueError):
                    self._workshop.cancel(UUID(payload))
            elif topic == "drain":
                if payload == str(self.identity.id):
                    self._drain()
            else:
                self.sleeper.heard(payload)

        def hearing(hears: bool) -> None:
            self.sleeper.hearing(deaf=not hears)

        await keep_listening(self._equipment.listen, ("", "cancel", "drain"), heard, hearing, self._deaf)

    async def claim(self) -> None:
        """Keep the slots filled until told to stop, the lease is lost, or with burst nothing is due."""
        patience = Patience(log, "claim jobs")
        sweep = True
        while not self._ending:
            try:
                # A run that ends while we look may put jobs into the line behind our back.
                quiet = not self._workshop.unfinished and not self._workshop.unsettled
                entered = self._workshop.gatekeeper.entered
                if await self._look(sweep=sweep):
                    sweep = False
                elif self._manners.burst and not self._workshop.unfinished:
                    if sweep and quiet and await self._nobody_entered(entered):
                        return
                    # What is being written may come back at once, as a retry without delay does.
                    await self._workshop.settled(_LAST_SETTLEMENTS)
                    sweep = True
                else:
                    await self.sleeper.rest(self._look_in_rest)
                    sweep = True
                patience.worked()
            except StoreError as error:
                self._answered = False
                pause = asyncio.sleep(patience.failed(error))
                await first_of(self._stopping.wait(), self._drained.wait(), self._over.wait(), pause)
                sweep = True

    async def fence(self) -> None:
        """When the lease is over: see that the runs end, whatever the claimer is still waiting for."""
        await self._over.wait()
        await self._workshop.end_all()
        self.fenced.set()

    async def give_back(self) -> None:
        """Release what claims took whose answer was lost; no further claim would find it."""
        with contextlib.suppress(StoreError):
            for job in await self._claimer.leftovers():
                self._workshop.accept(job, runs=False)

    async def leave(self, *, retire: bool) -> None:
        """Take the flags down and the row out; good manners only, so a database that hangs is not waited for."""
        if self._left and not retire:
            return
        self._left = True
        self._deaf.set()
        await self.pulse.stop(_FAREWELL)
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self.sleeper.leave()
                if retire:
                    await Workers(self._line).retire(self.identity.id)
        await self._line.close()

    async def _look_in_rest(self) -> bool:
        # A look takes the nudge that the last run has given, by which a burst knows its end.
        return (self._manners.burst and not self._workshop.unfinished) or await self._look(sweep=True)

    async def _look(self, *, sweep: bool) -> bool:
        """Claim for every group of queues with room; True if there was work, no room for it, or no time."""
        prefetch = self._workshop.prefetch
        groups = prefetch.groups()
        if not groups:
            await self.sleeper.pause()
            return True
        if self._workshop.unsettled > max(_FEWEST_UNSETTLED, 2 * self._equipment.slots.total):
            # No slot may be taken any more, and so nobody give a nudge.
            await first_of(self.sleeper.pause(), self._workshop.relieved())
            return True
        # Looking takes the nudge that stop() gives, so whoever is stopped does not look.
        while not self._ending:
            self.sleeper.looking()
            found = 0
            for group in groups:
                jobs = await self._claimer.claim(group, sweep=sweep)
                prefetch.found(group, jobs)
                found += len(jobs)
                may_start = self.may_start
                for job in jobs:
                    self._workshop.accept(job, runs=may_start)
            if 0 < found <= _FEW:
                # A few begin before the next claim is sent; while many begin, it is under way.
                await asyncio.sleep(0)
            # Here, not after the rest: whoever is asleep has claimed.
            self._answered = True
            self.sleeper.lower_flags(found=found > 0)
            due = (sweep and not found) or self._claimer.time_to_promote()
            promoted = due and await self._claimer.promote()
            if found or not promoted:
                return found > 0
            sweep = True

        return True

    async def _nobody_entered(self, before: int) -> bool:
        """Tell whether nothing was let into the line beside the claims, and nothing can be."""
        await self._workshop.gatekeeper.work()

        return self._workshop.gatekeeper.entered == before

    def _heard_beat(self, beat: Beat) -> None:
        for job_id in beat.cancelled:
            self._workshop.cancel(job_id)
        if beat.drain:
            self._drain()

    def _drain(self) -> None:
        if not (self._drained.is_set() or self._stopping.is_set()):
            name, running = self.identity.name, self._workshop.running
            log.info("worker %s drains: it claims no more, finishes %s, and ends", name, counted(running, "job"))
            self._drained.set()
            self.sleeper.nudge()

    def _lose(self, reason: str) -> None:
        self.lost = reason
        log.error("worker %s has lost its lease: %s; its jobs are cancelled here", self.identity.name, reason)
        # Now, not when somebody looks: others may have begun to run these jobs.
        self._workshop.release_waiting()
        self._workshop.runner.stop_all("lease")
        self._over.set()
        self.sleeper.nudge()
