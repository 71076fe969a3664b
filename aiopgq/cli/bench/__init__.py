"""How fast this is on a database of yours: `python -m aiopgq bench`.

load.py      two small tasks
measure.py   drain, enqueue and latency, in a schema of their own
command.py   the command itself
"""

from aiopgq.cli.bench.command import bench

__all__ = ["bench"]
