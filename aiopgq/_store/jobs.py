"""The jobs in the database: one short coroutine for each statement; rows become values.

Every method is one statement in a transaction of its own. What it promises when the process dies in the middle
is what PostgreSQL promises: all of it or nothing.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.foreign import fetch_foreign
from aiopgq._store.new_rows import given, inserted, insertion, keyed_columns, standings
from aiopgq._store.statements import statement
from aiopgq._store.trouble import NoPartition
from aiopgq._words.job import ClaimedJob, JobInfo, Lane, Mark, NewJob, Settlement
from aiopgq._words.progress import Progress
from aiopgq._words.unique import Standing

__all__ = [
    "Asleep",
    "Filters",
    "Jobs",
    "Outstanding",
    "Promotion",
    "Unserved",
    "complete_foreign",
]

# `_make` without the call around it.
_new: Final = tuple.__new__
EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
_COMPLETE_TYPES: Final = ("uuid", "uuid", "text", "boolean")
_decode: Final[Callable[[str], Any]] = msgspec.json.Decoder().decode


class Asleep(NamedTuple):
    """Flags raised: their values, how often each was lowered, whether all stood; else the transaction to wait for."""

    flags: list[int]
    lowered: list[int]
    unbroken: bool
    horizon: int | None


class Promotion(NamedTuple):
    """Jobs promoted, how far the due list is read, and seconds until the next job is due (None: none waits)."""

    promoted: int
    reached: datetime | None
    next_in: float | None


class Unserved(NamedTuple):
    """Due jobs that no live worker would claim; known: some live worker knows the task, for other queues."""

    queue: str
    task: str
    jobs: int
    known: bool


class Outstanding(NamedTuple):
    """Where a job stands: its status, and what is kept of its end."""

    status: str
    result: str | None
    last_error: str | None
    errors: list[dict[str, Any]]


class Filters(NamedTuple):
    """Which jobs to list; None means any."""

    task: str | None = None
    queue: str | None = None
    status: str | None = None
    before: datetime | None = None
    after: datetime | None = None
    error: str | None = None


class Jobs:
    """The statements about jobs, on one line or several."""

    def __init__(self, line: Fetcher) -> None:
        self.line = line
        self.schema: str = line.settings.schema

    async def _fetch(self, doing: str, name: str, *args: Any) -> list[Any]:
        return await fetch_whole(self.line, doing, statement(name, self.schema), *args)

    # enqueue

    async def enqueue(self, jobs: Sequence[NewJob], *, once: bool = False) -> list[Standing]:
        """Insert jobs; with `once`, only those that are in none of the tables. Returns the job that stands for each."""
        name, _, columns = insertion(jobs, once=once)
        return inserted(jobs, name, await self._fetch("enqueue jobs", name, *columns))

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, once: bool = False) -> list[Standing]:
        """Insert jobs of which some have unique keys, all or none. Returns the job that stands for each."""
        rows = await self._fetch("enqueue jobs", "enqueue_unique", *keyed_columns(jobs, once=once))
        return standings(jobs, rows)

    # wake

    async def fall_asleep(
        self, slots: Sequence[int], seen: Sequence[int], seconds: float, lowered: Sequence[int] | None
    ) -> Asleep:
        """Raise the flag of each slot for so many seconds; `lowered` is None if the flags seen are not trusted."""
        [row] = await self._fetch("raise the flag of a sleeper", "fall_asleep", slots, seen, seconds, lowered)
        return Asleep(*row)

    async def horizon_passed(self, horizon: int) -> bool:
        """Tell whether all transactions older than the horizon have ended."""
        [row] = await self._fetch("read the oldest transaction", "horizon_passed", horizon)
        return bool(row[0])

    async def wake_up(self, slots: Sequence[int], flags: Sequence[int]) -> None:
        """Lower those flags that still hold their value."""
        await self._fetch("lower the flag of a sleeper", "wake_up", slots, flags)

    async def leave_sleepers(self, slots: Sequence[int], flags: Sequence[int], queues: Sequence[str]) -> None:
        """Lower those flags that still hold their value, and wake others who sleep by them."""
        await self._fetch("leave the sleepers", "leave_sleepers", slots, flags, queues)

    async def promote(self, earliest: datetime, limit: int, tasks: Sequence[str] = ()) -> Promotion:
        """Give due jobs their place in line, and let in those of the tasks that have arrived outside."""
        [row] = await self._fetch("promote due jobs", "promote", earliest, limit, tasks)
        return Promotion(*row)

    # claim

    async def claim(
        self,
        worker: UUID,
        claim_id: UUID,
        limit: int,
        tasks: Sequence[str],
        queues: dict[str, int],
        lanes: dict[Lane, int] | None,
    ) -> list[ClaimedJob]:
        """Claim up to `limit` ready jobs; `lanes` gives a lower bound each, None sweeps from the start."""
        if lanes is None:
            bounds: tuple[Any, ...] = (None, None, None)
        else:
            ordered = sorted(lanes.items(), key=lambda item: -item[0].priority)
            bounds = (
                [lane.queue for lane, _ in ordered],
                [lane.priority for lane, _ in ordered],
                [bound for _, bound in ordered],
            )
        rows = await self._fetch(
            "claim jobs",
            "claim",
            worker,
            claim_id,
            limit,
            tasks,
            list(queues),
            list(queues.values()),
            *bounds,
        )
        return [_new(ClaimedJob, (*row, claim_id)) for row in rows]

    async def reclaim(self, worker: UUID, claim_id: UUID) -> list[ClaimedJob]:
        """Read again what a claim took whose answer was lost."""
        rows = await self._fetch("read a claim again", "reclaim", worker, claim_id)
        return [_new(ClaimedJob, (*row, claim_id)) for row in rows]

    async def mark(self, marks: Sequence[Mark]) -> dict[UUID, bool]:
        """Mark long runs. Returns those still ours, and whether a cancel was requested."""
        rows = await self._fetch("mark running jobs", "mark", *_transposed(marks, 6))
        return {row[0]: row[1] for row in rows}

    # settle

    async def settle(self, kind: str, batch: Sequence[Settlement], *, keep: bool) -> set[UUID]:
        """Settle outcomes of one kind. Returns the ids that were still ours."""
        ids = [one.job.id for one in batch]
        claims = [one.job.claim_id for one in batch]
        match kind:
            case "completed":
                results = given([one.result for one in batch])
                [(ours,)] = await self._fetch("complete jobs", "complete", ids, claims, results, keep)
                return set(ids if ours is None else ours)
            case "cancelled":
                rows = await self._fetch("cancel jobs", "cancel", ids, claims, [one.reason for one in batch], keep)
            case "failed":
                reasons, errors = [one.reason for one in batch], [one.error for one in batch]
                rows = await self._fetch("bury jobs", "bury", ids, claims, reasons, errors)
            case _:
                rows = await self._fetch(
                    "reschedule jobs",
                    "reschedule",
                    ids,
                    claims,
                    [None if one.untouched else one.delay for one in batch],
                    [one.refund for one in batch],
                    [one.reason for one in batch],
                    [one.error for one in batch],
                    keep,
                )
        return {row[0] for row in rows}

    async def still_claimed(self, job: ClaimedJob, *, terminate: bool) -> bool:
        """Tell whether a run still owns its job, once the transaction that may have settled it has ended.

        With `terminate`, whatever backend still holds that transaction is ended.
        """
        doing = "see whether a job is still claimed"
        [row] = await self._fetch(doing, "still_claimed", job.id, job.claim_id, terminate)
        return bool(row[0])

    # upkeep

    async def make_partitions(self, days: int) -> int:
        """Make the missing days of the archive."""
        return await self._upkeep("make partitions of the archive", "make_partitions", days)

    async def drop_partitions(self, retention: float) -> int:
        """Drop the days of the archive that are past the retention."""
        return await self._upkeep("drop partitions of the archive", "drop_partitions", retention)

    async def prune_holds(self, limit: int) -> int:
        """Forget unique keys whose period is over."""
        return await self._upkeep("forget unique keys", "prune_holds", limit)

    async def hold_unknown(self, tasks: Sequence[str], limit: int) -> int:
        """Take jobs of tasks nobody knows out of the line."""
        return await self._upkeep("hold jobs of unknown tasks", "hold_unknown", tasks, limit)

    async def free_known(self, tasks: Sequence[str], limit: int) -> int:
        """Put held jobs of known tasks back into the line."""
        return await self._upkeep("free held jobs", "free_known", tasks, limit)

    async def _upkeep(self, doing: str, name: str, *args: Any) -> int:
        [row] = await self._fetch(doing, name, *args)
        return int(row[0])

    async def unserved(self, limit: int) -> list[Unserved]:
        """Look for due jobs that no live worker would claim."""
        return [Unserved(*row) for row in await self._fetch("look for unserved jobs", "unserved", limit)]

    # look and mend

    async def await_results(self, seconds: float) -> None:
        """Ask for notifications of finished jobs."""
        await self._fetch("wait for results", "await_results", seconds)

    async def status(self, job_id: UUID) -> Outstanding | None:
        """Tell where a job stands; None if it is not there."""
        rows = await self._fetch("look at a job", "job_status", job_id)
        if not rows:
            return None
        status, result, last_error, errors = rows[0]
        return Outstanding(status, result, last_error, _decode(errors) if errors else [])

    async def info(self, job_id: UUID) -> JobInfo | None:
        """Tell all about a job; None if it is not there."""
        rows = await self._fetch("look at a job", "job_info", job_id)
        return _info(rows[0]) if rows else None

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """Tell how far jobs are, those that are there."""
        rows = await self._fetch("look how far jobs are", "job_progress", ids)
        return {row[0]: Progress(*row[1:]) for row in rows}

    async def newest(self, filters: Filters, limit: int) -> list[JobInfo]:
        """List the newest jobs that fit, newest first."""
        return [_info(row) for row in await self._fetch("list jobs", "job_list", *filters, limit)]

    async def enqueued(self, tasks: Sequence[str]) -> list[Any]:
        """List the pending jobs of a task, given its names; the rows as `sql/enqueued.sql` says."""
        return await self._fetch("list enqueued jobs", "enqueued", tasks)

    async def ready(self, queue: str, limit: int) -> int:
        """Count the jobs of a queue that are in line, up to a limit."""
        [row] = await self._fetch("count ready jobs", "count_ready", queue, limit)
        return int(row[0])

    async def counts(self) -> list[tuple[str, str, str, int]]:
        """Count unfinished jobs and dead letters by queue, task and status."""
        return [tuple(row) for row in await self._fetch("count jobs", "job_counts")]

    async def drain_rate(self) -> tuple[float, int]:
        """Return how many jobs of the archive were run a second, and how many there are."""
        [(rate, completed)] = await self._fetch("count what was done", "drain_rate", None)
        return rate or 0.0, completed

    async def cancel(self, job_id: UUID) -> str:
        """Cancel a job from outside: cancelled, requested, finished or not found."""
        try:
            [row] = await self._fetch("cancel a job", "cancel_job", job_id)
        except NoPartition:
            # No worker has looked after the archive for two weeks.
            await self.make_partitions(0)
            [row] = await self._fetch("cancel a job", "cancel_job", job_id)
        return str(row[0])

    async def dead_ids(self, ids: Sequence[UUID] | None, filters: Filters, limit: int) -> Sequence[UUID]:
        """Find the oldest dead letters that fit (`before` is about when they failed)."""
        rows = await self._fetch(
            "look for dead letters",
            "dead_ids",
            ids,
            filters.task,
            filters.queue,
            filters.error,
            filters.before,
            limit,
        )
        return [row[0] for row in rows]

    async def replay(self, ids: Sequence[UUID]) -> dict[UUID, UUID | None]:
        """Make dead letters pending again. Returns those found; of one that is left, the job that has its key."""
        return {row[0]: row[1] for row in await self._fetch("replay dead letters", "replay", ids)}

    async def purge(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Delete dead letters for good. Returns those deleted."""
        return [row[0] for row in await self._fetch("purge dead letters", "purge", ids)]


async def complete_foreign(connection: Any, schema: str, job: ClaimedJob, result: str | None, *, keep: bool) -> bool:
    """Complete a job in the transaction of its handler, on his connection; False if it is no longer his."""
    sql = statement("complete_within", schema)
    [row] = await fetch_foreign(connection, sql, _COMPLETE_TYPES, [job.id, job.claim_id, result, keep])

    return bool(row[0])


def _transposed(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[n] for row in rows] for n in range(width)]


def _info(row: Any) -> JobInfo:
    fields = dict(row.items())
    fields["args"] = _decode(fields["args"])
    fields["headers"] = _decode(fields["headers"]) if fields["headers"] else {}
    fields["result"] = _decode(fields["result"]) if fields["result"] else None
    fields["errors"] = _decode(fields["errors"]) if fields["errors"] else []

    return JobInfo(**fields)
