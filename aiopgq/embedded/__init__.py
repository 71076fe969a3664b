"""A PostgreSQL of one's own: `App("embedded:./data")` needs no server, no container, no administrator.

Read in this order:

    launcher.py     what a user calls: attach to the folder's server, or start it
    supervisor.py   the process that owns the server and stops it once nobody uses it
    binaries.py     where the programs of PostgreSQL come from

The parts meet in the folder and trust only locks that the kernel drops, so a SIGKILL anywhere leaves neither
a process nor an obstacle behind.
"""

from aiopgq.embedded.binaries import find_binaries
from aiopgq.embedded.launcher import EmbeddedServer

__all__ = ["EmbeddedServer", "find_binaries"]
