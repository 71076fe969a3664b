"""Looks and mends: what the CLI and a dashboard are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from aiopgq._store.events import Events
from aiopgq._store.inbox import Inbox, Received
from aiopgq._store.jobs import Filters, Jobs
from aiopgq._store.limits import Limits
from aiopgq._store.schedules import Schedules
from aiopgq._store.workers import Workers
from aiopgq._words import options
from aiopgq._words.clock import uuid7
from aiopgq._words.job import JobInfo
from aiopgq._words.outbox_event import Lag
from aiopgq._words.schedule import ScheduleInfo
from aiopgq._words.workers import WorkerInfo
from aiopgq.errors import JobNotFound, ScheduleNotFound, UsageError

__all__ = ["Count", "Inspector", "QueueInfo", "Received", "Replayed"]

_ALL: Final = 2**31 - 1
_BATCH: Final = 1000
_MOVED_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs of a queue and task have a status."""

    queue: str
    task: str
    status: str
    jobs: int


class Replayed(NamedTuple):
    """What became of dead letters that were to be replayed.

    Attributes:
        jobs: How many are pending again.
        left: Those that were left, and the unfinished job that has the unique key of each.
    """

    jobs: int
    left: Mapping[UUID, UUID]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as people look at it.

    Attributes:
        queue: Its name.
        paused_at: Since when it is paused; None if it is not.
        ready: Jobs in line.
        waiting: Jobs that wait for their moment.
        held: Jobs kept out of the line: by a limit, an order, a paused or unknown task.
        running: Jobs that are claimed or running.
        workers: Live workers that serve it.
        most_running: How many may run at once; None for no limit.
        rate: How many may start in a period; None for no limit.
        burst: How many of them at the same moment.
        per: Seconds of the period.
    """

    queue: str
    paused_at: datetime | None
    ready: int
    waiting: int
    held: int
    running: int
    workers: int
    most_running: int | None
    rate: int | None
    burst: int | None
    per: float | None


class Inspector:
    """Looks at jobs, schedules, workers and the inbox, and mends them; `jobs.inspector` of an opened App."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._schedules = Schedules(jobs.line)
        self._workers = Workers(jobs.line)
        self._inbox = Inbox(jobs.line)
        self._limits = Limits(jobs.line)

    async def job(self, job_id: UUID) -> JobInfo:
        """Look at one job.

        Raises:
            JobNotFound: It was never committed, or is past its retention.
            StoreUnavailable: PostgreSQL did not answer.
        """
        info = await self._jobs.info(job_id)
        if info is None:
            raise JobNotFound(job_id)

        return info

    async def jobs(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        status: str | None = None,
        error: str | None = None,
        before: datetime | None = None,
        after: datetime | None = None,
        limit: int = 100,
    ) -> list[JobInfo]:
        """List jobs, newest first.

        Args:
            task: Only this task.
            queue: Only this queue.
            status: Only this status.
            error: Only jobs whose last error contains this.
            before: Only jobs created before this moment.
            after: Only jobs created after this moment.
            limit: The most jobs to return.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._jobs.newest(Filters(task, queue, status, before, after, error), limit)

    async def counts(self) -> list[Count]:
        """Count unfinished jobs and dead letters by queue, task and status.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return [Count(*row) for row in await self._jobs.counts()]

    async def cancel(self, job_id: UUID) -> str:
        """Cancel a job: cancelled at once, requested of its worker, or finished (too late).

        Raises:
            JobNotFound: It was never committed, or is past its retention.
            StoreUnavailable: PostgreSQL did not answer.
        """
        outcome = await self._jobs.cancel(job_id)
        if outcome == "not found":
            raise JobNotFound(job_id)

        return outcome

    async def dead(
        self,
        ids: Sequence[UUID] | None = None,
        *,
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[UUID]:
        """Find dead letters, oldest first.

        Args:
            ids: Only these.
            task: Only this task.
            queue: Only this queue.
            error: Only those whose last error contains this.
            before: Only those that failed before this moment.
            limit: The most to return; None for all.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        filters = Filters(task=task, queue=queue, error=error, before=before)
        return await self._jobs.dead_ids(ids, filters, _ALL if limit is None else limit)

    async def replay(self, ids: Sequence[UUID]) -> Replayed:
        """Make dead letters pending again, with all their attempts and their history.

        Those that are no dead letters (any more) are passed over, so replaying twice runs once. One whose unique
        key another job has meanwhile stays a dead letter. Each thousand is a transaction.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        jobs, left = 0, {}
        for at in range(0, len(ids), _BATCH):
            found = await self._jobs.replay(ids[at : at + _BATCH])
            keyed = {job_id: by for job_id, by in found.items() if by is not None}
            jobs += len(found) - len(keyed)
            left.update(keyed)

        return Replayed(jobs, left)

    async def purge(self, ids: Sequence[UUID]) -> int:
        """Delete dead letters for good; return how many. Each thousand is a transaction.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return sum([len(await self._jobs.purge(ids[at : at + _BATCH])) for at in range(0, len(ids), _BATCH)])

    async def schedules(self) -> Sequence[ScheduleInfo]:
        """List the schedules, by name.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._schedules.read()

    async def schedule(self, name: str) -> ScheduleInfo:
        """Look at one schedule.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        for info in await self._schedules.read(name):
            return info
        raise ScheduleNotFound(name)

    async def pause_schedule(self, name: str) -> None:
        """Let a schedule fire no more until it is resumed.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if not await self._schedules.pause(name):
            raise ScheduleNotFound(name)

    async def resume_schedule(self, name: str) -> None:
        """Let a paused schedule fire again; what it missed meanwhile is not made up for.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if not await self._schedules.resume(name):
            raise ScheduleNotFound(name)

    async def run_schedule(self, name: str) -> UUID:
        """Enqueue a job of a schedule now, paused or not; return its id.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        job_id = uuid7()
        if not await self._schedules.run(name, job_id):
            raise ScheduleNotFound(name)

        return job_id

    async def remove_schedule(self, name: str) -> None:
        """Delete a schedule; its jobs stay. One that code declares comes back with the next worker that starts.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if not await self._schedules.remove(name):
            raise ScheduleNotFound(name)

    # queues and tasks

    async def queues(self) -> list[QueueInfo]:
        """List the queues that have jobs, are served, are paused or have a limit.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return [QueueInfo(*row) for row in await self._limits.queues()]

    async def paused_tasks(self) -> dict[str, datetime]:
        """List the paused tasks, and since when they are.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._limits.paused_tasks()

    async def pause(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Pause a queue or a task, as `jobs.pause` does; False if it was paused already.

        Raises:
            UsageError: Neither or both were given.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if queue is not None and task is None:
            return await self._limits.pause_queue(options.name("queue", queue))
        changed = await self._limits.pause_task(options.name("task", _only("pause", queue, task)))
        # It holds already; this only spares the claims reading what they may not take.
        while await self._limits.hold_paused(_MOVED_AT_ONCE) == _MOVED_AT_ONCE:
            pass

        return changed

    async def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """End the pause of a queue or a task, as `jobs.resume` does; False if it was not paused.

        Raises:
            UsageError: Neither or both were given.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if queue is not None and task is None:
            return await self._limits.resume_queue(options.name("queue", queue))
        changed = await self._limits.resume_task(options.name("task", _only("resume", queue, task)))
        while await self._limits.free_resumed(_MOVED_AT_ONCE) == _MOVED_AT_ONCE:
            pass

        return changed

    # workers

    async def workers(self, *, ended: bool = False) -> list[WorkerInfo]:
        """List workers, the youngest first.

        Args:
            ended: Also those that ended in the last hours.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._workers.listed(ended=ended)

    async def drain_workers(self, ids: Sequence[UUID]) -> list[UUID]:
        """Ask workers to claim no more, finish what runs, and end; return those that live.

        They hear it at once, or with their next beat. It cannot be taken back: start another worker.

        Args:
            ids: Incarnations, as `workers()` lists them.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._workers.drain(ids)

    # inbox

    async def inbox(self) -> list[Received]:
        """Count the messages each consumer has received, as far as they are kept; reads the whole inbox.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._inbox.consumers()

    async def prune_inbox(self, window: float) -> int:
        """Delete the messages received more than that many seconds ago; return how many. Each 5,000 is a transaction.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._inbox.prune(window)

    # outbox

    async def outbox_lag(self) -> Lag:
        """Say how far the relays of the outbox are behind: what is unpublished, and the age of the oldest in seconds.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await Events(self._jobs.line).lag()


def _only(doing: str, queue: str | None, task: str | None) -> str:
    if task is None or queue is not None:
        raise UsageError(f"{doing} takes a queue or a task: {doing}(queue=…) or {doing}(task=…).")

    return task
