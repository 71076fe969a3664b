"""The comparison with other queues: its harness, run with ours and the floor alone. The peers need a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.environments import Unavailable, environment
from benchmarks.peers.programs import PEERS, invited
from benchmarks.peers.verdict import Verdict, Wanted, verdict
from benchmarks.peers.works import checked
from benchmarks.server import running_server

ROOT = Path(__file__).parents[1]
OURS, FLOOR, REDIS, OTHER = (PEERS[name] for name in ("ours", "floor", "arq", "oban"))


def _run(*options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_every_work_is_done_with_ours_and_the_floor(aiopgq_dsn):
    done = _run("--quick", "--only", "floor", "--dsn", aiopgq_dsn)

    assert done.returncode == 0, done.stderr
    assert re.search(r"^peers: how .*\?$", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^aiopgq +[\d.,]+ ", done.stdout, re.MULTILINE)) == 6
    assert len(re.findall(r"^raw asyncpg +[\d.,]+ .* \d+\.\d\d$", done.stdout, re.MULTILINE)) == 6
    # A floor is no peer: there is nothing to hold against.
    assert re.search(r"^Answer: 0 of 0 comparisons", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("options", [["--only", "celery"], ["--work", "celery"]])
def test_what_is_not_known_is_refused_by_name(options):
    done = _run(*options)

    assert done.returncode == 2
    assert "'celery'" in done.stderr


def test_ours_must_reach_the_best_peer_times_the_bound_and_the_floor_is_no_peer():
    measured = {
        OURS: [300.0, 200.0, 400.0],
        OTHER: [100.0, 100.0, 100.0],
        REDIS: [150.0, 150.0, 150.0],
        FLOOR: [9e9] * 3,
    }

    assert verdict(Wanted(2.0), measured) == Verdict("arq (Redis)", 2.0, holds=True)
    assert verdict(Wanted(2.01), measured) == Verdict("arq (Redis)", 2.0, holds=False)
    assert verdict(Wanted(2.01, postgres_only=True), measured) == Verdict("oban", 3.0, holds=True)


def test_a_time_must_stay_below_that_of_the_fastest_peer():
    measured = {OURS: [2.0], OTHER: [4.0], REDIS: [1.0]}

    assert verdict(Wanted(0.5, is_time=True), measured) == Verdict("arq (Redis)", 2.0, holds=False)
    assert verdict(Wanted(0.5, is_time=True, postgres_only=True), measured) == Verdict("oban", 0.5, holds=True)


def test_without_a_peer_there_is_no_verdict():
    assert verdict(Wanted(2.0), {OURS: [1.0], FLOOR: [1.0]}) is None
    assert verdict(Wanted(2.0), {OTHER: [1.0]}) is None


def test_a_figure_with_a_job_missing_is_refused():
    checked("aiopgq", 300, 300)
    checked("arq", 300, None)
    with pytest.raises(RuntimeError, match="of 300 jobs the database knows 299"):
        checked("aiopgq", 300, 299)


async def test_a_peer_that_fails_is_reported_with_its_words(aiopgq_dsn):
    async with (
        running_server(aiopgq_dsn) as server,
        invited(["ours"], server) as [ours],
        ours.database() as dsn,
        ours.programs(dsn, 1) as [program],
    ):
        with pytest.raises(RuntimeError, match="aiopgq: AppNotOpen"):
            await program.ask("enqueue", callers=1, size=1, seconds=0.1)


async def test_a_peer_without_a_python_new_enough_is_left_out_with_the_reason():
    with pytest.raises(Unavailable, match=r"it needs Python 9\.0"):
        await environment("oban", (9, 0))


@pytest.mark.parametrize("kind", [kind for kind in PEERS.values() if kind.role == "peer"], ids=lambda kind: kind.name)
def test_every_requirement_of_a_peer_is_pinned_without_an_address(kind):
    requirements = (ROOT / "benchmarks" / "peers" / "requirements" / f"{kind.module}.txt").read_text().splitlines()

    assert len(requirements) > 3
    assert [line for line in requirements if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
