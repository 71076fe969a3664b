"""Whether a comparison holds: what is wanted, and what was measured."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers.programs import Kind
from benchmarks.report import median

__all__ = ["Verdict", "Wanted", "ratio", "verdict"]


class Wanted(NamedTuple):
    """A bound of our figure divided by the best peer's.

    Attributes:
        bound: The ratio.
        is_time: Less is better: the best peer has the least, and the ratio must not exceed the bound. Otherwise more
            is better, and the ratio must reach it.
        postgres_only: Peers in Redis are not compared with.
    """

    bound: float
    is_time: bool = False
    postgres_only: bool = False

    def __str__(self) -> str:
        """Say it as a table does."""
        return f"{'<=' if self.is_time else '>='} {self.bound:.2f}"


class Verdict(NamedTuple):
    """What came out.

    Attributes:
        best: The best peer.
        ratio: Ours to it.
        holds: Whether that is within the bound.
    """

    best: str
    ratio: float
    holds: bool


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Divide round by round, and take the median."""
    return median(our / their for our, their in zip(ours, theirs, strict=True))


def verdict(wanted: Wanted, measured: Mapping[Kind, Sequence[float]]) -> Verdict | None:
    """Compare ours with the best peer; None if one of them is missing.

    Args:
        wanted: The bound.
        measured: The figure of each round, for ours and for the others.
    """
    ours = next((found for kind, found in measured.items() if kind.role == "ours"), None)
    peers = {
        kind: found
        for kind, found in measured.items()
        if kind.role == "peer" and not (kind.redis and wanted.postgres_only)
    }
    if not ours or not peers:
        return None
    pick = min if wanted.is_time else max
    best = pick(peers, key=lambda kind: median(peers[kind]))
    found = ratio(ours, peers[best])

    return Verdict(best.name, found, found <= wanted.bound if wanted.is_time else found >= wanted.bound)
