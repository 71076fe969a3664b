"""A job on paper: a row of a list, or a sheet of its own."""

from collections.abc import Sequence
from typing import Any

import msgspec

from aiopgq._words.job import JobInfo
from aiopgq._words.progress import Progress
from aiopgq.cli.plain import printable
from aiopgq.cli.tell import age, block, table, tell, tell_json

__all__ = ["list_jobs", "show_job", "show_progress"]


def list_jobs(jobs: Sequence[JobInfo], *, as_json: bool) -> None:
    """Write a row for each job."""
    if as_json:
        tell_json(jobs)
        return
    table(
        ("ID", "STATUS", "TASK", "QUEUE", "ATTEMPTS", "AGE", "LAST ERROR"),
        [
            (
                job.id,
                job.status,
                job.task,
                job.queue,
                f"{job.attempts}/{job.max_attempts}",
                age(job.created_at),
                job.last_error,
            )
            for job in jobs
        ],
    )


def show_job(job: JobInfo, *, as_json: bool) -> None:
    """Write all that is known of a job."""
    if as_json:
        tell_json(job)
        return
    block(
        {
            "id": job.id,
            "task": job.task,
            "queue": job.queue,
            "status": job.status + (", cancel requested" if job.cancel_requested else ""),
            "held": job.held,
            "priority": job.priority,
            "attempts": f"{job.attempts} of {job.max_attempts}",
            "created": job.created_at,
            "due": job.run_at,
            "claimed": job.claimed_at,
            "started": job.started_at,
            "finished": job.finished_at,
            "worker": job.worker_id,
            "progress": None if job.progress is None else f"{job.progress:g} %",
            "stage": job.current_stage,
            "arguments": _json(job.args),
            "headers": _json(job.headers) if job.headers else None,
            "result": _json(job.result) if job.status == "completed" else None,
            "last error": job.last_error,
        }
    )
    for error in job.errors:
        tell("")
        block(
            {
                "attempt": error["attempt"],
                "at": error["at"],
                "on": error["worker"],
                "error": (error["traceback"] or error["error"]).rstrip(),
            }
        )


def show_progress(update: Progress, *, as_json: bool) -> None:
    """Write a line about how far a job is."""
    if as_json:
        tell(_json(update._asdict()))
        return
    percent = "" if update.percent is None else f"{update.percent:g} %"
    tell(f"{update.status:<9}  attempt {update.attempt}  {percent:<6}  {printable(update.stage or '')}".rstrip())


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
