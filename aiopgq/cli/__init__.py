"""The command line: a face over App and Inspector; each command is a module of its own, loaded when it is called."""

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process."""
    # The worker processes of `run` come through this package too, and need none of it.
    from aiopgq.cli.group import cli  # noqa: PLC0415  # see above

    cli()
