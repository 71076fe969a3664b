"""How figures are summed up and printed."""

import statistics
from collections.abc import Iterable, Sequence

__all__ = ["heading", "median", "percentile", "table"]

median = statistics.median


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def heading(name: str, question: str, method: str) -> None:
    """Print what a program asks, and how it finds out."""
    print(f"\n{name}: {question}\n{method}\n", flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a head: the first column to the left, figures to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        first, *figures = row
        cells = [first.ljust(widths[0])]
        cells += [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
    print(flush=True)
