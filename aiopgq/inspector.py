"""Looks and mends: what the CLI and a dashboard are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from aiopgq._store.events import Events
from aiopgq._store.inbox import Inbox, Received
from aiopgq._store.jobs import Filters, Jobs
from aiopgq._store.schedules import Schedules
from aiopgq._store.workers import Workers
from aiopgq._words.clock import uuid7
from aiopgq._words.job import JobInfo
from aiopgq._words.outbox_event import Lag
from aiopgq._words.schedule import ScheduleInfo
from aiopgq._words.workers import WorkerInfo
from aiopgq.errors import JobNotFound, ScheduleNotFound

__all__ = ["Count", "Inspector", "Received", "Replayed"]

_ALL: Final = 2**31 - 1
_BATCH: Final = 1000


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


class Inspector:
    """Looks at jobs, schedules, workers and the inbox, and mends them; `jobs.inspector` of an opened App."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._schedules = Schedules(jobs.line)
        self._workers = Workers(jobs.line)
        self._inbox = Inbox(jobs.line)

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
