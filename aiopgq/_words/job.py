"""A job as it moves through a worker, and a job as people look at it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from msgspec import Struct

from aiopgq._words.unique import UniqueKey

__all__ = [
    "FINAL",
    "ClaimedJob",
    "JobInfo",
    "Lane",
    "Mark",
    "NewJob",
    "Settlement",
    "Status",
    "WorkerIdentity",
]

Status = Literal["pending", "claimed", "running", "completed", "failed", "cancelled"]
FINAL: Final = frozenset({"completed", "failed", "cancelled"})


class NewJob(Struct, gc=False):
    """A row to be: everything checked, arguments encoded. A Struct is made in a fifth of the time of a dataclass."""

    id: UUID
    queue: str
    task: str
    args: str
    priority: int
    delay: float | None
    run_at: datetime | None
    max_attempts: int
    timeout: float | None
    headers: str | None
    unique: UniqueKey | None = None
    limit_key: str | None = None
    order_key: str | None = None
    order_blocks: bool = False


class Lane(NamedTuple):
    """The ready jobs of one queue and one priority."""

    queue: str
    priority: int


class ClaimedJob(NamedTuple):
    """A row that belongs to this worker.

    Attributes:
        attempts: Counts the run to come already.
        created: Seconds since 1970, by the clock of PostgreSQL; asyncpg takes longer to make a datetime of it than
            for the rest of the row.
    """

    id: UUID
    queue: str
    task: str
    priority: int
    place: int
    args: str
    headers: str | None
    attempts: int
    max_attempts: int
    timeout: timedelta | None
    created: float
    claim_id: UUID


class Mark(NamedTuple):
    """What a long run reports: seconds since it began, progress, stage, reports since the last mark."""

    id: UUID
    claim_id: UUID
    elapsed: float
    progress: float | None
    stage: str | None
    events: int


class Settlement(Struct, frozen=True, gc=False):
    """An outcome on its way to the store.

    Attributes:
        job: The job it settles.
        kind: What is written: completed, cancelled, failed (a dead letter) or pending (retry, snooze, release).
        result: The encoded result of a completed job.
        reason: The last error, or why it was cancelled or failed.
        error: The encoded entry for the job's list of errors.
        delay: Seconds until a pending job is due.
        refund: Whether the attempt is given back.
        untouched: Whether it is pending again as if it had not been claimed, in its old place.
        report: What the run reported last and nobody has written yet.
        settled: Whether it is written already, in the transaction of its run.
        seconds: How long the run took; None if nobody asks, or it never began.
    """

    job: ClaimedJob
    kind: Literal["completed", "cancelled", "failed", "pending"]
    result: str | None = None
    reason: str | None = None
    error: str | None = None
    delay: float = 0.0
    refund: bool = False
    untouched: bool = False
    report: Mark | None = None
    settled: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One incarnation of a worker: a new id at each start, never used again."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    parent: UUID | None = None


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as people look at it, whatever table holds it.

    Attributes:
        id: The job's id.
        queue: Its queue.
        task: The name of its task.
        status: pending, claimed, running, completed, failed or cancelled.
        priority: Higher runs first.
        attempts: Runs begun so far.
        max_attempts: Runs there may be.
        created_at: When it was enqueued, by the clock of PostgreSQL.
        run_at: When it is, or was, due.
        claimed_at: When a worker took it; None while it is pending.
        started_at: When it was seen running; None for runs shorter than about a second.
        finished_at: When it was completed, failed or cancelled.
        worker_id: The incarnation that owns or last owned it.
        progress: 0 to 100, as reported.
        current_stage: As reported.
        events_count: How many reports there were.
        held: Why a pending job may not be claimed; None if it may.
        cancel_requested: Its worker was asked to cancel it.
        args: The arguments as stored.
        headers: The headers as stored.
        result: The result as stored.
        last_error: The newest error.
        errors: An entry for each failed attempt: at, attempt, error, traceback, worker.
    """

    id: UUID
    queue: str
    task: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: UUID | None
    progress: float | None
    current_stage: str | None
    events_count: int
    held: str | None
    cancel_requested: bool
    args: dict[str, Any]
    headers: dict[str, Any]
    result: Any
    last_error: str | None
    errors: list[dict[str, Any]]
