"""The output: a live table on a terminal that has rich, plain lines anywhere else."""

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import click

from aiopgq.cli.demo.facts import Fact
from aiopgq.cli.demo.gauges import Picture, Row

__all__ = ["COLUMNS", "PlainScreen", "Screen", "open_screen"]

COLUMNS: Final = ("pending", "running", "completed", "retried", "dead", "cancelled")
_INTERVAL: Final = 1.0


class Screen(Protocol):
    """Where the demo is seen."""

    def waiting(self, text: str) -> AbstractContextManager[None]:
        """Say what takes a moment."""
        raise NotImplementedError

    def live(self, title: str) -> AbstractContextManager[None]:
        """Show pictures, under a title."""
        raise NotImplementedError

    def show(self, picture: Picture) -> None:
        """Show the newest picture."""

    def say(self, seconds: float, text: str) -> None:
        """Tell what has just happened."""

    def conclude(self, picture: Picture, facts: Sequence[Fact]) -> None:
        """Show the last picture, and what happened."""

    def advise(self, heading: str, lines: Sequence[str]) -> None:
        """Say what to do next."""


def open_screen() -> Screen:
    """Choose the output: live needs rich and a terminal that can move its cursor."""
    # A terminal that cannot spell a sign shows another; nothing fails for it.
    if callable(reconfigure := getattr(sys.stdout, "reconfigure", None)):
        reconfigure(errors="replace")
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and importlib.util.find_spec("rich"):
        from aiopgq.cli.demo.live import LiveScreen  # noqa: PLC0415  # rich is an extra

        return LiveScreen()

    return PlainScreen()


class PlainScreen:
    """Plain lines: what happens as it happens, and once a second how far things are."""

    def __init__(self) -> None:
        self._next = 0.0

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Say what takes a moment."""
        click.echo(f"{text} ...")
        yield

    @contextmanager
    def live(self, title: str) -> Iterator[None]:
        """Show pictures, under a title."""
        click.echo(f"{title}\n")
        yield

    def show(self, picture: Picture) -> None:
        """Show the newest picture, if the last was shown long enough ago."""
        if picture.seconds < self._next:
            return
        self._next = picture.seconds + _INTERVAL
        counts = "  ".join(f"{getattr(picture.total, column)} {column}" for column in COLUMNS)
        rate = f"  {picture.rates[-1]:.0f} jobs/s" if picture.rates else ""
        videos = [f"{job.progress or 0:.0f} %" for job in picture.jobs["encode_video"]]
        self._line(picture.seconds, counts + rate + (f"  videos {' '.join(videos)}" if videos else ""))

    def say(self, seconds: float, text: str) -> None:
        """Tell what has just happened."""
        self._line(seconds, f"- {text}")

    def conclude(self, picture: Picture, facts: Sequence[Fact]) -> None:
        """Show the last picture, and what happened."""
        click.echo("\n" + _table([*picture.rows, picture.total]) + "\n")
        for fact in facts:
            click.echo(f"{'ok ' if fact.good else 'BAD'} {fact.text}")

    def advise(self, heading: str, lines: Sequence[str]) -> None:
        """Say what to do next."""
        click.echo(f"\n{heading}")
        for line in lines:
            click.echo(f"    {line}")

    @staticmethod
    def _line(seconds: float, text: str) -> None:
        click.echo(f"{seconds:5.1f} s  {text}")


def _table(rows: Sequence[Row]) -> str:
    lines = [f"{'task':<16}" + "".join(f"{column:>11}" for column in COLUMNS)]
    lines += [f"{row.task:<16}" + "".join(f"{getattr(row, column):>11}" for column in COLUMNS) for row in rows]

    return "\n".join(lines)
