"""Schedules: declared with the decorator `schedule`, or made at run time on `jobs.schedules`."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, overload

from aiopgq._store.schedules import Schedules as Store
from aiopgq._words import options
from aiopgq._words.cron import Timing, timing
from aiopgq._words.schedule import DEFAULT_WINDOW, Misfire, NewSchedule, ScheduleInfo, check_misfire
from aiopgq._words.task import TaskDefinition, where_defined
from aiopgq.call import Call
from aiopgq.errors import ArgumentError, ConfigError
from aiopgq.handle import Home, JobHandle
from aiopgq.inspector import Inspector

__all__ = ["DeclaresSchedules", "Schedules", "declared_schedules"]

AnyTask = TypeVar("AnyTask", bound=Callable[..., Any])
PlainTask = TypeVar("PlainTask", bound=Callable[[], Any])


class _Core(Protocol):
    """What a schedule needs of a task."""

    definition: TaskDefinition
    face: Any
    schedules: list["Declared"]


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as code declares it; None for the name is that of the task."""

    name: str | None
    timing: Timing
    misfire: Misfire
    window: float
    arguments: Mapping[str, Any]


class _Plain(Protocol):
    """Decorates a task that can be called without arguments."""

    def __call__(self, task: PlainTask, /) -> PlainTask: ...


class _WithArguments(Protocol):
    """Decorates any task."""

    def __call__(self, task: AnyTask, /) -> AnyTask: ...


class DeclaresSchedules:
    """Something schedules are declared on: an App or a Router."""

    @overload
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        every: float | timedelta | None = None,
        timezone: str | None = None,
        name: str | None = None,
        misfire: Misfire = "once",
        window: float | timedelta = DEFAULT_WINDOW,
    ) -> _Plain: ...
    @overload
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        arguments: Mapping[str, Any],
        every: float | timedelta | None = None,
        timezone: str | None = None,
        name: str | None = None,
        misfire: Misfire = "once",
        window: float | timedelta = DEFAULT_WINDOW,
    ) -> _WithArguments: ...
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        arguments: Mapping[str, Any] | None = None,
        every: float | timedelta | None = None,
        timezone: str | None = None,
        name: str | None = None,
        misfire: Misfire = "once",
        window: float | timedelta = DEFAULT_WINDOW,
    ) -> Any:
        """Let a task run at set times; stands above `task`, several times if need be.

        A worker writes the schedule to the database when it starts, and every worker lets it fire: each fire time
        enqueues one job, however many there are. The job's headers say `schedule` and `scheduled_at`. A schedule
        that is taken out of the code fires no more five minutes after the last worker that declares it has ended.

        Args:
            cron: Five fields (minute, hour, day of month, month, day of week), six with the second first, or
                @hourly, @daily, @weekly, @monthly, @yearly. Days follow cron: if neither of the two fields for
                days begins with a star, either is enough.
            arguments: The arguments of the call, by name.
            every: Seconds (or a timedelta) between two fires, instead of an expression; at least 0.1.
            timezone: Where the expression is read, such as "Europe/Berlin". Default UTC.
            name: What it is called. Default: the task's name; a second schedule of a task needs one.
            misfire: What becomes of fires missed by more than 30 seconds, since no worker was there: `skip`,
                `once` (one job for all of them), `all`.
            window: Seconds (or a timedelta) that `all` reaches back, a thousand jobs at most. Default one day.

        Raises:
            ConfigError: The expression, the time zone or another option cannot be used.
            ArgumentError: The arguments do not fit the task.

        Example:
            >>> @jobs.schedule("0 3 * * *", timezone="Europe/Berlin")
            ... @jobs.task
            ... async def clean_up() -> None: ...
        """
        checked = timing(cron, every, timezone)
        policy, reach = check_misfire(misfire, window)
        if name is not None:
            options.name("schedule, name", name)
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ConfigError("schedule, arguments", f"takes a mapping of names, not {type(arguments).__name__}.")
        declared = Declared(name, checked, policy, reach, dict(arguments or {}))

        def decorate(task: Any) -> Any:
            core = getattr(task, "_task", None)
            if core is None or task is not core.face:
                raise ConfigError(f"schedule({task!r})", "stands above a task: @jobs.schedule(…), then @jobs.task.")
            _check(core, declared)
            core.schedules.append(declared)
            return task

        return decorate


