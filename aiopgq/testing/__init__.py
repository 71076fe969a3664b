"""What tests of tasks need: run one without a database, see what was enqueued.

Beside these stand `await jobs.drain()` and the pytest fixtures `aiopgq_dsn` and `aiopgq_schema`. There is no
imitation of the queue in memory: what a queue promises is what PostgreSQL promises.
"""

from aiopgq.testing.kit import Completed, EnqueuedJob, Run, enqueued, perform

__all__ = ["Completed", "EnqueuedJob", "Run", "enqueued", "perform"]
