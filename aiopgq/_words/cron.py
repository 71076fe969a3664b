"""When a schedule fires: an expression in a time zone, or an interval; pure, the moment is always given.

Two rules for the days on which a clock is set:

- An expression that names hours follows the clock on the wall. A time that does not exist fires once, at the end of
  the gap; one that happens twice fires once, the first time.
- One that fires in every hour goes on evenly through every real hour.

cronsim reads the expressions. It is given local times without a zone, so that these rules are ours alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from aiopgq._words import options
from aiopgq.errors import ConfigError

__all__ = ["SHORTEST", "Timing", "timing"]

SHORTEST: Final = 0.1
_NAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = ("second", "minute", "hour", "day of month", "month", "day of week")
_SIZES: Final = (60, 60, 24, 31, 12, 7)
_STEP: Final = re.compile(r"([^,/]*)/(\d+)")
_HOURS: Final = 24
_SECOND: Final = timedelta(seconds=1)
_LOOK_BACK: Final = timedelta(minutes=1)
_HELP: Final = (
    "Five fields are minute, hour, day of month, month, day of week; six begin with the second. Names are "
    "@hourly, @daily, @weekly, @monthly, @yearly"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires; made by `timing(…)`, which checks it.

    Attributes:
        cron: The expression as it was given, or None.
        every: Seconds between two fires, or None.
        timezone: The time zone the expression is read in.
    """

    cron: str | None
    every: float | None
    timezone: str

    def after(self, moment: datetime) -> datetime:
        """Return the first fire after a moment, for an interval counted from that moment.

        Raises:
            ConfigError: There is none within fifty years, or the expression cannot be read here.
        """
        return next(self.fires(moment))

    def fires(self, moment: datetime) -> Iterator[datetime]:
        """Yield every fire after a moment, in order, as UTC; an interval is counted from that moment.

        Raises:
            ConfigError: There is none within fifty years, or the expression cannot be read here.
        """
        moment = moment.astimezone(UTC)
        if self.every is not None:
            while True:
                moment += timedelta(seconds=self.every)
                yield moment
        expression = _expanded(self.cron or "")
        zone = _zone(self.timezone)
        hours = _read(expression, datetime(2000, 1, 1)).hours  # noqa: DTZ001  # only parsed
        yield from (_evenly if len(hours) == _HOURS else _by_the_wall)(expression, moment, zone)

    def missed(self, due: datetime, since: datetime, until: datetime, most: int) -> list[datetime]:
        """Return the newest fires from `due` to `until`, in order; none before `since`.

        Args:
            due: The fire that is known; it counts, whatever the expression says.
            since: Where to begin looking.
            until: The last moment that counts.
            most: The most to return.
        """
        if self.every is not None:
            # Whole intervals from the fire that is known: nothing drifts, however long nobody looked.
            whole = (until - due) // timedelta(seconds=self.every)
            numbers = range(max(0, whole - most), whole + 1)
            fires = [due + number * timedelta(seconds=self.every) for number in numbers]
            return [fire for fire in fires if since <= fire <= until][-most:]

        # From the end, further and further back: years may have passed and only the newest are wanted.
        begin, span = max(due, since), _LOOK_BACK
        while True:
            start = max(begin, until - span)
            found = []
            # A fire at the very beginning counts.
            for fire in self.fires(start - _SECOND):
                if fire > until:
                    break
                if fire >= start:
                    found.append(fire)
            # Whatever was written as the next fire was promised, by other rules for a zone perhaps.
            if start == due and due not in found[:1]:
                found.insert(0, due)
            if len(found) >= most or start == begin:
                return found[-most:]
            span *= 4

    def following(self, due: datetime, until: datetime) -> datetime:
        """Return the first fire after `until`, given one before it.

        Raises:
            ConfigError: There is none within fifty years, or the expression cannot be read here.
        """
        if self.every is None:
            return self.after(until)
        interval = timedelta(seconds=self.every)
        return due + ((until - due) // interval + 1) * interval

    def __str__(self) -> str:
        """Say it in words, or as the expression where words fail."""
        if self.every is not None:
            return f"every {_length(self.every)}"
        if self.cron is None:
            return "never"
        zone = "" if self.timezone == "UTC" else f", {self.timezone}"
        return f"{_explained(_expanded(self.cron)) or self.cron}{zone}"


def timing(cron: str | None, every: float | timedelta | None, timezone: str | None) -> Timing:
    """Check what a schedule was told.

    Args:
        cron: An expression or a name such as @daily.
        every: Seconds (or a timedelta) instead of an expression.
        timezone: A name of the IANA database; None for UTC.

    Raises:
        ConfigError: Not exactly one of cron and every, or one of them cannot be used.
    """
    if (cron is None) == (every is None):
        raise ConfigError("schedule", "takes a cron expression or every=…, one of the two.")
    if every is not None:
        length = options.seconds("schedule, every", every)
        if length < SHORTEST:
            raise ConfigError("schedule, every", f"{length:g} s is too short; at least {SHORTEST:g} s.")
        if timezone is not None:
            raise ConfigError("schedule, timezone", "an interval has none; it goes with a cron expression.")
        return Timing(None, length, "UTC")
    if not isinstance(cron, str):
        raise ConfigError("schedule", f"takes a cron expression as a string, not {type(cron).__name__}.")
    checked = Timing(cron, None, "UTC" if timezone is None else timezone)
    _zone(checked.timezone)
    checked.after(datetime(2000, 1, 1, tzinfo=UTC))

    return checked


def _expanded(cron: str) -> str:
    """Return the fields of an expression.

    Raises:
        ConfigError: It is a name that nobody knows.
    """
    text = cron.strip()
    if not text.startswith("@"):
        return text
    fields = _NAMES.get(text.lower())
    if fields is None:
        raise ConfigError("schedule", f"{cron!r} is no name of a schedule. {_HELP}.")

    return fields


def _read(expression: str, moment: datetime) -> CronSim:
    """Read an expression, to be asked for local times after a moment.

    Raises:
        ConfigError: It cannot be read, or means nothing.
    """
    try:
        found = CronSim(expression, moment)
    except (CronSimError, ValueError, AssertionError) as error:
        raise ConfigError("schedule", f"{expression!r} is no cron expression: {error}. {_HELP}.") from None
    # What cronsim would read and pass over in silence.
    for field, size, part in zip(_FIELDS, _SIZES, found.parts, strict=True):
        for term, step in _STEP.findall(part):
            if int(step) >= size or "L" in term:
                raise ConfigError("schedule", f"{expression!r}: a step of {step} in {part!r} ({field}) means nothing.")

    return found


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    """Find a time zone.

    Raises:
        ConfigError: There is none of that name here.
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, AttributeError, OSError):
        raise ConfigError(
            "schedule, timezone", f"{name!r} is no time zone known here; such as 'Europe/Berlin' (package tzdata)."
        ) from None


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _next(times: CronSim, expression: str) -> datetime:
    """Return the next local time.

    Raises:
        ConfigError: There is none within fifty years.
    """
    try:
        return next(times)
    except (StopIteration, OverflowError):
        raise ConfigError("schedule", f"{expression!r} does not fire within fifty years.") from None


def _by_the_wall(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the fires after a moment of an expression that names hours."""
    times = _read(expression, _local(moment, zone))
    while True:
        # The second pass of a local hour has nothing new: its times fired the first time.
        if (fire := _placed(_next(times, expression), zone)) > moment:
            moment = fire
            yield fire


def _placed(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment of a local time: the first of two, or the end of the gap it lies in."""
    moment = local.replace(tzinfo=zone).astimezone(UTC)
    if _local(moment, zone) == local:
        return moment
    earlier = local.replace(tzinfo=zone, fold=1).astimezone(UTC)

    return _change(earlier, moment, zone)


def _evenly(expression: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the fires after a moment of an expression that fires in every hour."""
    while True:
        offset = _offset(moment, zone)
        times = _read(expression, (moment + offset).replace(tzinfo=None))
        while True:
            fire = (_next(times, expression) - offset).replace(tzinfo=UTC)
            if _offset(fire, zone) != offset:
                break
            moment = fire
            yield fire
        # The clock is set before that: look again from there, by the new time.
        moment = _change(moment, fire, zone)
        if _matches(expression, _local(moment, zone)):
            yield moment


def _matches(expression: str, local: datetime) -> bool:
    return next(_read(expression, local - _SECOND)) == local


def _change(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """Return the second in which the clock is set between two moments of different offsets."""
    offset = _offset(low, zone)
    low = low.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        if _offset(middle, zone) == offset:
            low = middle
        else:
            high = middle

    return high


def _length(seconds: float) -> str:
    """Say how long something is, in the largest unit that fits."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return unit if count == 1 else f"{count} {unit}s"

    return "second" if seconds == 1 else f"{seconds:g} seconds"


def _explained(expression: str) -> str | None:
    """Say an expression in words; None where that fails."""
    if found := re.fullmatch(r"(?:0 )?\*/(\d+) \* \* \* \*", expression):
        # Only what divides an hour comes evenly.
        if 60 % int(found[1]) == 0:  # minutes
            return f"every {_length(60 * int(found[1]))}"
        return None
    try:
        words = CronSim(expression, datetime(2000, 1, 1)).explain()  # noqa: DTZ001  # only parsed
    except Exception:  # noqa: BLE001  # words are a comfort; the expression says it as well
        return None

    return words[0].lower() + words[1:]
