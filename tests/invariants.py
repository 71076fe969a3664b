"""What holds after every story, whatever happened in it (FAILURES, part 1)."""

import itertools
from collections import defaultdict
from contextlib import contextmanager

import asyncpg
import pytest
from support import eventually

from aiopgq import current_job

__all__ = ["Journal", "in_order", "violations"]

# Each statement finds what must not be, in any state the tables may be seen in.
LAWS = {
    "a job is claimed or running without a live worker": """
        SELECT j.id, j.status FROM aiopgq.jobs j WHERE j.status <> 'pending' AND NOT EXISTS (
            SELECT 1 FROM aiopgq.workers w
            WHERE w.id = j.worker_id AND w.dead_at IS NULL AND w.heartbeat_at > clock_timestamp() - w.lease)""",
    "a job is in two places": """
        SELECT a.id, array_agg(a.status) FROM aiopgq.all_jobs a GROUP BY a.id HAVING count(*) > 1""",
    "a job has begun more runs than it may": """
        SELECT a.id, a.status, a.attempts FROM aiopgq.all_jobs a WHERE a.attempts > a.max_attempts""",
    "a job waits without an attempt left": """
        SELECT j.id, j.attempts, j.last_error FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND j.attempts >= j.max_attempts
          AND coalesce(j.last_error, '') NOT LIKE 'the outcome %'""",
    "a job is in line before it is due": """
        SELECT j.id, j.run_at FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND j.place IS NOT NULL AND j.run_at > clock_timestamp()""",
    "a pending job still shows the run before": """
        SELECT j.id, j.claimed_at, j.started_at, j.progress FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND num_nonnulls(j.claimed_at, j.started_at, j.progress, j.current_stage) > 0""",
}
OURS = """
    SELECT application_name, state FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'aiopgq %'"""


async def violations(connection):
    """Return the laws that are broken, and by which rows."""
    found = {law: await connection.fetch(sql) for law, sql in LAWS.items()}
    return {law: [dict(row) for row in rows] for law, rows in found.items() if rows}


@pytest.fixture(autouse=True)
async def in_order(dsn):
    """After the test, when its Apps are closed, all laws hold and no connection of ours is left."""
    yield
    connection = await asyncpg.connect(dsn)
    try:
        assert await violations(connection) == {}

        async def gone():
            return not await connection.fetch(OURS)

        await eventually(gone, what="the closed App has left no connection behind")
    finally:
        await connection.close()


class Journal:
    """What handlers write down of their runs: one line when a run begins, one when it ends."""

    def __init__(self):
        self._lines = []
        self._clock = itertools.count()

    @contextmanager
    def run(self):
        """Write down the run of the current job."""
        run = current_job()
        line = [run.id, run.job.claim_id, run.attempt, next(self._clock), None]
        self._lines.append(line)
        try:
            yield run
        finally:
            line[4] = next(self._clock)

    @property
    def attempts(self):
        """The attempts of all runs, in the order in which they began."""
        return [attempt for _, _, attempt, _, _ in self._lines]

    @property
    def jobs(self):
        """The jobs of all runs, in the order in which they began."""
        return [job_id for job_id, *_ in self._lines]

    @property
    def most_at_once(self):
        """How many runs there were at the same time, at most."""
        moments = sorted((at, step) for *_, began, ended in self._lines for at, step in ((began, 1), (ended, -1)))
        return max(itertools.accumulate(step for _, step in moments), default=0)

    def check(self):
        """Check that no claim ran twice and no job ran beside itself."""
        claims = [(job_id, claim_id) for job_id, claim_id, *_ in self._lines]
        assert len(claims) == len(set(claims))
        spans = defaultdict(list)
        for job_id, _, _, began, ended in self._lines:
            spans[job_id].append((began, ended))
        for runs in spans.values():
            runs.sort()
            assert all(ended is not None and ended < began for (_, ended), (began, _) in itertools.pairwise(runs))
