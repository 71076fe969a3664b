"""`python -m aiopgq demo`: what it shows is what the database holds, and nothing is left of it."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import asyncpg
import pytest

from aiopgq import App

OURS = re.compile(r"AIOPGQ_|PG|DATABASE_URL")
COLUMNS = ("pending", "running", "completed", "retried", "dead", "cancelled")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WITHOUT_PROGRAMS = """
import sys
import aiopgq.embedded.binaries
from aiopgq.cli import main
aiopgq.embedded.binaries._candidates = lambda: iter(())
sys.argv = ["aiopgq", "demo"]
main()
"""


class Demo:
    """A demo under way: in an empty folder, with a folder for temporary files of its own."""

    def __init__(self, *args, program=("-m", "aiopgq", "demo"), stdout=subprocess.PIPE):
        # Short, so that the socket lies inside.
        self.temporary = Path(tempfile.mkdtemp(prefix="demo-"))
        self.folder = self.temporary / "here"
        self.folder.mkdir()
        env = {name: value for name, value in os.environ.items() if not OURS.match(name)}
        self.process = subprocess.Popen(
            [sys.executable, *program, *args],
            cwd=self.folder,
            env=env | {"TMPDIR": str(self.temporary), "TERM": "xterm-256color"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""
        self.code = None

    def line(self, beginning):
        """Read until a line that has it."""
        for line in self.process.stdout:
            self.out += line
            if beginning in line:
                return
        raise AssertionError(f"no line with {beginning!r}: {self.out}{self.process.stderr.read()}")

    def end(self):
        """Read the rest and return the exit code."""
        out, self.err = self.process.communicate(timeout=60)
        self.out += out or ""
        self.code = self.process.returncode
        return self.code

    def interrupt(self, number):
        self.process.send_signal(number)
        return self.end()

    def left(self):
        """What is left of it: files, and processes that work in its folder or are named after it."""
        files = [path for path in self.temporary.iterdir() if path != self.folder]
        return files, list(self._processes())

    def _processes(self):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                where = str((process / "cwd").readlink())
                if str(self.temporary) in where + (process / "cmdline").read_text():
                    yield process.name

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def table(self):
        """The last table, by task."""
        rows = re.findall(r"^(\w+)" + r" +(\d+)" * len(COLUMNS) + "$", self.out, re.MULTILINE)
        return {task: dict(zip(COLUMNS, map(int, numbers), strict=True)) for task, *numbers in rows}


@pytest.fixture
def demo():
    """Starts demos, and clears up after them."""
    started = []

    def start(*args, **options):
        started.append(Demo(*args, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(scope="module")
def runs():
    """Three demos that run to their ends, at the same time since they mostly sleep."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    runs = {"ended": Demo(), "kept": Demo("--keep", "shop"), "live": Demo(stdout=its)}
    os.close(its)
    runs["live"].out = _read(ours)
    for one in runs.values():
        one.end()
    yield runs
    for one in runs.values():
        one.close()


@pytest.fixture
def ended(runs):
    """A demo that has run to its end, without a terminal."""
    return runs["ended"]


@pytest.fixture
def kept(runs):
    """A demo that has run to its end and kept its database in `here/shop`."""
    return runs["kept"]


@pytest.fixture
def live(runs):
    """A demo that has run to its end on a terminal of 100 by 30."""
    return runs["live"]


def _read(terminal):
    """Read what is written to a terminal, to the end."""
    seen = b""
    with contextlib.suppress(OSError):  # what Linux says at the end
        while more := os.read(terminal, 65536):
            seen += more
    os.close(terminal)
    return seen.decode()


def test_it_succeeds_and_says_nothing_on_standard_error(ended):
    assert (ended.code, ended.err) == (0, "")


