"""Logging of `run`: only if the user's modules have configured none; to stderr, for people or for machines.

What user code logs inside a job carries the job's id, task and attempt. Arguments are never logged.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from aiopgq._words.current import current_job

__all__ = ["LEVELS", "configure"]

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_TEXT: Final = "%(asctime)s [%(process)d] %(levelname)s %(name)s: %(message)s"
# Where a record that names no job keeps what a line for people ends with.
_INSIDE: Final = "_aiopgq_inside"
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", _INSIDE}

log = logging.getLogger("aiopgq.cli")


def configure(level: str | None, form: str | None) -> None:
    """Configure the root logger, unless somebody has.

    Args:
        level: The lowest level written; None for info.
        form: `text` or `json`; None for text.
    """
    root = logging.getLogger()
    if root.handlers:
        if level or form:
            log.warning("the App's modules configure logging, so --log-level and --log-format have no effect")
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_in_job)
    handler.setFormatter(_Json() if form == "json" else _Text(_TEXT))
    root.addHandler(handler)
    root.setLevel((level or "info").upper())


def _in_job(record: logging.LogRecord) -> bool:
    """Add the job that runs where the record was made."""
    job = current_job(default=None)
    if job is not None:
        if not hasattr(record, "job_id"):
            setattr(record, _INSIDE, f"[{job.task} {job.id} attempt {job.attempt}]")
        for name, value in (("job_id", job.id), ("task", job.task), ("queue", job.queue), ("attempt", job.attempt)):
            if not hasattr(record, name):
                setattr(record, name, value)

    return True


class _Text(logging.Formatter):
    """A line for people; records made inside a job end with the job."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # named by logging
        """Format the line."""
        inside = record.__dict__.get(_INSIDE)
        return super().formatMessage(record) + (f" {inside}" if inside else "")


class _Json(logging.Formatter):
    """An object a line: time, level, logger, message, pid, and the facts of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the line."""
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        facts |= {name: value for name, value in record.__dict__.items() if name not in _OWN and name not in facts}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(facts, enc_hook=repr).decode()
        except Exception:  # noqa: BLE001  # a fact of user code may be anything, a lone surrogate among it
            clean = {name: ascii(value) for name, value in facts.items()}
            return msgspec.json.encode(clean).decode()
