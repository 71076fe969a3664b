"""What happened to a job, told to those who listen."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from aiopgq._words.job import ClaimedJob, Settlement

__all__ = ["EVENTS", "EventHandler", "EventKind", "Handlers", "JobEvent", "ended", "started"]

EventKind = Literal["started", "completed", "retried", "postponed", "failed", "cancelled"]
EVENTS: Final[tuple[EventKind, ...]] = get_args(EventKind)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something happened to a job in this worker.

    Attributes:
        kind: started, completed, retried, postponed (put back without spending the attempt: a Snooze, a release at
            shutdown), failed (a dead letter) or cancelled.
        job_id: The job's id.
        task: The name of its task, as stored.
        queue: Its queue.
        attempt: Which run it is, from 1.
        max_attempts: How many runs there may be.
        headers: The headers given when it was enqueued.
        seconds: How long the run took; None when it has just started, or never began.
        reason: The last error, or why it was cancelled or failed.
        delay: Seconds until it is due again, for retried and postponed.
    """

    kind: EventKind
    job_id: UUID
    task: str
    queue: str
    attempt: int
    max_attempts: int
    headers: dict[str, Any]
    seconds: float | None = None
    reason: str | None = None
    delay: float | None = None


EventHandler: TypeAlias = Callable[[JobEvent], Awaitable[None] | None]
Handlers: TypeAlias = Mapping[EventKind, Sequence[EventHandler]]


def started(job: ClaimedJob) -> JobEvent:
    """Tell that a run begins."""
    return _event("started", job)


def ended(settlement: Settlement) -> JobEvent:
    """Tell what became of a run."""
    back: EventKind = "postponed" if settlement.refund else "retried"

    return _event(
        back if settlement.kind == "pending" else settlement.kind,
        settlement.job,
        seconds=settlement.seconds,
        reason=settlement.reason,
        delay=settlement.delay if settlement.kind == "pending" else None,
    )


def _event(kind: EventKind, job: ClaimedJob, **rest: Any) -> JobEvent:
    return JobEvent(
        kind=kind,
        job_id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=job.attempts,
        max_attempts=job.max_attempts,
        headers=msgspec.json.decode(job.headers) if job.headers else {},
        **rest,
    )
