"""The sentences at the end of the demo: what no queue may show is called bad."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from aiopgq import JobInfo
from aiopgq.cli.demo.facts import Notes, facts
from aiopgq.cli.demo.gauges import Picture, Row


def _job(task, status, **facts):
    now = datetime.now(UTC)
    return JobInfo(
        **{
            "id": uuid4(),
            "queue": "default",
            "task": task,
            "status": status,
            "priority": 100,
            "attempts": 1,
            "max_attempts": 3,
            "created_at": now,
            "run_at": now,
            "claimed_at": now,
            "started_at": None,
            "finished_at": datetime.now(UTC),
            "worker_id": None,
            "progress": None,
            "current_stage": None,
            "events_count": 0,
            "held": None,
            "cancel_requested": False,
            "args": {},
            "headers": {},
            "result": None,
            "last_error": None,
            "errors": [],
        }
        | facts
    )


def _told(**changes):
    """Tell the facts of a small story; `changes` replaces what became of jobs."""
    became = {
        "shipped": "completed",
        "rolled_back": None,
        "replayed": "completed",
        "cancelled": "cancelled",
        "fetched": "completed",
        "restocked": "completed",
    } | changes
    named = {
        "shipped": "ship_order",
        "rolled_back": "ship_order",
        "replayed": "charge_card",
        "cancelled": "remind",
        "fetched": "fetch_page",
        "restocked": "restock",
    }
    ones = {name: _job(task, became[name]) for name, task in named.items() if became[name]}
    jobs = {task: [] for task in (*named.values(), "no_op", "reset_password", "reindex", "thumbnail")}
    for job in (
        *ones.values(),
        *(_job(task, "completed") for task in ("no_op", "remind", "reset_password", "reindex", "thumbnail")),
    ):
        jobs[job.task].append(job)
    everything = [job for some in jobs.values() for job in some]
    rows = [Row.of(task, some) for task, some in jobs.items()]
    picture = Picture(1.0, jobs, rows, Row.of("all", everything), [], [0.001])
    ids = {name: ones[name].id if name in ones else uuid4() for name in named}
    notes = Notes([1], ids["shipped"], ids["rolled_back"], ids["cancelled"], {ids["replayed"]: "an error"})

    return facts(picture, notes, 5.0)


def test_the_facts_of_a_good_story_are_good():
    assert [fact.text for fact in _told() if not fact.good] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rolled_back": "completed"}, "order 2 was rolled back: its job is there all the same"),
        ({"shipped": None}, "Order 1 was committed and its job is lost"),
        ({"replayed": "failed"}, "was replayed: failed"),
        ({"cancelled": "completed"}, "1 was completed while it was pending"),
        ({"fetched": "failed"}, "0 completed"),
        ({"restocked": "pending"}, "restock snoozed and pending"),
    ],
)
def test_a_fact_that_no_queue_may_show_is_called_bad(changes, words):
    [bad, *_] = [fact for fact in _told(**changes) if not fact.good and words in fact.text]
    assert words in bad.text
