"""The program of a peer: `python -m benchmarks.peers.serve PEER DSN`, run by the Python of its environment."""

import sys
from importlib import import_module

from benchmarks.peers.protocol import serve

if __name__ == "__main__":
    _, name, dsn = sys.argv
    serve(import_module(f"benchmarks.peers.{name}").PEER(dsn))
