"""`jobs`: list, show, cancel."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args
from uuid import UUID

import click

from aiopgq._words.job import FINAL, JobInfo, Status
from aiopgq.app import App
from aiopgq.cli.choose import Chosen, choosing, everything, ids, limit, yes
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.sheet import list_jobs, show_job, show_progress
from aiopgq.cli.tell import note, number, tell
from aiopgq.errors import JobNotFound
from aiopgq.inspector import Inspector

__all__ = ["jobs"]

_STATUSES: Final = get_args(Status)
_UNFINISHED: Final = tuple(status for status in _STATUSES if status not in FINAL)
_ALL: Final = 2**31 - 1
_AT_ONCE: Final = 4


@click.group(cls=Group)
def jobs() -> None:
    """Look at jobs, cancel them."""


@jobs.command(
    "list", epilog="Example:\n  python -m aiopgq jobs list --task mail.send --status pending --older-than 10m"
)
@click.option("--status", type=click.Choice(_STATUSES), help="Only this status.")
@choosing
@limit
@as_json
@reaching
def list_(reach: Reach, *, status: str | None, chosen: Chosen, limit: int, as_json: bool) -> None:
    """List jobs, newest first; ages are those of the jobs."""

    async def look(inspector: Inspector) -> list[JobInfo]:
        return await _fitting(inspector, chosen, status, limit)

    found = reach.inspect(look)
    list_jobs(found, as_json=as_json)
    if not found:
        note("No job fits.")
    elif len(found) == limit:
        note(f"These are the newest {limit:,}; there may be more, see --limit.")


@jobs.command("show", epilog="Example:\n  python -m aiopgq jobs show 01985c7e-7a5e-7000-8000-3f2b6c1d9e10")
@click.argument("job_id", metavar="ID", type=click.UUID)
@click.option("--watch", is_flag=True, help="First tell how far it is, a line for each change, until it has ended.")
@as_json
@reaching
def show(reach: Reach, *, job_id: UUID, watch: bool, as_json: bool) -> None:
    """Show all that is known of a job: arguments, result, each attempt's error."""

    async def look(app: App[Any]) -> JobInfo:
        if watch:
            async for update in app.handle(job_id).progress():
                show_progress(update, as_json=as_json)
        return await app.inspector.job(job_id)

    show_job(reach.open(look), as_json=as_json)


@jobs.command("cancel", epilog="Example:\n  python -m aiopgq jobs cancel --task mail.send --older-than 2h --yes")
@ids
@click.option("--status", type=click.Choice(_UNFINISHED), help="Only this status; default: all unfinished.")
@choosing
@everything
@yes
@reaching
def cancel(
    reach: Reach, *, ids: Sequence[UUID], status: str | None, chosen: Chosen, everything: bool, yes: bool
) -> None:
    """Cancel unfinished jobs: pending ones at once, those a worker has by asking it.

    Takes ids, or filters, or --all. Without --yes it only says how many there are.
    """
    chosen.need(ids, everything=everything, status=status)

    async def work(inspector: Inspector) -> tuple[Counter[str], list[UUID]]:
        if ids:
            found, missing = await _known(inspector, ids)
        else:
            statuses = (status,) if status else _UNFINISHED
            found = [job for one in statuses for job in await _fitting(inspector, chosen, one, _ALL)]
            missing = []
        if not yes:
            return Counter(_foreseen(job) for job in found), missing
        return await _cancel(inspector, [job.id for job in found]), missing

    outcomes, missing = reach.inspect(work)
    total = outcomes["cancelled"] + outcomes["requested"]
    tell(f"{number(total, 'job')} {'cancelled' if yes else 'would be cancelled'}{_asked(outcomes['requested'])}.")
    if outcomes["finished"]:
        note(f"{number(outcomes['finished'], 'job is', 'jobs are')} finished already.")
    for job_id in missing:
        note(f"There is no job {job_id}.")
    if not yes and total:
        note("Nothing was changed; add --yes to do it.")
    if missing or (ids and outcomes["finished"]):
        click.get_current_context().exit(1)


async def _fitting(inspector: Inspector, chosen: Chosen, status: str | None, limit: int) -> list[JobInfo]:
    return await inspector.jobs(
        task=chosen.task,
        queue=chosen.queue,
        status=status,
        error=chosen.error,
        before=chosen.before,
        after=chosen.after,
        limit=limit,
    )


async def _known(inspector: Inspector, ids: Iterable[UUID]) -> tuple[list[JobInfo], list[UUID]]:
    found, missing = [], []
    for job_id in dict.fromkeys(ids):
        try:
            found.append(await inspector.job(job_id))
        except JobNotFound:
            missing.append(job_id)

    return found, missing


def _foreseen(job: JobInfo) -> str:
    if job.status in FINAL:
        return "finished"
    return "cancelled" if job.status == "pending" else "requested"


async def _cancel(inspector: Inspector, ids: Iterable[UUID]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    waiting = iter(ids)

    async def some() -> None:
        for job_id in waiting:
            try:
                outcomes[await inspector.cancel(job_id)] += 1
            except JobNotFound:  # finished meanwhile, and finished jobs are not kept
                outcomes["finished"] += 1

    work: list[Any] = [some() for _ in range(_AT_ONCE)]
    await asyncio.gather(*work)

    return outcomes


def _asked(requested: int) -> str:
    if not requested:
        return ""
    return f", {requested:,} of them by asking {'its worker' if requested == 1 else 'their workers'}"
