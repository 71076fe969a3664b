"""What is measured with: an App for `run`, and two tasks that cost next to nothing."""

from time import monotonic_ns

from aiopgq import App

__all__ = ["jobs", "noop", "stamp"]

jobs: App[None] = App()


@jobs.task(name="bench.noop")
async def noop(user_id: int, template: str, weight: float) -> None:
    """Do nothing, with three typed arguments."""
    del user_id, template, weight


@jobs.task(name="bench.stamp")
async def stamp() -> int:
    """Return when the handler started, by a clock that all processes of a machine share."""
    return monotonic_ns()
