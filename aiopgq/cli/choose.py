"""How commands choose jobs: by id, by filters, or all of them; and that they only say what they would do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from typing import Any, Final, TypeVar
from uuid import UUID

import click

from aiopgq.cli.shape import duration

__all__ = ["Chosen", "choosing", "everything", "ids", "limit", "yes"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which jobs.

    Attributes:
        task: Only this task.
        queue: Only this queue.
        error: Only those whose last error contains this.
        before: Only those from before this moment.
        after: Only those from after this moment.
    """

    task: str | None
    queue: str | None
    error: str | None
    before: datetime | None
    after: datetime | None

    def need(self, ids: Sequence[UUID], *, everything: bool, status: str | None = None) -> None:
        """Check that somebody said which jobs.

        Raises:
            UsageError: Nobody did, or in two ways.
        """
        filtered = any((self.task, self.queue, self.error, self.before, self.after, status))
        if sum((bool(ids), filtered, everything)) != 1:
            raise click.UsageError("say which: ids, or filters such as --task, or --all")


def choosing(function: _Function) -> _Function:
    """Give a command filters, and its function what they say as `chosen`."""

    def chose(*args: Any, older_than: float | None, newer_than: float | None, **rest: Any) -> Any:
        chosen = Chosen(rest.pop("task"), rest.pop("queue"), rest.pop("error"), _ago(older_than), _ago(newer_than))
        return function(*args, chosen=chosen, **rest)

    command: Any = update_wrapper(chose, function)
    for option in (
        click.option("--newer-than", type=duration, help="Only younger ones; 10m, 2h, 3d."),
        click.option("--older-than", type=duration, help="Only older ones."),
        click.option("--error", metavar="TEXT", help="Only those whose last error contains this."),
        click.option("--queue", metavar="NAME", help="Only this queue."),
        click.option("--task", metavar="NAME", help="Only this task."),
    ):
        command = option(command)

    return command  # type: ignore[no-any-return]  # click marks functions and gives them back


def _ago(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.now(UTC) - timedelta(seconds=seconds)


ids: Final = click.argument("ids", nargs=-1, type=click.UUID, metavar="[ID]...")
limit: Final = click.option("--limit", type=click.IntRange(1), default=50, help="The most to list.")
# These two are typed, or not said: no variable and no file says them once for all.
yes: Final = click.option("--yes", is_flag=True, allow_from_autoenv=False, help="Do it; without it nothing is changed.")
everything: Final = click.option("--all", "everything", is_flag=True, allow_from_autoenv=False, help="All there are.")
