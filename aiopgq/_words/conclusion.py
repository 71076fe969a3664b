"""From what a run returned or raised to what is written about it."""

from typing import Any, Final, assert_never

from aiopgq._words import options
from aiopgq._words.backoff import Backoff, Failure
from aiopgq._words.clock import now
from aiopgq._words.codec import ResultNotEncodable
from aiopgq._words.current import StopReason
from aiopgq._words.failure import describe, entry, storable, trace
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq._words.outcome import OUTCOMES, Cancel, Fail, Outcome, Retry, Snooze
from aiopgq._words.task import TaskDefinition

__all__ = ["NotBegun", "conclude", "inconclusive", "postpone", "release", "release_untouched", "replace_unstorable"]

# A job that cannot be run here just now comes back after so many seconds.
_POSTPONED: Final = 1.0
# A job that can neither end nor be buried waits for a person, a day at a time.
_SET_ASIDE: Final = 86_400.0
_LOST: Final = "worker lost"
_REFUSED: Final = "the outcome"


class NotBegun(Exception):
    """A run's transaction could not be begun, so its handler was never called.

    Attributes:
        after: Seconds until it may be tried again.
    """

    def __init__(self, after: float) -> None:
        self.after = after
        super().__init__("the transaction of the run could not be begun")


def conclude(
    definition: TaskDefinition,
    job: ClaimedJob,
    value: Any,
    failure: BaseException | None,
    stopped: StopReason | None,
    worker: str,
    max_result_bytes: int,
) -> Settlement:
    """Conclude a run.

    Args:
        definition: The task.
        job: The job; its attempts count this run.
        value: What the handler returned.
        failure: What it raised, None if it returned.
        stopped: Why the run was asked to end, if it was.
        worker: Who ran it, for the entry in the job's errors.
        max_result_bytes: The largest result kept.
    """
    if failure is not None:
        return _raised(definition, job, failure, stopped, worker)
    if value is None:
        return Settlement(job, "completed")
    if isinstance(value, OUTCOMES):
        return _told(definition, job, value, None, worker)
    try:
        return Settlement(job, "completed", result=definition.codec.encode_result(value, max_result_bytes))
    except ResultNotEncodable as error:
        # The work is done; doing it again would give the same result.
        return _bury(job, f"result not serialisable: {error}", None, worker)


def release(job: ClaimedJob) -> Settlement:
    """Give a job back that was claimed but will not be finished; its attempt is not spent."""
    return Settlement(job, "pending", refund=True)


def release_untouched(job: ClaimedJob) -> Settlement:
    """Give a job back that was claimed but has not begun: it keeps its place, and its attempt is not spent."""
    return Settlement(job, "pending", refund=True, untouched=True)


def postpone(job: ClaimedJob) -> Settlement:
    """Give a job back that cannot be run here just now; its attempt is not spent."""
    return Settlement(job, "pending", delay=_POSTPONED, refund=True)


def inconclusive(job: ClaimedJob, error: BaseException, worker: str) -> Settlement:
    """Conclude a run whose conclusion raised an error, by nothing but the name of its class."""
    reason = f"the run's outcome could not be read ({type(error).__name__})"
    if job.attempts >= job.max_attempts:
        return _bury(job, reason, None, worker)

    return Settlement(
        job, "pending", reason=reason, error=_entry(job, reason, None, worker), delay=Backoff().delay(job.attempts)
    )


def replace_unstorable(unstorable: Settlement, error: Exception, worker: str) -> Settlement:
    """Replace an outcome that PostgreSQL refuses by a dead letter that says so; if that is refused, set it aside."""
    if unstorable.kind == "failed" and (unstorable.reason or "").startswith(_REFUSED):
        return Settlement(unstorable.job, "pending", reason=unstorable.reason, delay=_SET_ASIDE)

    return _bury(unstorable.job, f"{_REFUSED} ({unstorable.kind}) cannot be stored: {describe(error)}", None, worker)


