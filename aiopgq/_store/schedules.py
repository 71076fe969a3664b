"""The schedules in the database: one short coroutine for each statement."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.statements import statement
from aiopgq._words.cron import Timing
from aiopgq._words.schedule import DueSchedule, NewSchedule, ScheduleInfo
from aiopgq.errors import ConfigError

__all__ = ["DueList", "Schedules"]

# Rolling deploys and restarts fit in; a schedule that left the code does not fire for long.
_ORPHANED_AFTER: Final = 300.0
_decode: Final[Callable[[str], Any]] = msgspec.json.Decoder().decode


class DueList(NamedTuple):
    """How many schedules are due, and seconds until the next one is (None: there is none)."""

    due: int
    next_in: float | None


class Schedules:
    """The statements about schedules, on one line or several."""

    def __init__(self, line: Fetcher) -> None:
        self._line = line
        self._schema: str = line.settings.schema

    async def _fetch(self, doing: str, name: str, *args: Any) -> list[Any]:
        return await fetch_whole(self._line, doing, statement(name, self._schema), *args)

    async def write(self, new: NewSchedule) -> str:
        """Make or change a schedule: made, changed, same; or who else has the name: declared, made at run time."""
        timing, job = new.timing, new.job
        [row] = await self._fetch(
            f"write schedule {new.name!r}",
            "set_schedule",
            new.name,
            new.declared,
            timing.cron,
            timing.every,
            timing.timezone,
            new.misfire,
            new.window,
            job.task,
            job.args,
            job.queue,
            job.priority,
            job.max_attempts,
            job.timeout,
            job.headers,
            _ORPHANED_AFTER,
            job.limit_key,
            job.order_key,
            None if job.order_key is None else job.order_blocks,
        )
        return str(row[0])

    async def look(self, declared: Sequence[str], passed_over: Sequence[str]) -> DueList:
        """See whether any schedule is due; say which ones this worker declares."""
        [row] = await self._fetch("look at schedules", "look_at_schedules", declared, passed_over, _ORPHANED_AFTER)
        return DueList(*row)

    async def due(self, passed_over: Sequence[str], limit: int) -> list[DueSchedule]:
        """Read the schedules that are due."""
        return [
            DueSchedule(
                row["name"],
                Timing(row["cron"], row["every"], row["timezone"]),
                row["misfire"],
                row["misfire_window"],
                row["since"],
                row["next_at"],
                row["now"],
            )
            for row in await self._fetch("read due schedules", "due_schedules", passed_over, _ORPHANED_AFTER, limit)
        ]

    async def fire(self, due: DueSchedule, next_at: datetime, ids: Sequence[UUID], moments: Sequence[datetime]) -> bool:
        """Move a schedule on and enqueue its jobs; False if somebody was faster."""
        [row] = await self._fetch(
            f"fire schedule {due.name!r}", "fire_schedule", due.name, due.since, due.next_at, next_at, ids, moments
        )
        return bool(row[0])

    async def read(self, name: str | None = None) -> Sequence[ScheduleInfo]:
        """Read all schedules, or the one of that name."""
        return [_info(row) for row in await self._fetch("read schedules", "schedules", name, _ORPHANED_AFTER)]

    async def run(self, name: str, job_id: UUID) -> bool:
        """Enqueue a job of a schedule now; False if there is none of that name."""
        [row] = await self._fetch(f"run schedule {name!r}", "run_schedule", name, job_id)
        return bool(row[0])

    async def pause(self, name: str) -> bool:
        """Let it fire no more; False if there is none of that name."""
        return bool(await self._fetch(f"pause schedule {name!r}", "pause_schedule", name))

    async def resume(self, name: str) -> bool:
        """Let it fire again; False if there is none of that name."""
        return bool(await self._fetch(f"resume schedule {name!r}", "resume_schedule", name))

    async def remove(self, name: str) -> bool:
        """Delete it; False if there is none of that name."""
        return bool(await self._fetch(f"remove schedule {name!r}", "remove_schedule", name))


def _info(row: Any) -> ScheduleInfo:
    timing = Timing(row["cron"], row["every"], row["timezone"])
    next_at, when, trouble = row["next_at"], row["cron"] or "", None
    try:
        when = str(timing)
        computed = timing.after(row["since"])
    except ConfigError as error:
        # Anybody may write to the table.
        next_at, trouble = None, str(error)
    else:
        next_at = next_at or computed
    paused = row["paused_at"] is not None

    return ScheduleInfo(
        name=row["name"],
        task=row["task"],
        when=when,
        cron=row["cron"],
        every=row["every"],
        timezone=row["timezone"],
        misfire=row["misfire"],
        window=row["misfire_window"],
        queue=row["queue"],
        priority=row["priority"],
        args=_decode(row["args"]),
        headers=_decode(row["headers"]) if row["headers"] else {},
        declared=row["declared"],
        orphaned=row["orphaned"],
        created_at=row["created_at"],
        paused_at=row["paused_at"],
        next_at=None if paused else next_at,
        last_at=row["last_at"],
        last_job=row["last_job"],
        trouble=trouble,
        as_of=row["now"],
    )
