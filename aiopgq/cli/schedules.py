"""`schedules`: list, explain, pause, resume, run and remove schedules."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import click

from aiopgq._words.schedule import ScheduleInfo
from aiopgq.cli.choose import yes
from aiopgq.cli.plain import printable
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.tell import note, table, tell, tell_json
from aiopgq.inspector import Inspector

__all__ = ["schedules"]

_names = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.group(cls=Group)
def schedules() -> None:
    """Look at schedules, pause or run them."""


@schedules.command("list", epilog="Example:\n  python -m aiopgq schedules list")
@as_json
@reaching
def list_(reach: Reach, *, as_json: bool) -> None:
    """List schedules: when they fire, in words, and when next."""

    async def look(inspector: Inspector) -> Sequence[ScheduleInfo]:
        return await inspector.schedules()

    found = reach.inspect(look)
    if as_json:
        tell_json(found)
        return
    table(
        ("NAME", "TASK", "FIRES", "NEXT", "LAST", "STATE"),
        [(one.name, one.task, one.when, _next(one), _moment(one.last_at, one), _state(one)) for one in found],
    )
    for one in found:
        if one.trouble is not None:
            note(printable(f"{one.name}: {one.trouble}"))
    if not found:
        note("There is no schedule; one that code declares is written when a worker starts.")


@schedules.command("next", epilog='Example:\n  python -m aiopgq schedules next "nightly report" -n 10')
@click.argument("name")
@click.option("-n", "--number", type=click.IntRange(1, 1000), default=5, help="How many.")
@as_json
@reaching
def next_(reach: Reach, *, name: str, number: int, as_json: bool) -> None:
    """Show the next fires of a schedule, in its time zone and in UTC."""

    async def look(inspector: Inspector) -> ScheduleInfo:
        return await inspector.schedule(name)

    found = reach.inspect(look)
    fires = found.fires(number)
    if as_json:
        tell_json(fires)
        return
    here = ZoneInfo(found.timezone)
    table(
        ("IN", "LOCAL", "UTC"),
        [
            (
                _in(fire - found.as_of),
                f"{fire.astimezone(here):%a %Y-%m-%d %H:%M:%S %Z}" if found.timezone != "UTC" else None,
                fire,
            )
            for fire in fires
        ],
    )
    note(printable(f"{found.name} fires {found.when}.") + (f" It is {_state(found)}." if _state(found) else ""))


@schedules.command("pause", epilog='Example:\n  python -m aiopgq schedules pause "nightly report"')
@_names
@reaching
def pause(reach: Reach, *, names: Sequence[str]) -> None:
    """Let schedules fire no more until they are resumed, whatever is deployed meanwhile."""
    _each(reach, names, Inspector.pause_schedule, "is paused")


@schedules.command("resume", epilog='Example:\n  python -m aiopgq schedules resume "nightly report"')
@_names
@reaching
def resume(reach: Reach, *, names: Sequence[str]) -> None:
    """Let paused schedules fire again; what they missed meanwhile is not made up for."""
    _each(reach, names, Inspector.resume_schedule, "fires again")


@schedules.command("run-now", epilog='Example:\n  python -m aiopgq schedules run-now "nightly report"')
@_names
@reaching
def run_now(reach: Reach, *, names: Sequence[str]) -> None:
    """Enqueue a job of each schedule now, paused or not; write the ids."""
    _each(reach, names, Inspector.run_schedule, None)


@schedules.command("remove", epilog='Example:\n  python -m aiopgq schedules remove "nightly report" --yes')
@_names
@yes
@reaching
def remove(reach: Reach, *, names: Sequence[str], yes: bool) -> None:
    """Delete schedules; their jobs stay.

    One that code declares comes back with the next worker that starts: pause it, or take it out of the code.
    """
    if yes:
        _each(reach, names, Inspector.remove_schedule, "is removed")
        return
    _each(reach, names, Inspector.schedule, "would be removed")
    note("Nothing was changed; add --yes to do it.")


def _each(
    reach: Reach, names: Sequence[str], verb: Callable[[Inspector, str], Awaitable[object]], done: str | None
) -> None:
    """Do something to each schedule, and say so; without words for it, write what it gave."""

    async def work(inspector: Inspector) -> None:
        # Look before: of several names none is touched if one of them is wrong.
        for name in names:
            await inspector.schedule(name)
        for name in names:
            gave = await verb(inspector, name)
            tell(printable(f"{name} {done}.") if done else str(gave))

    reach.inspect(work)


def _state(one: ScheduleInfo) -> str:
    if one.paused_at is not None:
        return "paused"
    if one.trouble is not None:
        return "in trouble"
    if one.orphaned:
        return "orphaned: no live worker declares it"
    if one.next_at is not None and one.next_at < one.as_of - timedelta(minutes=1):
        return "overdue: is a worker running?"

    return ""


def _next(one: ScheduleInfo) -> str | None:
    return None if one.next_at is None else f"{_moment(one.next_at, one)} ({_in(one.next_at - one.as_of)})"


def _moment(moment: datetime | None, one: ScheduleInfo) -> str | None:
    """Say a moment in the zone of the schedule."""
    return None if moment is None else f"{moment.astimezone(_zone(one)):%Y-%m-%d %H:%M:%S %Z}"


def _zone(one: ScheduleInfo) -> ZoneInfo:
    return ZoneInfo("UTC" if one.trouble is not None else one.timezone)


def _in(length: timedelta) -> str:
    """Say how far away something is: `3m`."""
    seconds = length.total_seconds()
    sign, left = ("-" if seconds < 0 else ""), abs(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{sign}{left // size:.0f}{unit}"

    return f"{sign}{left:.0f}s"
