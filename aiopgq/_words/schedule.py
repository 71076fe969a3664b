"""A schedule: what is written of it, what people see of it, and what it enqueues when it is due."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from aiopgq._words import options
from aiopgq._words.cron import Timing
from aiopgq._words.job import NewJob
from aiopgq.errors import ConfigError

__all__ = [
    "DEFAULT_WINDOW",
    "MOST",
    "PUNCTUAL",
    "DueSchedule",
    "Misfire",
    "NewSchedule",
    "ScheduleInfo",
    "check_misfire",
]

Misfire = Literal["skip", "once", "all"]
DEFAULT_WINDOW: Final = 86_400.0
# Later than this, a fire was missed. A worker looks every 15 seconds, or when it knows that something is due.
PUNCTUAL: Final = 30.0
# One transaction enqueues no more for one schedule, whatever was missed.
MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule to be written: everything checked, arguments encoded."""

    name: str
    timing: Timing
    misfire: Misfire
    window: float
    job: NewJob
    declared: bool


class DueSchedule(NamedTuple):
    """A schedule that is due.

    Attributes:
        name: Its name.
        timing: When it fires.
        misfire: What becomes of missed fires.
        window: Seconds back that `all` reaches.
        since: It has no fires before.
        next_at: The fire it waits for; None if nobody has computed it yet.
        now: The clock of PostgreSQL when it was read.
    """

    name: str
    timing: Timing
    misfire: str
    window: float
    since: datetime
    next_at: datetime | None
    now: datetime

    def plan(self) -> tuple[list[datetime], datetime]:
        """Return the fires to enqueue a job for, and the next one after now.

        Raises:
            ConfigError: Its expression or time zone cannot be read here.
        """
        due = self.next_at or self.timing.after(self.since)
        if due > self.now:
            return [], due
        punctual = self.now - timedelta(seconds=PUNCTUAL)
        reach = self.now - timedelta(seconds=max(PUNCTUAL, self.window)) if self.misfire == "all" else punctual
        fires = self.timing.missed(due, reach, self.now, MOST)
        # A fire that comes in time stands for those before it.
        if not fires and self.misfire == "once":
            fires = self.timing.missed(due, due, self.now, 1)

        return fires, self.timing.following(due, self.now)


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as people look at it.

    Attributes:
        name: Its name.
        task: The name of the task whose jobs it enqueues.
        when: When it fires, in words.
        cron: The expression, or None.
        every: Seconds between two fires, or None.
        timezone: The time zone of the expression.
        misfire: What becomes of fires that were missed: skip, once or all.
        window: Seconds back that `all` reaches.
        queue: The queue of its jobs.
        priority: Their priority.
        args: Their arguments as stored.
        headers: Their headers as stored, without those of the fire.
        declared: Code declares it; else it was made at run time.
        orphaned: Code declared it, and no live worker has for five minutes; it does not fire.
        created_at: When it was made, by the clock of PostgreSQL.
        paused_at: When it was paused; None if it is not.
        next_at: Its next fire; in the past if no worker has come to it; None if it is paused or in trouble.
        last_at: The last fire a job was enqueued for.
        last_job: That job.
        trouble: Why its fires cannot be computed here; None if they can.
        as_of: The clock of PostgreSQL when all this was read.
    """

    name: str
    task: str
    when: str
    cron: str | None
    every: float | None
    timezone: str
    misfire: str
    window: float
    queue: str
    priority: int
    args: dict[str, Any]
    headers: dict[str, Any]
    declared: bool
    orphaned: bool
    created_at: datetime
    paused_at: datetime | None
    next_at: datetime | None
    last_at: datetime | None
    last_job: UUID | None
    trouble: str | None
    as_of: datetime

    def fires(self, number: int) -> list[datetime]:
        """Compute its next fires; of one that is paused, as if it were resumed now.

        Raises:
            ConfigError: Its expression or time zone cannot be read here.
        """
        options.count("the number of fires", number)
        timing = Timing(self.cron, self.every, self.timezone)
        if self.next_at is None:
            first = timing.after(self.as_of)
        else:
            first = self.next_at if self.next_at > self.as_of else timing.following(self.next_at, self.as_of)

        return [first, *islice(timing.fires(first), number - 1)]


def check_misfire(misfire: Misfire, window: float | timedelta) -> tuple[Misfire, float]:
    """Check what shall become of missed fires.

    Raises:
        ConfigError: There is no such policy, or the window is no duration.
    """
    if misfire not in get_args(Misfire):
        raise ConfigError("schedule, misfire", f"takes 'skip', 'once' or 'all', not {misfire!r}.")

    return misfire, options.seconds("schedule, window", window)
