"""What happened, in sentences; every number in them is counted in the last picture of the database."""

from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from uuid import UUID

from aiopgq import JobInfo
from aiopgq.cli.demo.gauges import Picture, retried

__all__ = ["Fact", "Notes", "facts"]


@dataclass(slots=True)
class Notes:
    """What only the teller knows: which job is which.

    Attributes:
        orders: The orders in the table once both transactions have ended.
        shipped: The job of the order that was committed.
        rolled_back: The job of the order that was rolled back.
        cancelled: The job that was cancelled.
        replayed: The dead letters that were replayed, with their last error.
    """

    orders: list[int] = field(default_factory=list)
    shipped: UUID | None = None
    rolled_back: UUID | None = None
    cancelled: UUID | None = None
    replayed: dict[UUID, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, and whether it is what a queue must do."""

    text: str
    good: bool = True


def facts(picture: Picture, notes: Notes, poll_interval: float) -> list[Fact]:
    """Tell what happened.

    Args:
        picture: The last one.
        notes: Which job is which.
        poll_interval: Of the worker, in seconds.
    """
    return [
        _all(picture),
        _wakes(picture, poll_interval),
        _burst(picture),
        _transactions(picture, notes),
        _priority(picture),
        _retried(picture),
        *(_replayed(picture, job_id, error) for job_id, error in notes.replayed.items()),
        _delays(picture, notes),
        _snooze_and_threads(picture),
    ]


def _all(picture: Picture) -> Fact:
    total = picture.total
    return Fact(
        f"{total.all} jobs in {picture.seconds:.1f} s: {total.completed} completed, {total.cancelled} cancelled, "
        f"{total.dead} dead letter left, none lost.",
        good=picture.idle,
    )


def _wakes(picture: Picture, poll_interval: float) -> Fact:
    return Fact(
        f"An idle worker began a job {picture.wake_p50:.1f} ms after enqueue() was called (p50 of "
        f"{len(picture.wakes)}; it polls every {poll_interval:g} s)."
    )


def _burst(picture: Picture) -> Fact:
    jobs = picture.jobs["no_op"]
    span = (max(map(_finished, jobs)) - min(map(_claimed, jobs))).total_seconds()
    return Fact(
        f"{len(jobs)} empty jobs took {1000 * span:.0f} ms from the first claim to the last settlement: "
        f"{len(jobs) / span:,.0f} jobs/s."
    )


def _transactions(picture: Picture, notes: Notes) -> Fact:
    shipped = picture.find(notes.shipped)
    gone = notes.rolled_back is not None and picture.find(notes.rolled_back) is None
    first = shipped.status if shipped else "is lost"
    second = "never ran" if gone else "is there all the same"
    return Fact(
        f"Order 1 was committed and its job {first}; order 2 was rolled back: its job {second}.",
        good=shipped is not None and shipped.status == "completed" and gone and notes.orders == [1],
    )


def _priority(picture: Picture) -> Fact:
    urgent = [_claimed(job) for job in picture.jobs["reset_password"]]
    backfill = [_claimed(job) for job in picture.jobs["reindex"]]
    return Fact(
        f"{sum(moment <= min(backfill) for moment in urgent)} of {len(urgent)} urgent reset_password, enqueued last, "
        f"ran before any of {len(backfill)} reindex."
    )


def _retried(picture: Picture) -> Fact:
    jobs = picture.jobs["fetch_page"]
    completed = sum(job.status == "completed" for job in jobs)
    return Fact(
        f"{len(jobs)} fetch_page failed {sum(map(retried, jobs))} times and were tried again with growing pauses: "
        f"{completed} completed.",
        good=completed == len(jobs),
    )


def _replayed(picture: Picture, job_id: UUID, error: str | None) -> Fact:
    job = picture.find(job_id)
    return Fact(
        f"A dead letter ({error}) was replayed: {job.status if job else 'lost'}.",
        good=job is not None and job.status == "completed",
    )


def _delays(picture: Picture, notes: Notes) -> Fact:
    late = [(_claimed(job) - job.run_at).total_seconds() for job in picture.jobs["remind"] if job.status == "completed"]
    cancelled = picture.find(notes.cancelled)
    return Fact(
        f"{len(late)} delayed jobs began {1000 * median(late):.0f} ms (p50) after they were due; 1 was "
        f"{cancelled.status if cancelled else 'lost'} while it was pending.",
        good=cancelled is not None and cancelled.status == "cancelled",
    )


def _snooze_and_threads(picture: Picture) -> Fact:
    [job] = picture.jobs["restock"]
    seconds = (_finished(job) - job.created_at).total_seconds()
    thumbnails = picture.jobs["thumbnail"]
    threads = len({thumbnail.result for thumbnail in thumbnails})
    return Fact(
        f"restock snoozed and {job.status} after {seconds:.1f} s, in attempt {job.attempts}; "
        f"{len(thumbnails)} thumbnails (`def`) ran in {threads} threads.",
        good=job.status == "completed" and job.attempts == 1,
    )


def _claimed(job: JobInfo) -> datetime:
    return job.claimed_at or job.created_at


def _finished(job: JobInfo) -> datetime:
    return job.finished_at or job.created_at
