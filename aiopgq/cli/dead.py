"""`dead`: list, show, replay and purge dead letters."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import click

from aiopgq._words.job import JobInfo
from aiopgq.cli.choose import Chosen, choosing, everything, ids, limit, yes
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json
from aiopgq.cli.sheet import list_jobs, show_job
from aiopgq.cli.tell import note, number, tell
from aiopgq.errors import JobNotFound
from aiopgq.inspector import Inspector, Replayed

__all__ = ["dead"]


@click.group(cls=Group)
def dead() -> None:
    """Look at dead letters, replay or purge them."""


@dead.command("list", epilog="Example:\n  python -m aiopgq dead list --error ConnectionError --newer-than 3d")
@choosing
@limit
@as_json
@reaching
def list_(reach: Reach, *, chosen: Chosen, limit: int, as_json: bool) -> None:
    """List dead letters, those that failed last first."""

    async def look(inspector: Inspector) -> tuple[int, list[JobInfo]]:
        found = await _fitting(inspector, chosen, ())
        infos = [await _letter(inspector, job_id) for job_id in reversed(found[-limit:])]
        return len(found), [info for info in infos if info is not None]

    total, found = reach.inspect(look)
    list_jobs(found, as_json=as_json)
    if not total:
        note("No dead letter fits.")
    elif total > limit:
        note(f"These are the last {limit:,} of {total:,}; see --limit.")


@dead.command("show", epilog="Example:\n  python -m aiopgq dead show 01985c7e-7a5e-7000-8000-3f2b6c1d9e10")
@click.argument("job_id", metavar="ID", type=click.UUID)
@as_json
@reaching
def show(reach: Reach, *, job_id: UUID, as_json: bool) -> None:
    """Show a dead letter, with each attempt's error."""

    async def look(inspector: Inspector) -> JobInfo:
        return await inspector.job(job_id)

    found = reach.inspect(look)
    if found.status != "failed":
        raise click.ClickException(f"Job {job_id} is no dead letter: it is {found.status}.")
    show_job(found, as_json=as_json)


@dead.command("replay", epilog="Example:\n  python -m aiopgq dead replay --task mail.send --error Timeout --yes")
@ids
@choosing
@everything
@yes
@reaching
def replay(reach: Reach, *, ids: Sequence[UUID], chosen: Chosen, everything: bool, yes: bool) -> None:
    """Make dead letters pending again, with all their attempts and their history.

    Takes ids, or filters (ages count from the failure), or --all. Without --yes it only says how many there are.
    """
    chosen.need(ids, everything=everything)

    async def work(inspector: Inspector) -> tuple[Sequence[UUID], Replayed]:
        found = await _fitting(inspector, chosen, ids)
        return found, await inspector.replay(found) if yes else Replayed(len(found), {})

    found, replayed = reach.inspect(work)
    for job_id, by in replayed.left.items():
        note(f"{job_id} stays a dead letter: job {by} has its unique key. Replay it when that job is done.")
    _tell(ids, found, replayed.jobs, done="replayed", yes=yes)
    if replayed.left:
        click.get_current_context().exit(1)


@dead.command("purge", epilog="Example:\n  python -m aiopgq dead purge --older-than 30d --yes")
@ids
@choosing
@everything
@yes
@reaching
def purge(reach: Reach, *, ids: Sequence[UUID], chosen: Chosen, everything: bool, yes: bool) -> None:
    """Delete dead letters for good.

    Takes ids, or filters (ages count from the failure), or --all. Without --yes it only says how many there are.
    """
    chosen.need(ids, everything=everything)

    async def work(inspector: Inspector) -> tuple[Sequence[UUID], int]:
        found = await _fitting(inspector, chosen, ids)
        return found, await inspector.purge(found) if yes else len(found)

    _tell(ids, *reach.inspect(work), done="deleted", yes=yes)


async def _fitting(inspector: Inspector, chosen: Chosen, ids: Sequence[UUID]) -> Sequence[UUID]:
    """Find dead letters, oldest failure first."""

    async def failed(before: datetime | None) -> Sequence[UUID]:
        return await inspector.dead(
            ids or None, task=chosen.task, queue=chosen.queue, error=chosen.error, before=before
        )

    found = await failed(chosen.before)
    if chosen.after is not None:
        older = set(await failed(chosen.after))
        found = [job_id for job_id in found if job_id not in older]

    return found


async def _letter(inspector: Inspector, job_id: UUID) -> JobInfo | None:
    """Look at a dead letter; None if somebody was faster."""
    try:
        info = await inspector.job(job_id)
    except JobNotFound:
        return None

    return info if info.status == "failed" else None


def _tell(asked: Sequence[UUID], found: Sequence[UUID], count: int, *, done: str, yes: bool) -> None:
    tell(f"{number(count, 'dead letter')} {done if yes else f'would be {done}'}.")
    missing = [job_id for job_id in dict.fromkeys(asked) if job_id not in set(found)]
    for job_id in missing:
        note(f"There is no dead letter {job_id}.")
    if not yes and count:
        note("Nothing was changed; add --yes to do it.")
    if missing:
        click.get_current_context().exit(1)
