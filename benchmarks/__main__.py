"""Run the benchmarks: `python -m benchmarks [program[:part] ...] [--dsn DSN] [--quick] [--minutes N]`."""

import argparse
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import uvloop

from benchmarks import drain, enqueue, flat, idle, latency, limits, outbox, scaling, sizing, soak, wake, writes
from benchmarks.server import Server, running_server

PROGRAMS: Final[dict[str, Callable[[Server, bool], Awaitable[None]]]] = {
    "drain": drain.run,
    "enqueue": enqueue.run,
    "latency": latency.run,
    "idle": idle.run,
    "limits": limits.run,
    "scaling": scaling.run,
    "sizing": sizing.run,
    "wake": wake.run,
    "writes": writes.run,
    "flat": flat.run,
    "outbox": outbox.run,
}
# It takes long by its nature: only when it is named.
SOAK: Final = "soak"
# Of some programs a part can be run alone.
PARTS: Final[dict[str, Callable[[Server, bool], Awaitable[None]]]] = {
    f"{name}:{part}": partial(run, only=part)
    for name, run, parts in (("wake", wake.run, wake.PARTS), ("flat", flat.run, flat.PARTS))
    for part in parts
}


def _known(minutes: float) -> dict[str, Callable[[Server, bool], Awaitable[None]]]:
    return {**PROGRAMS, SOAK: partial(soak.run, minutes=minutes), **PARTS}


async def main(names: list[str], dsn: str | None, *, quick: bool, minutes: float) -> None:
    """Run programs one after the other on one server."""
    async with running_server(dsn) as server:
        print(await server.description())
        for name in names:
            await _known(minutes)[name](server, quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure aiopgq against raw asyncpg.")
    parser.add_argument("program", nargs="*", help=f"{', '.join(_known(0))}; default: all but {SOAK}")
    parser.add_argument("--dsn", help="a server to make databases on; default: AIOPGQ_BENCH_DSN, else an embedded one")
    parser.add_argument("--minutes", type=float, default=20.0, help=f"how long {SOAK} lasts; default: 20")
    parser.add_argument("--quick", action="store_true", help="one tiny round: shows that it runs, measures nothing")
    chosen = parser.parse_args()
    for program in chosen.program:
        if program not in _known(chosen.minutes):
            parser.error(f"there is no program {program!r}: choose from {', '.join(_known(chosen.minutes))}")
    uvloop.run(main(chosen.program or list(PROGRAMS), chosen.dsn, quick=chosen.quick, minutes=chosen.minutes))
