"""How commands tell what they found: tables for people, JSON for machines; data on stdout, notes on stderr."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec

from aiopgq.cli.plain import printable

__all__ = ["age", "block", "note", "number", "table", "tell", "tell_json"]

_WIDEST: Final = 60
_GAP: Final = "  "


def tell(text: str) -> None:
    """Write data."""
    click.echo(text)


def tell_json(value: Any) -> None:
    """Write data as indented JSON, integers of any size exactly."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def note(text: str) -> None:
    """Write a note."""
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], widest: int = _WIDEST) -> None:
    """Write rows in columns, longer cells cut; no rows, no head."""
    cells = [[_cell(value, widest) for value in row] for row in rows]
    if not cells:
        return
    widths = [max(len(row[at]) for row in (head, *cells)) for at in range(len(head))]
    for row in (head, *cells):
        tell(_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def block(facts: Mapping[str, Any]) -> None:
    """Write facts, a line each; those that are None are left out."""
    known = {name: _text(value).split("\n") for name, value in facts.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, lines in known.items():
        tell(f"{name.ljust(width)}{_GAP}" + f"\n{' ' * width}{_GAP}".join(map(printable, lines)))


def number(count: int, one: str, many: str | None = None) -> str:
    """Count things: `1 job`, `2 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def age(since: datetime) -> str:
    """Say how long ago something was: `3m`."""
    seconds = int(max(timedelta(), datetime.now(UTC) - since).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"

    return f"{seconds}s"


def _cell(value: Any, widest: int) -> str:
    text = printable(_text(value).partition("\n")[0])
    return text if len(text) <= widest else text[: widest - 1] + "…"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")

    return str(value)
