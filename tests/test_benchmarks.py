"""The benchmarks run: a tiny round of each. What they measure is not looked at here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
@pytest.mark.parametrize("program", ["drain", "enqueue", "latency", "idle"])
def test_a_benchmark_asks_measures_and_answers_with_a_ratio(program, aiopgq_dsn):
    done = _run(program, "--quick", "--dsn", aiopgq_dsn)

    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{program}: how .*\?$|^{program}: what .*\?$", done.stdout, re.MULTILINE)
    assert re.search(r"^Answer: .*\bratio \d+\.\d\d\b", done.stdout, re.MULTILINE)


def test_a_benchmark_that_does_not_exist_is_refused_by_name():
    done = _run("dream")

    assert done.returncode == 2
    assert "'dream'" in done.stderr
    assert "drain, enqueue, latency, idle" in done.stderr
