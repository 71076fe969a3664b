"""The demo on a terminal: a live table, drawn with rich."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiopgq.cli.demo.facts import Fact
from aiopgq.cli.demo.gauges import Picture, Row
from aiopgq.cli.demo.screen import COLUMNS

__all__ = ["LiveScreen"]

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_COLOURS: Final[dict[str, str]] = dict(zip(COLUMNS, ("yellow", "cyan", "green", "magenta", "red", "blue"), strict=True))
_NARROW: Final = 88
# Title, head of the table, gauges and the empty lines between them.
_OTHER_LINES: Final = 8
_FEWEST_LINES: Final = 2


class LiveScreen:
    """A table that moves, bars of the slow jobs, gauges, and the newest lines of the story."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._title = ""
        self._said: deque[Text] = deque(maxlen=40)
        self._picture: Picture | None = None

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Say what takes a moment."""
        with self._console.status(escape(text)):
            yield

    @contextmanager
    def live(self, title: str) -> Iterator[None]:
        """Show pictures, under a title; the last one is wiped away for the conclusion."""
        self._title = title
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def show(self, picture: Picture) -> None:
        """Show the newest picture."""
        self._picture = picture
        self._draw()

    def say(self, seconds: float, text: str) -> None:
        """Tell what has just happened."""
        line = Text(f"{seconds:5.1f} s  ", style="dim", no_wrap=True, overflow="ellipsis")
        self._said.append(line.append(text, style="not dim"))
        self._draw()

    def conclude(self, picture: Picture, facts: Sequence[Fact]) -> None:
        """Show the last picture, and what happened."""
        self._console.print(Text(self._title, style="bold"))
        self._console.print(_table(picture, self._console.width))
        self._console.print()
        page = Table.grid(padding=(0, 1))
        for fact in facts:
            page.add_row(Text("✓", style="green") if fact.good else Text("✗", style="bold red"), Text(fact.text))
        self._console.print(page)

    def advise(self, heading: str, lines: Sequence[str]) -> None:
        """Say what to do next."""
        self._console.print(Text(f"\n{heading}", style="bold"))
        for line in lines:
            self._console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)

    def _draw(self) -> None:
        if self._live is not None and self._picture is not None:
            self._live.update(self._frame(self._picture), refresh=True)

    def _frame(self, picture: Picture) -> RenderableType:
        width, height = self._console.size
        videos = picture.jobs["encode_video"]
        room = height - _OTHER_LINES - len(picture.rows) - len(videos)
        title = Table.grid(expand=True)
        title.add_column(no_wrap=True, ratio=1)
        title.add_column(justify="right", no_wrap=True)
        title.add_row(Text(self._title, style="bold"), Text(f"{picture.seconds:.1f} s", style="bold"))
        return Group(
            title,
            _table(picture, width),
            Text(),
            *([_videos(picture)] if videos else ()),
            _gauges(picture),
            Text(),
            *list(self._said)[-max(_FEWEST_LINES, room) :],
        )


def _table(picture: Picture, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="dim")
    table.add_column("task", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    if width >= _NARROW:
        table.add_column("", ratio=1)
    for row in (*picture.rows, picture.total):
        cells: list[RenderableType] = [_cell(row, column) for column in COLUMNS]
        if row.all and width >= _NARROW:
            cells.append(ProgressBar(total=row.all, completed=row.finished))
        table.add_row(row.task, *cells, style=_weight(row, picture))

    return table


def _cell(row: Row, column: str) -> Text:
    number = getattr(row, column)
    return Text(str(number), style=_COLOURS[column]) if number else Text("·", style="dim")


def _weight(row: Row, picture: Picture) -> str:
    if row is picture.total:
        return "bold"

    return "" if row.all else "dim"


def _videos(picture: Picture) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", width=5)
    table.add_column(width=9)
    for job in sorted(picture.jobs["encode_video"], key=lambda job: float(job.args["seconds"])):
        done = job.status == "completed"
        percent = 100 if done else job.progress or 0
        table.add_row(
            f"encode_video {job.args['title']}",
            ProgressBar(total=100, completed=percent, complete_style="cyan"),
            f"{percent:.0f} %",
            Text("completed" if done else job.current_stage or "", style="dim"),
        )

    return table


def _gauges(picture: Picture) -> Text:
    text = Text(no_wrap=True)
    if picture.wakes:
        text.append("wake-up ", style="dim").append(f"p50 {picture.wake_p50:.1f} ms ", style="bold green")
        text.append(_sparks(picture.wakes), style="green").append(f" of {len(picture.wakes)}    ", style="dim")
    if picture.rates:
        text.append("throughput ", style="dim").append(f"{picture.rates[-1]:.0f} jobs/s ", style="bold yellow")
        text.append(_sparks(picture.rates), style="yellow")

    return text


def _sparks(values: Sequence[float]) -> str:
    highest = max(values) or 1.0
    return "".join(_BLOCKS[min(int(value / highest * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in values)
