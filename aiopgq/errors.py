"""Everything aiopgq raises, drawn as a tree.

    AiopgqError
    ├── UsageError              the program asks for something impossible; waiting does not help
    │   ├── ArgumentError           (TypeError)    a call does not fit the task: task, parameter, reason
    │   ├── AppNotOpen              (RuntimeError) the App was used outside `async with jobs`
    │   ├── WrongLoop               (RuntimeError) the App was opened in another event loop
    │   ├── TaskNotIncluded         (LookupError)  a Router's task was used before jobs.include(router)
    │   ├── TaskNameTaken           (ValueError)   two functions want one task name
    │   ├── ScheduleNotFound        (LookupError)  no schedule of that name in the database
    │   ├── NotYetCommitted         (RuntimeError) result() while the enqueuing transaction is open
    │   ├── NoCurrentJob            (LookupError)  current_job() outside a job
    │   ├── NoState                 (LookupError)  jobs.state where no worker runs
    │   └── ConfigError             (ValueError)   a setting cannot be used
    ├── SchemaError             the database is not what this version needs
    │   ├── SchemaMissing           no tables of ours there
    │   ├── SchemaBehind            older than this version runs on
    │   ├── SchemaAhead             so new that this version may not run on it
    │   └── MigrationChanged        an applied migration differs from the one shipped
    ├── StoreError              PostgreSQL did not do it; the reason is __cause__
    │   ├── StoreUnavailable        no answer in time; safe to repeat with the same id
    │   ├── RowRefused              PostgreSQL cannot store a row of ours
    │   ├── MessageHeld             (TimeoutError) a transaction that is receiving the same message does not end
    │   ├── EnqueueUnknown          whether the job was committed cannot be known
    │   └── UniqueKeyHeld           another transaction has written the key of the job, and does not end
    ├── QueueFull               a queue has as many ready jobs as `max_pending` allows
    ├── BrokerUnavailable       (ConnectionError) a broker takes no event now; waiting helps
    └── JobError                about one job
        ├── JobFailed               it is a dead letter
        ├── JobCancelled            it was cancelled
        ├── JobNotFound             (LookupError)  no such job, or no longer kept
        ├── ResultNotKept           it is done, its result was not kept
        ├── ResultTimeout           (TimeoutError) not done in the time given to result()
        └── JobLost                 another worker owns the job now

Facts are fields; each message says what happened and what to do.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

__all__ = [
    "AiopgqError", "AppNotOpen", "ArgumentError", "BrokerUnavailable", "ConfigError", "EnqueueUnknown",
    "JobCancelled", "JobError", "JobFailed", "JobLost", "JobNotFound", "MessageHeld", "MigrationChanged",
    "NoCurrentJob", "NoState", "NotYetCommitted", "QueueFull", "ResultNotKept", "ResultTimeout", "RowRefused",
    "ScheduleNotFound", "SchemaAhead", "SchemaBehind", "SchemaError", "SchemaMissing", "StoreError",
    "StoreUnavailable", "TaskNameTaken", "TaskNotIncluded", "UniqueKeyHeld", "UsageError", "WrongLoop",
]  # fmt: skip


class AiopgqError(Exception):
    """The base of everything aiopgq raises."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling and copying: the facts go along, the message is not made again."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AiopgqError], args: tuple[Any, ...], facts: dict[str, Any]) -> AiopgqError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError, a base of TimeoutError, forgets them
    error.__dict__.update(facts)

    return error


class UsageError(AiopgqError):
    """The program asks for something impossible; waiting does not help."""

    exit_code = 2


class ArgumentError(UsageError, TypeError):
    """A call does not fit the task.

    Attributes:
        task: The task's name.
        parameter: The parameter at fault (a path such as `items[3].price`), or None for the call as a whole.
        reason: What is wrong with it.
    """

    def __init__(self, task: str, parameter: str | None, reason: str) -> None:
        self.task, self.parameter, self.reason = task, parameter, reason
        where = f", parameter {parameter!r}" if parameter else ""
        super().__init__(f"Task {task!r}{where}: {reason.removesuffix('.')}.")


class AppNotOpen(UsageError, RuntimeError):
    """The App was used outside `async with jobs`."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        super().__init__(
            f"Cannot {doing}: the App is not open. Wrap the program in `async with jobs:` (in FastAPI: "
            "`FastAPI(lifespan=jobs.lifespan)`), or pass a connection of your own with `.options(connection=…)`."
        )


class WrongLoop(UsageError, RuntimeError):
    """The App was opened in another event loop."""

    def __init__(self) -> None:
        super().__init__(
            "This App was opened in another event loop. Open one per loop: `async with jobs:` where it is used."
        )


class TaskNotIncluded(UsageError, LookupError):
    """A Router's task was used before an App included the router, or no such task is known."""

    def __init__(self, task: str, closest: str | None = None) -> None:
        self.task, self.closest = task, closest
        what_to_do = "Call `jobs.include(router)` first, or import the module that defines the task."
        if closest:
            what_to_do = f"Did you mean {closest!r}? A name is complete with its module or prefix."
        super().__init__(f"Task {task!r} belongs to no App. {what_to_do}")