def _check(core: _Core, declared: Declared) -> None:
    """Check that a schedule fits a task.

    Raises:
        ArgumentError: Its arguments do not.
        ConfigError: The task has one of that name.
    """
    function, task = core.definition.function, core.definition.name
    try:
        inspect.signature(function).bind(**declared.arguments)
    except TypeError as error:
        raise ArgumentError(task, None, f"a schedule gives `arguments` by name: {error}") from None
    if any(other.name == declared.name for other in core.schedules):
        raise ConfigError("schedule, name", f"task {task!r} has such a schedule already; give this one a name=….")


def declared_schedules(cores: Iterable[_Core]) -> list[NewSchedule]:
    """Return what the code declares, calls checked and encoded.

    Raises:
        ConfigError: Two schedules have one name.
        ArgumentError: The arguments do not fit the task.
    """
    found: dict[str, NewSchedule] = {}
    for core in cores:
        for one in core.schedules:
            job = core.face.call(**one.arguments).job
            name = one.name or job.task
            if name in found:
                raise ConfigError(
                    "schedule, name",
                    f"{name!r} is taken; give the one of {where_defined(core.definition.function)} another.",
                )
            found[name] = NewSchedule(name, one.timing, one.misfire, one.window, job, declared=True)

    return list(found.values())


class Schedules:
    """The schedules in the database: made, changed, looked at; `jobs.schedules` of an opened App.

    Workers take note of a change within 18 seconds.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def _inspector(self) -> Inspector:
        return Inspector(self._home.store("look at schedules"))

    async def set(
        self,
        name: str,
        call: Call[Any],
        cron: str | None = None,
        *,
        every: float | timedelta | None = None,
        timezone: str | None = None,
        misfire: Misfire = "once",
        window: float | timedelta = DEFAULT_WINDOW,
    ) -> ScheduleInfo:
        """Make a schedule, or change the one of that name; a pause stays.

        Changing when it fires begins anew: it has no fires before the change.

        Args:
            name: What it is called.
            call: What it enqueues, made by `task.call(…)` or `task.options(…).call(…)`.
            cron: As for `schedule`.
            every: As for `schedule`.
            timezone: As for `schedule`.
            misfire: As for `schedule`.
            window: As for `schedule`.

        Raises:
            ConfigError: An option cannot be used, or code declares a schedule of that name.
            TypeError: call was not made by `task.call(…)`.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.

        Example:
            >>> async def report_weekly(customer: int) -> None:
            ...     await jobs.schedules.set(f"report {customer}", report.call(customer), "@weekly")
        """
        if not isinstance(call, Call):
            raise TypeError(f"A schedule takes a call made by task.call(…), not {type(call).__name__}.")
        job = call.job
        if call.once or call.connection is not None or job.delay is not None or job.run_at is not None:
            raise ConfigError("schedule, call", "each fire makes a job: it takes no id, delay, run_at or connection.")
        policy, reach = check_misfire(misfire, window)
        new = NewSchedule(
            options.name("schedule, name", name), timing(cron, every, timezone), policy, reach, job, declared=False
        )
        if await self._store().write(new) == "declared":
            raise ConfigError("schedule, name", f"{name!r} is declared in code; change it there, or take another name.")

        return await self.get(name)

    def _store(self) -> Store:
        return Store(self._home.store("write schedules").line)

    async def list(self) -> Sequence[ScheduleInfo]:
        """Look at all schedules, by name.

        Raises:
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._inspector().schedules()

    async def get(self, name: str) -> ScheduleInfo:
        """Look at one schedule.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await self._inspector().schedule(name)

    async def next(self, name: str, number: int = 1) -> Sequence[datetime]:
        """Compute the next fires of a schedule, as UTC; of a paused one, as if it were resumed now.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        return (await self.get(name)).fires(number)

    async def pause(self, name: str) -> None:
        """Let a schedule fire no more until it is resumed, whatever is deployed meanwhile.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        await self._inspector().pause_schedule(name)

    async def resume(self, name: str) -> None:
        """Let a paused schedule fire again; what it would have fired meanwhile is not made up for.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        await self._inspector().resume_schedule(name)

    async def run_now(self, name: str) -> JobHandle[Any]:
        """Enqueue a job of a schedule now, paused or not; its next fire stays as it is.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer; the job may be there.
        """
        return JobHandle(self._home, await self._inspector().run_schedule(name), None)

    async def remove(self, name: str) -> None:
        """Delete a schedule; its jobs stay. One that code declares comes back with the next worker that starts.

        Raises:
            ScheduleNotFound: There is none of that name.
            StoreUnavailable: PostgreSQL did not answer.
        """
        await self._inspector().remove_schedule(name)
