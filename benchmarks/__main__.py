"""Run the benchmarks: `python -m benchmarks [drain] [enqueue] [latency] [idle] [scaling] [--dsn DSN] [--quick]`."""

import argparse
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from benchmarks import drain, enqueue, idle, latency, scaling
from benchmarks.server import Server, running_server

PROGRAMS: Final[dict[str, Callable[[Server, bool], Awaitable[None]]]] = {
    "drain": drain.run,
    "enqueue": enqueue.run,
    "latency": latency.run,
    "idle": idle.run,
    "scaling": scaling.run,
}


async def main(names: list[str], dsn: str | None, *, quick: bool) -> None:
    """Run programs one after the other on one server."""
    async with running_server(dsn) as server:
        print(await server.description())
        for name in names:
            await PROGRAMS[name](server, quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure aiopgq against raw asyncpg.")
    parser.add_argument("program", nargs="*", help=f"{', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--dsn", help="a server to make databases on; default: AIOPGQ_BENCH_DSN, else an embedded one")
    parser.add_argument("--quick", action="store_true", help="one tiny round: shows that it runs, measures nothing")
    chosen = parser.parse_args()
    for program in chosen.program:
        if program not in PROGRAMS:
            parser.error(f"there is no program {program!r}: choose from {', '.join(PROGRAMS)}")
    uvloop.run(main(chosen.program or list(PROGRAMS), chosen.dsn, quick=chosen.quick))
