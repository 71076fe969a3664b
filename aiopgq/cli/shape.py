"""The shape of commands: how their help looks, and what kinds of values they take."""

import re
from typing import Final

import click

__all__ = ["Command", "Group", "as_json", "duration", "queue_slots"]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|w|)")
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_LONGEST: Final = 100 * 365 * 86_400.0


class _Verbatim(click.Command):
    """Prints its epilog as it is written."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog."""
        del ctx
        if self.epilog:
            formatter.write(f"\n{self.epilog.rstrip()}\n")


class Command(_Verbatim):
    """A command."""


class Group(_Verbatim, click.Group):
    """A group of commands."""

    command_class = Command


def duration(value: object) -> float:
    """Turn `10m`, `2h`, `3d`, `1.5s` or a number into seconds.

    Raises:
        BadParameter: It is none of them, or longer than a hundred years.
    """
    found = _DURATION.fullmatch(str(value).strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else None
    if seconds is None or seconds > _LONGEST:
        raise click.BadParameter(f"{value!r} is no duration; write 90s, 10m, 2h, 3d or a number of seconds.")

    return seconds


def queue_slots(value: object) -> tuple[str, int | None]:
    """Split `name` or `name:slots`.

    Raises:
        BadParameter: There is no name, or less than one slot.
    """
    queue, colon, slots = str(value).rpartition(":")
    if not colon:
        return str(value), None
    if not queue or not slots.isdecimal() or int(slots) < 1:
        raise click.BadParameter(f"{value!r} is not NAME or NAME:SLOTS with at least one slot.")

    return queue, int(slots)


as_json: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
