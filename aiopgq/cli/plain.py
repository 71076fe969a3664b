"""Text that is safe to show: what a job or a module brought along must not steer a terminal."""

__all__ = ["one_line", "printable"]


def printable(text: str) -> str:
    """Show control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def one_line(error: BaseException | str) -> str:
    """Return a message as one line."""
    return printable(" ".join(str(error).split()))
