"""Whether a comparison holds: what is wanted, and what was measured."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers.programs import Kind
from benchmarks.report import median

__all__ = ["Wanted", "verdict"]


class Wanted(NamedTuple):
    """Bounds of our figure divided by the best peer's.

    Attributes:
        least: For rates; the best peer is the one with the most.
        most: For times; the best peer is the one with the least.
        postgres_only: Peers in Redis are not compared with.
    """

    least: float | None = None
    most: float | None = None
    postgres_only: bool = False


def verdict(wanted: Wanted, measured: Mapping[Kind, Sequence[float]]) -> str:
    """Say whether we hold against the best peer; the ratio is the median over the rounds.

    Args:
        wanted: The bound.
        measured: The figure of each round, for ours and for each peer.
    """
    ours = next((found for kind, found in measured.items() if kind.role == "ours"), None)
    peers = {
        kind: found
        for kind, found in measured.items()
        if kind.role == "peer" and not (kind.redis and wanted.postgres_only)
    }
    if not ours or not peers:
        return "has nothing to be compared with"
    pick = max if wanted.least is not None else min
    best = pick(peers, key=lambda kind: median(peers[kind]))
    ratio = median(our / their for our, their in zip(ours, peers[best], strict=True))
    if wanted.least is not None:
        bound, holds = f">= {wanted.least:.2f}", ratio >= wanted.least
    else:
        assert wanted.most is not None  # noqa: S101  # a bound is one of the two
        bound, holds = f"<= {wanted.most:.2f}", ratio <= wanted.most

    return f"{'holds' if holds else 'DOES NOT HOLD'}: ratio {ratio:.2f} to {best.name} (wanted: {bound})"