class TaskNameTaken(UsageError, ValueError):
    """Two functions want one task name."""

    def __init__(self, task: str, first_defined_at: str) -> None:
        self.task, self.first_defined_at = task, first_defined_at
        super().__init__(
            f"Task name {task!r} is taken by {first_defined_at}. "
            "Give one of them another name with `@jobs.task(name=…)`."
        )


class ScheduleNotFound(UsageError, LookupError):
    """There is no schedule of that name in the database."""

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        super().__init__(
            f"There is no schedule {schedule!r}. `python -m aiopgq schedules list` shows them; "
            "one that code declares is written when a worker starts."
        )


class NotYetCommitted(UsageError, RuntimeError):
    """`result()` was awaited while the transaction that enqueues the job is open."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(
            f"Job {job_id} is not committed yet, so no worker can see it. "
            "Commit the transaction first, then await result()."
        )


class NoCurrentJob(UsageError, LookupError):
    """`current_job()` was called outside a job."""

    def __init__(self) -> None:
        super().__init__(
            "No job is running here. Call current_job() inside a task, or current_job(default=None) "
            "in code that also runs elsewhere."
        )


class NoState(UsageError, LookupError):
    """`jobs.state` was read where no worker runs."""

    def __init__(self) -> None:
        super().__init__(
            "jobs.state exists only inside a worker (and in `perform(…, state=…)`). "
            "Give the App a state with `App(state=…)` and read it from a task."
        )


class ConfigError(UsageError, ValueError):
    """A setting cannot be used; the message says which and what would do.

    Attributes:
        setting: The name of the setting.
        reason: What is wrong with it, and what to do.
    """

    def __init__(self, setting: str, reason: str) -> None:
        self.setting, self.reason = setting, reason
        super().__init__(f"{setting}: {reason.removesuffix('.')}.")


class SchemaError(AiopgqError):
    """The database is not what this version needs."""

    exit_code = 3


class SchemaMissing(SchemaError):
    """There are no tables of ours in the database."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"Schema {schema!r} holds no aiopgq tables. Run `python -m aiopgq migrate` "
            "(or `await jobs.migrate()`) once."
        )


class SchemaBehind(SchemaError):
    """The schema is older than this version runs on."""

    def __init__(self, schema: str, found: int, needed: int) -> None:
        self.schema, self.found, self.needed = schema, found, needed
        super().__init__(
            f"Schema {schema!r} is at migration {found}, this version needs {needed}. Run `python -m aiopgq migrate`."
        )


class SchemaAhead(SchemaError):
    """The schema is so new that this version may not run on it."""

    def __init__(self, schema: str, found: int, known: int) -> None:
        self.schema, self.found, self.known = schema, found, known
        super().__init__(
            f"Schema {schema!r} is at migration {found} and no longer serves versions that know only "
            f"{known}. Upgrade aiopgq: `pip install --upgrade aiopgq`."
        )


class MigrationChanged(SchemaError):
    """An applied migration differs from the one shipped."""

    def __init__(self, schema: str, number: int, recorded: str, found: str) -> None:
        self.schema, self.number = schema, number
        self.recorded, self.found = recorded, found
        super().__init__(
            f"Migration {number} was applied to schema {schema!r} with checksum {recorded[:12]}, "
            f"this installation holds {found[:12]}. Reinstall the version that was applied; "
            "a released migration never changes."
        )