def test_it_shows_a_dead_letter_that_is_replayed_and_completes(ended):
    assert "dead letter: charge_card after 3 of 3 attempts, ConnectionError: the payment gateway is down" in ended.out
    assert "replayed 1 of 2 dead letters" in ended.out
    assert "ok  A dead letter (ConnectionError: the payment gateway is down) was replayed: completed." in ended.out
    assert ended.table["charge_card"] == dict(zip(COLUMNS, (0, 0, 1, 3, 1, 0), strict=True))


def test_it_shows_that_the_job_of_a_rolled_back_transaction_never_ran(ended):
    assert "ok  Order 1 was committed and its job completed; order 2 was rolled back: its job never ran." in ended.out
    assert ended.table["ship_order"]["completed"] == 1


def test_it_tells_of_every_kind_of_job(ended):
    found = ended.table
    assert found["ping"]["completed"] == 20
    assert (found["fetch_page"]["completed"], found["fetch_page"]["retried"]) == (24, 36)
    assert (found["remind"]["completed"], found["remind"]["cancelled"]) == (8, 1)
    assert {found[task]["completed"] for task in ("encode_video", "thumbnail", "restock")} == {4, 12, 1}
    assert found["no_op"]["completed"] == 300
    assert re.search(r"ok  restock snoozed and completed after \d+\.\d s, in attempt 1; 12 thumbnails", ended.out)
    assert re.search(r"ok  An idle worker began a job \d+\.\d ms after enqueue\(\) was called \(p50 of 20; ", ended.out)


def test_its_totals_are_the_sums_of_its_rows_and_nothing_is_pending(ended):
    found = ended.table
    total = found.pop("all")
    assert total == {column: sum(row[column] for row in found.values()) for column in COLUMNS}
    assert (total["pending"], total["running"]) == (0, 0)
    jobs = total["completed"] + total["dead"] + total["cancelled"]
    assert f"ok  {jobs} jobs in " in ended.out
    assert f"{total['completed']} completed, 1 cancelled, 1 dead letter left, none lost." in ended.out


def test_it_tells_how_far_things_are_while_they_run(ended):
    moments = [
        (float(seconds), int(completed))
        for seconds, completed in re.findall(r"^ *(\d+\.\d) s  \d+ pending .* (\d+) completed", ended.out, re.MULTILINE)
    ]
    assert len(moments) >= 4
    assert moments == sorted(moments)
    assert re.search(r"videos( [1-9]\d? %| 0 %| 100 %){4}$", ended.out, re.MULTILINE)


def test_without_a_terminal_there_are_no_control_characters(ended):
    assert "\x1b" not in ended.out
    assert "\r" not in ended.out


def test_afterwards_its_folder_and_its_server_are_gone(ended):
    assert ended.left() == ([], [])


def test_it_advises_to_keep_the_database(ended):
    assert "python -m aiopgq demo --keep ./shop" in ended.out


async def test_what_it_shows_is_what_the_kept_database_holds(kept):
    assert (kept.code, kept.err) == (0, "")
    async with App(f"embedded:{kept.folder / 'shop'}") as jobs:
        found = await jobs.inspector.jobs(limit=10_000)
        dead = [await jobs.inspector.job(job_id) for job_id in await jobs.inspector.dead()]
    shown = kept.table
    total = shown.pop("all")
    assert sum(row["completed"] for row in shown.values()) == total["completed"]
    for task, row in shown.items():
        statuses = [job.status for job in found if job.task == task]
        assert statuses.count("completed") == row["completed"], task
        assert statuses.count("failed") == row["dead"], task
        assert statuses.count("cancelled") == row["cancelled"], task
    assert [letter.last_error for letter in dead] == ["the card of eve is reported stolen"]
    [charged] = [job for job in found if job.task == "charge_card" and job.status == "completed"]
    assert len(charged.errors) == 3


def test_a_kept_folder_holds_the_log_and_the_screen_says_where(kept):
    folder = kept.folder / "shop"
    assert f"export AIOPGQ_DSN=embedded:{folder}" in kept.out
    assert f"less {folder / 'demo.log'}" in kept.out
    assert "the payment gateway is down" in (folder / "demo.log").read_text()
    assert "Traceback" not in kept.out


