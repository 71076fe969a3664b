"""How much goes into one statement: as much as keeps its time well below any timer."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

__all__ = ["moderate"]

_MOST: Final = 1000
_LARGEST: Final = 4_000_000

T = TypeVar("T")


def moderate(waiting: Sequence[T], size: Callable[[T], int]) -> int:
    """Return how many of those that wait longest make a statement of moderate size: at least one.

    Args:
        waiting: Those that wait, the longest first.
        size: Gives the characters one brings.
    """
    if sum(map(size, waiting[:_MOST])) < _LARGEST:
        return min(len(waiting), _MOST)
    total = 0
    for number, one in enumerate(waiting[:_MOST], 1):
        total += size(one)
        if total >= _LARGEST:
            return number

    return min(len(waiting), _MOST)
