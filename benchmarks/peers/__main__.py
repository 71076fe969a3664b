"""Compare with other queues: `python -m benchmarks.peers [--quick] [--only pgqueuer,arq] [--work drain,latency]`."""

import argparse
import os
from typing import Final, NamedTuple

import uvloop

from benchmarks.peers import works
from benchmarks.peers.programs import PEERS, Contender, invited
from benchmarks.peers.verdict import Wanted, verdict
from benchmarks.report import heading, median, table
from benchmarks.server import running_server

QUESTION: Final = "how does aiopgq compare with other job queues of asyncio Python, doing the same work on one machine?"
METHOD: Final = """\
A job is a no-op with one small int. Every run has a fresh database, ANALYZE and CHECKPOINT; commits are durable
everywhere; our archive is on. The order of the peers turns from round to round; a figure is the median of the rounds.
Drain: from the first handler's start until the database holds no unfinished job; peers at the best of their
concurrencies, we at 500. Enqueue: committed calls a second for some seconds, nobody works. Latency: from the call to
the handler's first line, by CLOCK_MONOTONIC, at least 100 ms after the job before. Every job is accounted for.
Ratio: ours to theirs, the median over the rounds. The machine may be busy with other things: only ratios count."""


class Line(NamedTuple):
    """A work as it is asked for and printed.

    Attributes:
        asked: The name in `--work`.
        name: What the table calls it.
        unit: Of its figure.
        work: How it is measured.
        processes: Worker processes whose best concurrency must be found beforehand; 0 for none.
        wanted: What our ratio to the best peer must be.
    """

    asked: str
    name: str
    unit: str
    work: works.Work
    processes: int
    wanted: Wanted


LINES: Final = (
    Line("drain", "drain, 1 worker process", "jobs/s", works.drain(1), 1, Wanted(least=2.0)),
    Line("drain", "drain, 2 worker processes", "jobs/s", works.drain(2), 2, Wanted(least=1.5)),
    Line("drain", "drain, concurrency 10", "jobs/s", works.drain(1, 10), 0, Wanted(least=2.0)),
    Line("enqueue", "enqueue, 50 callers", "jobs/s", works.concurrent, 0, Wanted(least=10.0, postgres_only=True)),
    Line("bulk", "enqueue, 1,000 a call", "jobs/s", works.bulk, 0, Wanted(least=1.5)),
    Line("latency", "idle latency", "p50 ms", works.latency, 0, Wanted(most=0.7)),
)
NAMES: Final = tuple(dict.fromkeys(line.asked for line in LINES))


async def main(modules: list[str], names: list[str], dsn: str | None, pace: works.Pace) -> bool:
    """Measure, print, and say whether every measurement came to its end."""
    whole = True
    answers = []
    async with running_server(dsn) as server:
        heading("peers", QUESTION, METHOD)
        print(await server.description(), flush=True)
        async with invited(modules, server) as contenders:
            for line in LINES:
                if line.asked not in names:
                    continue
                figures = await _measured(line, contenders, pace)
                whole = whole and all(figures.values())
                answers.append(_print(line, contenders, figures))
    print(f"Answer: {'; '.join(answers)}.", flush=True)

    return whole


async def _measured(line: Line, contenders: list[Contender], pace: works.Pace) -> dict[str, list[works.Figures]]:
    """Do a work with every peer in every round; a peer that fails has no figures."""
    figures: dict[str, list[works.Figures]] = {contender.kind.module: [] for contender in contenders}
    failed: set[str] = set()
    for number in range(pace.rounds):
        turned = contenders[number % len(contenders) :] + contenders[: number % len(contenders)]
        for contender in turned:
            module = contender.kind.module
            if module in failed or (line.asked == "bulk" and not contender.kind.bulk):
                continue
            try:
                if line.processes and line.processes not in contender.best:
                    await works.find_best(contender, line.processes, pace)
                figures[module].append(await line.work(contender, pace))
            except* RuntimeError as group:
                print(f"{line.name}: {contender.kind.name} failed: {group.exceptions[0]}", flush=True)
                failed.add(module)
                figures[module] = []

    return {
        module: found
        for module, found in figures.items()
        if found or module in failed
    }


def _print(line: Line, contenders: list[Contender], figures: dict[str, list[works.Figures]]) -> str:
    print(f"\nload of the machine over the last minute: {os.getloadavg()[0]:.1f}")
    measured = {module: [one.figure for one in found] for module, found in figures.items() if found}
    ours = measured.get("ours", [])
    rows = []
    for contender in contenders:
        kind = contender.kind
        found = measured.get(kind.module)
        if not found:
            rows.append((kind.name, "failed" if kind.module in figures else "no such call", "", "", ""))
            continue
        ratio = f"{median(our / their for our, their in zip(ours, found, strict=True)):.2f}" if ours else ""
        digits = 2 if line.asked == "latency" else 0
        spread = f"{min(found):,.{digits}f} to {max(found):,.{digits}f}"
        rows.append(
            (
                kind.name,
                f"{median(found):,.{digits}f}",
                spread,
                figures[kind.module][-1].beside,
                "" if kind.role == "ours" else ratio,
            )
        )
    table((line.name, line.unit, "range", "last round", "aiopgq's ratio"), rows)
    said = verdict(line.wanted, {PEERS[module]: found for module, found in measured.items()})
    print(said, flush=True)

    return f"{line.name} {said}"


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
    parser.add_argument("--quick", action="store_true", help="one tiny round: shows that it runs, measures nothing")
    chosen = parser.parse_args()
    only = _chosen(f"ours,{chosen.only}" if chosen.only else None, tuple(PEERS), parser)
    asked = _chosen(chosen.work, NAMES, parser)
    if not uvloop.run(main(only, asked, chosen.dsn, works.QUICK if chosen.quick else works.FULL)):
        raise SystemExit(1)
