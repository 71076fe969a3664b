"""aiopgq makes PostgreSQL the job queue of asyncio Python."""

from aiopgq._words.backoff import Backoff, Failure
from aiopgq._words.current import CurrentJob, current_job
from aiopgq._words.event import JobEvent
from aiopgq._words.job import JobInfo
from aiopgq._words.limit import Limit
from aiopgq._words.options import Priority
from aiopgq._words.outcome import Cancel, Fail, Retry, Snooze
from aiopgq._words.pending import MaxPending
from aiopgq._words.progress import Progress
from aiopgq._words.schedule import ScheduleInfo
from aiopgq._words.unique import Unique
from aiopgq.app import App
from aiopgq.call import Call
from aiopgq.handle import JobHandle
from aiopgq.inspector import Inspector
from aiopgq.middleware import EnqueueMiddleware, RunMiddleware
from aiopgq.router import Router
from aiopgq.schedules import Schedules
from aiopgq.task import Task, ThreadTask
from aiopgq.worker import Worker

__all__ = [
    "App",
    "Backoff",
    "Call",
    "Cancel",
    "CurrentJob",
    "EnqueueMiddleware",
    "Fail",
    "Failure",
    "Inspector",
    "JobEvent",
    "JobHandle",
    "JobInfo",
    "Limit",
    "MaxPending",
    "Priority",
    "Progress",
    "Retry",
    "Router",
    "RunMiddleware",
    "ScheduleInfo",
    "Schedules",
    "Snooze",
    "Task",
    "ThreadTask",
    "Unique",
    "Worker",
    "current_job",
]