def test_a_folder_with_something_in_it_is_left_alone(kept, demo):
    again = demo("--keep", str(kept.folder / "shop"))
    assert again.end() == 2
    assert "takes a new or an empty folder" in again.err
    assert (kept.folder / "shop" / "data" / "PG_VERSION").exists()


@pytest.mark.parametrize(
    ("moment", "number"), [("Starting a PostgreSQL", signal.SIGTERM), ("enqueue_many wrote", signal.SIGINT)]
)
def test_a_signal_ends_it_at_once_and_leaves_nothing(demo, moment, number):
    one = demo()
    one.line(moment)
    assert one.interrupt(number) == 128 + number
    assert one.err == "\nStopped; nothing is left running.\n"
    assert "\nok " not in one.out
    assert one.left() == ([], [])


@pytest.mark.slow
async def test_on_a_server_of_yours_it_has_a_schema_of_its_own_and_drops_it(demo, empty_dsn):
    one = demo("--dsn", empty_dsn)
    await asyncio.to_thread(one.line, "enqueue_many wrote")
    connection = await asyncpg.connect(empty_dsn)
    jobs = await connection.fetchval("SELECT count(*) FROM aiopgq_demo.jobs")
    assert await asyncio.to_thread(one.end) == 0, one.err
    schemas = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%aiopgq%'")
    await connection.close()
    assert jobs > 0
    assert schemas == []
    assert "was replayed: completed." in one.out
    assert one.left() == ([], [])


async def test_a_signal_drops_the_schema_as_well(demo, empty_dsn):
    one = demo("--dsn", empty_dsn)
    await asyncio.to_thread(one.line, "enqueue_many wrote")
    assert await asyncio.to_thread(one.interrupt, signal.SIGINT) == 130
    connection = await asyncpg.connect(empty_dsn)
    schemas = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%aiopgq%'")
    await connection.close()
    assert schemas == []


async def test_a_schema_of_that_name_that_is_there_already_is_left_alone(demo, empty_dsn):
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("CREATE SCHEMA aiopgq_demo; CREATE TABLE aiopgq_demo.precious (id integer)")
    one = demo("--dsn", empty_dsn)
    assert await asyncio.to_thread(one.end) == 2
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'aiopgq_demo'")
    await connection.close()
    assert [row[0] for row in tables] == ["precious"]
    assert 'the schema "aiopgq_demo" is there already' in one.err


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("--dsn", "postgresql://nobody@127.0.0.1:1/none"), 4, "cannot be reached"),
        (("--dsn", "embedded:./data"), 2, "--keep"),
        (("--dsn", "postgresql://localhost/none", "--keep", "shop"), 2, "with --dsn there is none"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(demo, args, code, reason):
    one = demo(*args)
    assert one.end() == code
    assert reason in one.err
    assert "Traceback" not in one.err
    assert one.left() == ([], [])


def test_without_programs_of_postgresql_one_line_says_how_to_get_them(demo):
    one = demo(program=("-c", WITHOUT_PROGRAMS))
    assert one.end() == 2
    assert one.err.count("\n") == 1
    assert "pip install 'aiopgq[embedded]'" in one.err
    assert "--dsn" in one.err
    assert one.left() == ([], [])


def test_on_a_terminal_it_is_a_live_table(live):
    # However wide the terminal is, and so wherever its lines end.
    text = " ".join(CONTROL.sub("", live.out).split())
    assert (live.code, live.err) == (0, "")
    assert len(re.findall("aiopgq demo: a worker with 20 slots", text)) > 10
    assert "encode_video credits" in text
    assert re.search(r"wake-up p50 \d+\.\d ms [▁▂▃▄▅▆▇█]{20} of 20", text)
    assert "✓ Order 1 was committed and its job completed; order 2 was rolled back: its job never ran." in text
    # The cursor is back.
    assert live.out.rindex("\x1b[?25h") > live.out.rindex("\x1b[?25l")
    assert live.left() == ([], [])
