"""Compare with other queues: `python -m benchmarks.peers [--quick] [--only pgqueuer,arq] [--work drain,latency]`."""

import argparse
import os
from typing import Final, NamedTuple

import uvloop

from benchmarks.peers import works
from benchmarks.peers.programs import PEERS, Contender, invited
from benchmarks.peers.verdict import Verdict, Wanted, ratio, verdict
from benchmarks.report import heading, median, table
from benchmarks.server import running_server

QUESTION: Final = "how does aiopgq compare with other job queues of asyncio Python, doing the same work on one machine?"
METHOD: Final = """\
A job is a no-op with one small int. Every run has a fresh database, ANALYZE and CHECKPOINT; commits are durable
everywhere; our archive is on. The order of the peers turns from round to round; a figure is the median of the rounds.
Drain: from the first handler's start until the database holds no unfinished job; peers at the best of their
concurrencies, we at 500. Enqueue: committed calls a second for some seconds, nobody works. Latency: from the call to
the handler's first line, by CLOCK_MONOTONIC, at least 100 ms after the job before. Every job is accounted for.
CPU: of the workers or of the callers; PostgreSQL's is not in it. It is steadier than a rate on a busy machine.
Ratio: ours to theirs, the median over the rounds. The machine may be busy with other things: only ratios count."""


class Line(NamedTuple):
    """A work as it is asked for and printed.

    Attributes:
        asked: The name in `--work`.
        name: What the table calls it.
        unit: Of its figure.
        work: How it is measured.
        wanted: What our ratio to the best peer must be.
    """

    asked: str
    name: str
    unit: str
    work: works.Work
    wanted: Wanted


LINES: Final = (
    Line("drain", "drain, 1 worker process", "jobs/s", works.drain(1), Wanted(2.0)),
    Line("drain", "drain, 2 worker processes", "jobs/s", works.drain(2), Wanted(1.5)),
    Line("drain", "drain, concurrency 10", "jobs/s", works.drain(1, 10), Wanted(2.0)),
    Line("enqueue", "enqueue, 50 callers", "jobs/s", works.concurrent, Wanted(10.0, postgres_only=True)),
    Line("bulk", "enqueue, 1,000 a call", "jobs/s", works.bulk, Wanted(1.5)),
    Line("latency", "idle latency", "p50 ms", works.latency, Wanted(0.7, is_time=True)),
)
NAMES: Final = tuple(dict.fromkeys(line.asked for line in LINES))

# The figures of each round by the peer's module; none if it failed.
Measured = dict[str, list[works.Figures]]


async def main(modules: list[str], names: list[str], dsn: str | None, pace: works.Pace) -> bool:
    """Measure and print; return whether every measurement came to its end."""
    whole = True
    verdicts = []
    async with running_server(dsn) as server:
        heading("peers", QUESTION, METHOD)
        print(await server.description(), flush=True)
        async with invited(modules, server) as contenders:
            for line in LINES:
                if line.asked not in names:
                    continue
                measured = await _measured(line, contenders, pace)
                _print(line, contenders, measured)
                figures = {PEERS[module]: [one.figure for one in found] for module, found in measured.items() if found}
                verdicts.append((line, verdict(line.wanted, figures)))
                whole = whole and all(measured.values())
    _answer(verdicts)

    return whole


async def _measured(line: Line, contenders: list[Contender], pace: works.Pace) -> Measured:
    """Do a work with every peer that can, in every round."""
    able = [one for one in contenders if one.kind.bulk or line.asked != "bulk"]
    measured: Measured = {one.kind.module: [] for one in able}
    failed: set[str] = set()
    for number in range(pace.rounds):
        turn = number % len(able)
        for contender in able[turn:] + able[:turn]:
            module = contender.kind.module
            if module in failed:
                continue
            try:
                measured[module].append(await line.work(contender, pace))
            except* RuntimeError as group:
                print(f"{line.name}: {contender.kind.name} failed: {group.exceptions[0]}", flush=True)
                failed.add(module)
                measured[module] = []

    return measured


def _print(line: Line, contenders: list[Contender], measured: Measured) -> None:
    digits = 2 if line.wanted.is_time else 0
    ours = [one.figure for one in measured["ours"]]
    rows = []
    for contender in contenders:
        kind = contender.kind
        found = [one.figure for one in measured.get(kind.module, [])]
        if not found:
            rows.append((kind.name, "failed" if kind.module in measured else "no such call", "", "", ""))
            continue
        rows.append(
            (
                kind.name,
                f"{median(found):,.{digits}f}",
                f"{min(found):,.{digits}f} to {max(found):,.{digits}f}",
                measured[kind.module][-1].beside,
                f"{ratio(ours, found):.2f}" if ours and kind.role != "ours" else "",
            )
        )
    print(f"\nload of the machine over the last minute: {os.getloadavg()[0]:.1f}")
    table((line.name, line.unit, "range", "last round", "aiopgq's ratio"), rows)


def _answer(verdicts: list[tuple[Line, Verdict | None]]) -> None:
    rows = [
        (line.name, str(line.wanted), f"{found.ratio:.2f}", found.best, "yes" if found.holds else "NO")
        if found
        else (line.name, str(line.wanted), "", "nobody", "")
        for line, found in verdicts
    ]
    table(("", "wanted", "ratio", "to the best peer", "holds"), rows)
    compared = [found for _, found in verdicts if found]
    held = sum(found.holds for found in compared)
    print(f"Answer: {held} of {len(compared)} comparisons with the best peer hold.", flush=True)


def _chosen(given: str | None, known: tuple[str, ...], parser: argparse.ArgumentParser) -> list[str]:
    names = given.split(",") if given else list(known)
    for name in names:
        if name not in known:
            parser.error(f"there is no {name!r}: choose from {', '.join(known)}")
    return [name for name in known if name in names]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Compare with other job queues.")
    parser.add_argument("--only", help=f"peers to compare with, of {', '.join(PEERS)}; ours is always there")
    parser.add_argument("--work", help=f"works to do, of {', '.join(NAMES)}; default: all")
    parser.add_argument("--dsn", help="a server to make databases on; default: AIOPGQ_BENCH_DSN, else an embedded one")
    parser.add_argument("--rounds", type=int, help="times each work is done by each peer, 3 by default; odd is best")
    parser.add_argument("--quick", action="store_true", help="one tiny round: shows that it runs, measures nothing")
    chosen = parser.parse_args()
    only = _chosen(f"ours,{chosen.only}" if chosen.only else None, tuple(PEERS), parser)
    asked = _chosen(chosen.work, NAMES, parser)
    pace = works.QUICK if chosen.quick else works.FULL
    if chosen.rounds is not None:
        if chosen.rounds < 1:
            parser.error("--rounds must be at least 1")
        pace = pace._replace(rounds=chosen.rounds)
    if not uvloop.run(main(only, asked, chosen.dsn, pace)):
        raise SystemExit(1)
