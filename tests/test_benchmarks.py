"""The benchmarks run: a tiny round of each. What they measure is not looked at here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import require

from benchmarks.scaling import Law, fit

ROOT = Path(__file__).parents[1]


def _run(*options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_a_part_of_a_benchmark_can_be_run_alone(aiopgq_dsn):
    done = _run("flat:delayed", "--quick", "--dsn", aiopgq_dsn)

    assert done.returncode == 0, done.stderr
    assert "for later" in done.stdout
    assert "archived" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    ["drain", "enqueue", "latency", "idle", "limits", "scaling", "sizing", "wake", "writes", "flat", "outbox", "soak"],
)
def test_a_benchmark_asks_measures_and_answers_with_a_ratio(program, aiopgq_dsn):
    if program == "outbox":
        require("nats-server")
    done = _run(program, "--quick", "--dsn", aiopgq_dsn)

    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{program}: how .*\?$|^{program}: what .*\?$", done.stdout, re.MULTILINE)
    assert re.search(r"^Answer: .*\bratio \d+\.\d\d\b", done.stdout, re.MULTILINE)


def test_a_benchmark_that_does_not_exist_is_refused_by_name():
    done = _run("dream")

    assert done.returncode == 2
    assert "'dream'" in done.stderr
    assert "drain, enqueue, latency, idle, limits, scaling, sizing, wake, writes, flat, outbox, soak" in done.stderr


def test_the_law_of_scaling_is_found_in_figures_that_obey_it():
    law = Law(first=20_000, contention=0.1, coherence=0.02)

    found = fit({n: law.rate(n) for n in (1, 2, 3, 4, 6, 8)})

    assert found == pytest.approx(law)
    assert found.peak == pytest.approx(45**0.5)
    assert max(range(1, 20), key=found.rate) == 7
