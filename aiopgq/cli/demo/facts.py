"""What happened, in sentences; every number in them is counted in the last picture of the database."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from aiopgq import JobInfo
from aiopgq.cli.demo.gauges import Picture, retries

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
        _retries(picture),
        *(_replayed(picture, job_id, error) for job_id, error in notes.replayed.items()),
        _delays(picture, notes),
        _threads(picture),
    ]


def _all(picture: Picture) -> Fact:
    total = picture.total
    return Fact(
        f"{total.all} jobs: {total.completed} completed, {total.cancelled} cancelled, {total.dead} left as a dead "
        f"letter, none lost, in {picture.seconds:.1f} s.",
        good=picture.idle,
    )


def _wakes(picture: Picture, poll_interval: float) -> Fact:
    return Fact(
        f"An idle worker began a job {picture.wake_p50:.1f} ms after enqueue() was called (p50 of "
        f"{len(picture.wakes)}, commit included); it polls only every {poll_interval:g} s."
    )


def _burst(picture: Picture) -> Fact:
    jobs = picture.jobs["no_op"]
    span = (max(map(_finished, jobs)) - min(map(_claimed, jobs))).total_seconds()
    return Fact(
        f"{len(jobs)} empty jobs went from the first claim to the last commit in {1000 * span:.0f} ms: "
        f"{len(jobs) / span:,.0f} jobs/s."
    )


def _transactions(picture: Picture, notes: Notes) -> Fact:
    shipped = notes.shipped and picture.find(notes.shipped)
    gone = notes.rolled_back is not None and picture.find(notes.rolled_back) is None
    return Fact(
        f"Order 1 was committed and its job is {shipped.status if shipped else 'lost'}; order 2 was rolled back: "
        f"its job {'never ran, as there is none' if gone else 'is there all the same'}.",
        good=bool(shipped) and shipped.status == "completed" and gone and notes.orders == [1],
    )


def _priority(picture: Picture) -> Fact:
    urgent = [_claimed(job) for job in picture.jobs["reset_password"]]
    backfill = min(_claimed(job) for job in picture.jobs["reindex"])
    return Fact(
        f"{sum(moment <= backfill for moment in urgent)} of {len(urgent)} reset_password, enqueued last with high "
        f"priority, ran before any of {len(picture.jobs['reindex'])} reindex."
    )


def _retries(picture: Picture) -> Fact:
    jobs = picture.jobs["fetch_page"]
    completed = sum(job.status == "completed" for job in jobs)
    return Fact(
        f"{len(jobs)} fetch_page failed {sum(map(retries, jobs))} times, were tried again with growing pauses, and "
        f"{completed} completed.",
        good=completed == len(jobs),
    )


def _replayed(picture: Picture, job_id: UUID, error: str | None) -> Fact:
    job = picture.find(job_id)
    left = [letter for letter in picture.jobs["charge_card"] if letter.status == "failed"]
    return Fact(
        f"A dead letter ({error}) was replayed and {job.status if job else 'lost'}; "
        f"{len(left)} is kept ({'; '.join(str(letter.last_error) for letter in left)}).",
        good=job is not None and job.status == "completed",
    )


def _delays(picture: Picture, notes: Notes) -> Fact:
    delayed = [job for job in picture.jobs["remind"] if job.status == "completed"]
    latest = max((_claimed(job) - job.run_at).total_seconds() for job in delayed)
    cancelled = notes.cancelled and picture.find(notes.cancelled)
    [snoozed] = picture.jobs["restock"]
    return Fact(
        f"{len(delayed)} delayed jobs began at most {1000 * latest:.0f} ms after they were due, 1 was "
        f"{cancelled.status if cancelled else 'lost'} while pending, and restock snoozed "
        f"{(snoozed.run_at - snoozed.created_at).total_seconds():.1f} s and {snoozed.status} in attempt "
        f"{snoozed.attempts}.",
        good=bool(cancelled) and cancelled.status == "cancelled" and snoozed.status == "completed",
    )


def _threads(picture: Picture) -> Fact:
    pictures, videos = picture.jobs["thumbnail"], picture.jobs["encode_video"]
    return Fact(
        f"{len(pictures)} thumbnails came from a `def` function in {len({job.result for job in pictures})} threads; "
        f"{len(videos)} videos reported progress {sum(job.events_count for job in videos)} times."
    )


def _claimed(job: JobInfo) -> datetime:
    return job.claimed_at or job.created_at


def _finished(job: JobInfo) -> datetime:
    return job.finished_at or job.created_at