class StoreError(AiopgqError):
    """PostgreSQL did not do it; the reason is `__cause__`."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """No answer from PostgreSQL in time.

    Attributes:
        id: The job's id when an enqueue failed; repeating it with `options(id=…)` cannot make a second job.
    """

    def __init__(self, doing: str, id: UUID | None = None) -> None:  # noqa: A002  # the fact is a job's `id`
        self.doing, self.id = doing, id
        again = f" Repeat it with `.options(id=UUID({str(id)!r}))`; it cannot be enqueued twice." if id else ""
        super().__init__(f"PostgreSQL cannot be reached or does not answer: {doing}.{again}")


class RowRefused(StoreError):
    """PostgreSQL cannot store a row: a value out of range, a constraint, a limit.

    Attributes:
        sqlstate: The five characters PostgreSQL gives as the reason.
    """

    def __init__(self, doing: str, sqlstate: str, detail: str) -> None:
        self.doing, self.sqlstate, self.detail = doing, sqlstate, detail
        super().__init__(f"PostgreSQL refused to {doing} ({sqlstate}): {detail}. Nothing of it was written.")


class MessageHeld(StoreError, TimeoutError):
    """A transaction that is receiving the same message has not ended; `held_by`: the pids it may have."""

    def __init__(self, consumer: str, message_id: str, timeout: float, held_by: str | None) -> None:
        self.consumer, self.message_id, self.timeout, self.held_by = consumer, message_id, timeout, held_by
        holder = f" (pid {held_by} in pg_stat_activity)" if held_by else ""
        super().__init__(
            f"Message {message_id!r} of consumer {consumer!r} is held by a transaction{holder} that has not ended "
            f"for {timeout:g} s. Nothing is recorded; receive the message again later."
        )


class EnqueueUnknown(StoreError):
    """The connection was lost at commit and finished jobs are not kept, so nobody can tell what happened."""

    def __init__(self, id: UUID) -> None:  # noqa: A002  # the fact is a job's `id`
        self.id = id
        super().__init__(
            f"Job {id} may or may not have been enqueued: the connection was lost at commit and finished jobs "
            "are not kept (retention 0). Set a retention, or enqueue it again if running twice is harmless."
        )


class UniqueKeyHeld(StoreError):
    """Another transaction has written the unique key. Nothing was enqueued."""

    def __init__(
        self, task: str, key: str, pid: int | None, application_name: str | None, since: datetime | None
    ) -> None:
        self.task, self.key, self.pid, self.application_name, self.since = task, key, pid, application_name, since
        facts = {"pid": pid, "application_name": application_name, "since": since}
        who = ", ".join(f"{name} {fact}" for name, fact in facts.items() if fact is not None) or "nobody can tell whose"
        super().__init__(
            f"Task {task!r}: unique key {key!r} is written by a transaction that did not end in time ({who}). End it."
        )


class QueueFull(AiopgqError):
    """A queue has as many ready jobs as `max_pending` of the App allows. Nothing was enqueued."""

    def __init__(self, queue: str, pending: int, max_pending: int, wanted: int = 1) -> None:
        self.queue, self.pending, self.max_pending, self.wanted = queue, pending, max_pending, wanted
        advice = "Enqueue later." if wanted <= max_pending else "Enqueue fewer at once."
        super().__init__(f"Queue {queue!r} cannot take {wanted} more: {pending} of {max_pending} are ready. {advice}")


class BrokerUnavailable(AiopgqError, ConnectionError):
    """A broker takes no event now: it is away, or did not answer in time. A relay waits and tries again.

    Attributes:
        broker: Which.
        reason: What it, or the way to it, said.
    """

    def __init__(self, broker: str, reason: str) -> None:
        self.broker, self.reason = broker, reason
        super().__init__(f"{broker} takes no events: {reason.removesuffix('.')}. Nothing is lost; it is tried again.")


class JobError(AiopgqError):
    """About one job.

    Attributes:
        job_id: The job.
    """

    def __init__(self, job_id: UUID, message: str) -> None:
        self.job_id = job_id
        super().__init__(message)


class JobFailed(JobError):
    """The job failed for good and is a dead letter.

    Attributes:
        errors: One entry for each attempt: `at`, `attempt`, `error`, `traceback`, `worker`.
    """

    def __init__(self, job_id: UUID, last_error: str | None, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        self.errors = list(errors)
        self.last_error = last_error
        super().__init__(
            job_id,
            f"Job {job_id} failed for good: {(last_error or 'no error was recorded').removesuffix('.')}. "
            f"Look with `python -m aiopgq dead show {job_id}`, "
            f"run it again with `python -m aiopgq dead replay {job_id} --yes`.",
        )


class JobCancelled(JobError):
    """The job was cancelled."""

    def __init__(self, job_id: UUID, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(job_id, f"Job {job_id} was cancelled{': ' + reason if reason else ''}.")


class JobNotFound(JobError, LookupError):
    """There is no such job, or it is no longer kept."""

    def __init__(self, job_id: UUID, reason: str = "never committed, or done and past its retention") -> None:
        self.reason = reason
        super().__init__(job_id, f"Job {job_id} is not in the database: {reason}.")


class ResultNotKept(JobError):
    """The job is done, its result was not kept."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} is done, its result was not kept. Set a retention above 0.")


class ResultTimeout(JobError, TimeoutError):
    """The job was not done in the time given to `result()`."""

    def __init__(self, job_id: UUID, timeout: float, status: str) -> None:
        self.timeout, self.status = timeout, status
        super().__init__(
            job_id,
            f"Job {job_id} is {status} after {timeout:g} s. Wait longer with result(timeout=…), "
            "or look whether a worker serves its queue.",
        )


class JobLost(JobError):
    """Another worker owns the job now; this run must not settle it."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(job_id, f"Job {job_id} no longer belongs to this run. Its outcome is dropped.")
