"""What ships: the wheel, built from the sdist, works in an empty environment and an empty folder."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import BytesParser
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOREIGN = ("AIOPGQ_", "COVERAGE_", "PG", "PYTHON", "DATABASE_URL", "VIRTUAL_ENV")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command, folder):
    """Run a program as a stranger would, with nothing of ours in its environment; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A folder that holds the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("shipped")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(shipped):
    """The path of the wheel, the only one."""
    [wheel] = shipped.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def content(wheel):
    """The files of the wheel: bytes by name."""
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment that holds the wheel, its extras for the demo, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[embedded,rich]", folder=folder)
    return python


def below(folder, prefix=""):
    """Return the files below a folder of the checkout: bytes by name."""
    return {
        prefix + file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_the_migrations_byte_for_byte(content):
    migrations = {name: text for name, text in content.items() if name.startswith("aiopgq/migrations/")}

    assert migrations == below(ROOT / "migrations", "aiopgq/migrations/")


def test_the_wheel_holds_the_package_and_nothing_beside_it(content):
    package = {name: text for name, text in content.items() if not name.startswith("aiopgq/migrations/")}
    beside = {name for name in package if not name.startswith("aiopgq/")}

    assert "aiopgq/py.typed" in package
    assert {name: package[name] for name in package.keys() - beside} == below(ROOT / "aiopgq", "aiopgq/")
    assert {name.split("/")[0] for name in beside} == {f"aiopgq-{version('aiopgq')}.dist-info"}


def test_the_wheel_tells_what_it_is(content):
    folder = f"aiopgq-{version('aiopgq')}.dist-info"
    metadata = content[f"{folder}/METADATA"]
    facts = BytesParser().parsebytes(metadata)

    assert facts["Name"] == "aiopgq"
    assert facts["Requires-Python"] == ">=3.11"
    assert facts["License-Expression"] == "MIT"
    assert metadata.partition(b"\n\n")[2] == (ROOT / "README.md").read_bytes()
    assert content[f"{folder}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"aiopgq = aiopgq.cli:main" in content[f"{folder}/entry_points.txt"]


def test_the_sdist_holds_the_tests_and_no_traces_of_work(shipped):
    [sdist] = shipped.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}

    assert {"tests/packaging/test_wheel.py", "migrations/0001_create_jobs.sql", "Makefile"} <= names
    assert {name for name in names if name.startswith((".venv", ".ci", ".mypy", ".ruff", ".hypothesis"))} == set()
    assert {name for name in names if "__pycache__" in name} == set()


def test_the_installed_wheel_tells_its_version(python, tmp_path):
    assert version("aiopgq") in run(python, "-m", "aiopgq", "version", folder=tmp_path)
    assert version("aiopgq") in run(python.parent / "aiopgq", "version", folder=tmp_path)


def test_the_installed_wheel_finds_its_own_migrations(python, tmp_path):
    script = run(python, "-m", "aiopgq", "migrate", "--sql", "--after", "0", folder=tmp_path)

    missing = [name for name, text in below(ROOT / "migrations").items() if text.decode().strip() not in script]
    assert missing == []


def test_the_installed_wheel_runs_the_demo_in_an_empty_folder(python, tmp_path):
    told = run(python, "-m", "aiopgq", "demo", folder=tmp_path)

    assert "completed" in told
    assert "dead" in told
