"""Numbers of things, as a person would say them."""

__all__ = ["counted"]


def counted(number: int, thing: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
