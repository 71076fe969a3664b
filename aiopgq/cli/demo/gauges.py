"""One look at the database: everything the demo shows is read here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final
from uuid import UUID

from aiopgq import Inspector, JobInfo

__all__ = ["Gauges", "Picture", "Row", "retried"]

_MOST: Final = 10_000
_WINDOW: Final = 1.0


def retried(job: JobInfo) -> int:
    """Return how many failed attempts of a job were followed by another."""
    return len(job.errors) - (job.status == "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """The jobs of a task, by what became of them; one is running from its claim until its outcome is written."""

    task: str
    pending: int
    running: int
    completed: int
    retried: int
    dead: int
    cancelled: int

    @classmethod
    def of(cls, task: str, jobs: Sequence[JobInfo]) -> "Row":
        """Count jobs."""
        found = [job.status for job in jobs]
        return cls(
            task=task,
            pending=found.count("pending"),
            running=found.count("claimed") + found.count("running"),
            completed=found.count("completed"),
            retried=sum(map(retried, jobs)),
            dead=found.count("failed"),
            cancelled=found.count("cancelled"),
        )

    @property
    def finished(self) -> int:
        """Those that will not run again by themselves."""
        return self.completed + self.dead + self.cancelled

    @property
    def all(self) -> int:
        """All of them."""
        return self.finished + self.pending + self.running


@dataclass(frozen=True, slots=True)
class Picture:
    """What a look has shown.

    Attributes:
        seconds: Since the demo began.
        jobs: Every job, by task, oldest first.
        rows: A row a task.
        total: A row for all.
        rates: Jobs finished a second, in the seconds so far.
        wakes: Seconds from enqueue to the first line of the handler, of those measured.
    """

    seconds: float
    jobs: Mapping[str, Sequence[JobInfo]]
    rows: Sequence[Row]
    total: Row
    rates: Sequence[float]
    wakes: Sequence[float]

    def find(self, job_id: UUID | None) -> JobInfo | None:
        """Return a job if the database has it."""
        return next((job for jobs in self.jobs.values() for job in jobs if job.id == job_id), None)

    @property
    def idle(self) -> bool:
        """Whether no job is pending or running."""
        return not self.total.pending and not self.total.running

    @property
    def wake_p50(self) -> float:
        """The median of `wakes`, in milliseconds."""
        return 1000 * median(self.wakes)


class Gauges:
    """Looks at the database, and remembers the throughput.

    Args:
        tasks: The tasks in the order in which they are shown.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tasks
        self._rates: list[float] = []
        self._counted = (0.0, 0)
        self.wakes: list[float] = []

    async def look(self, inspector: Inspector, seconds: float) -> Picture:
        """Read every job.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        jobs: dict[str, list[JobInfo]] = {task: [] for task in self._tasks}
        for job in reversed(await inspector.jobs(limit=_MOST)):
            jobs[job.task].append(job)
        total = Row.of("all", [job for some in jobs.values() for job in some])
        since, before = self._counted
        if seconds - since >= _WINDOW:
            # A replay takes finished jobs back.
            self._rates.append(max(0, total.finished - before) / (seconds - since))
            self._counted = (seconds, total.finished)

        return Picture(
            seconds=seconds,
            jobs=jobs,
            rows=[Row.of(task, some) for task, some in jobs.items()],
            total=total,
            rates=tuple(self._rates),
            wakes=tuple(self.wakes),
        )