def _told(
    definition: TaskDefinition, job: ClaimedJob, outcome: Outcome, failure: BaseException | None, worker: str
) -> Settlement:
    match outcome:
        case Retry():
            return _retry(definition, job, outcome, worker)
        case Snooze():
            return Settlement(job, "pending", delay=outcome.delay, refund=True)
        case Cancel():
            return Settlement(job, "cancelled", reason=storable(outcome.reason) or "cancelled by its handler")
        case Fail():
            return _bury(job, storable(outcome.reason) or "failed by its handler", failure, worker)
        case _:
            assert_never(outcome)


def _retry(definition: TaskDefinition, job: ClaimedJob, outcome: Retry, worker: str) -> Settlement:
    cause = outcome.__cause__ or outcome.__context__
    reason = "Retry" if cause is None else f"Retry, {describe(cause)}"
    if job.attempts >= job.max_attempts:
        return _bury(job, f"{reason}: no attempt is left of {job.max_attempts}", cause, worker)
    delay, note = (outcome.after, "") if outcome.after is not None else _ask_backoff(definition, job, cause or outcome)
    if delay is None:
        return _bury(job, reason, cause, worker)
    reason += note

    return Settlement(job, "pending", reason=reason, error=_entry(job, reason, cause, worker), delay=delay)


def _raised(
    definition: TaskDefinition, job: ClaimedJob, failure: BaseException, stopped: StopReason | None, worker: str
) -> Settlement:
    if isinstance(failure, OUTCOMES):
        return _told(definition, job, failure, failure, worker)
    if isinstance(failure, NotBegun):
        return Settlement(job, "pending", delay=failure.after, refund=True)
    return _failed(definition, job, failure, stopped, worker)


def _failed(
    definition: TaskDefinition,
    job: ClaimedJob,
    failure: BaseException,
    stopped: StopReason | None,
    worker: str,
) -> Settlement:
    if stopped == "shutdown":
        return release(job)
    if stopped == "lease":
        return _lost(job, worker)
    if stopped == "cancel":
        return Settlement(job, "cancelled", reason="cancelled while it ran")
    if stopped == "timeout":
        late = TimeoutError("the run took longer than its timeout")
        late.__cause__ = failure
        failure = late
    reason = describe(failure)
    if job.attempts >= job.max_attempts or isinstance(failure, definition.fail_on):
        return _bury(job, reason, failure, worker)
    delay, note = _ask_backoff(definition, job, failure)
    if delay is None:
        return _bury(job, reason, failure, worker)
    reason += note

    return Settlement(job, "pending", reason=reason, error=_entry(job, reason, failure, worker), delay=delay)


def _lost(job: ClaimedJob, worker: str) -> Settlement:
    """Conclude a run that was cut short because its lease was over, as others do who rescue its job: it is spent."""
    if job.attempts >= job.max_attempts:
        return _bury(job, _LOST, None, worker)
    delay = Backoff().delay(job.attempts)

    return Settlement(job, "pending", reason=_LOST, error=_entry(job, _LOST, None, worker), delay=delay)


def _ask_backoff(definition: TaskDefinition, job: ClaimedJob, failure: BaseException) -> tuple[float | None, str]:
    """Ask the task's policy; one that fails must not lose the job: the default steps in, with a note that says so."""
    try:
        delay = definition.backoff(Failure(definition.name, job.attempts, job.max_attempts, failure))
        return (None if delay is None else options.seconds("backoff", delay)), ""
    except BaseException as error:  # noqa: BLE001  # user code
        return Backoff().delay(job.attempts), f" (its backoff was of no use, {describe(error)})"


def _bury(job: ClaimedJob, reason: str, failure: BaseException | None, worker: str) -> Settlement:
    reason = storable(reason)

    return Settlement(job, "failed", reason=reason, error=_entry(job, reason, failure, worker))


def _entry(job: ClaimedJob, reason: str, failure: BaseException | None, worker: str) -> str:
    return entry(now(), job.attempts, reason, None if failure is None else trace(failure), worker)
