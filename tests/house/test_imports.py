"""`import aiopgq` is small and without effect: it brings no extra, starts nothing, configures nothing."""

import subprocess
import sys

EXTRAS = [
    "aio_pika",
    "aiohttp",
    "click",
    "fastapi",
    "nats",
    "pydantic",
    "pytest",
    "rich",
    "sqlalchemy",
    "starlette",
    "uvloop",
]


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout  # fmt: skip


def test_importing_brings_no_extra_and_no_face():
    faces = ["aiopgq.cli", "aiopgq.testing", "aiopgq.contrib"]
    program = f"import sys, aiopgq; print([name for name in {EXTRAS + faces} if name in sys.modules])"

    assert run(program) == "[]\n"


def test_importing_starts_no_thread_makes_no_loop_and_leaves_logging_alone():
    program = (
        "import logging, signal, threading, asyncio\n"
        "signals = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "import aiopgq\n"
        "print(threading.active_count(), logging.getLogger().handlers, logging.getLogger('aiopgq').handlers)\n"
        "print(signals == [signal.getsignal(number) for number in signal.valid_signals()])\n"
        "print(asyncio._get_running_loop())\n"
    )

    assert run(program) == "1 [] []\nTrue\nNone\n"


def test_without_any_extra_a_task_is_declared_and_called():
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
        "from dataclasses import dataclass\n"
        "from aiopgq import App\n"
        "@dataclass\n"
        "class Parcel:\n"
        "    weight: float\n"
        "jobs = App('postgresql://nowhere')\n"
        "@jobs.task(name='ship')\n"
        "async def ship(parcel: Parcel) -> None: ...\n"
        "print(type(ship.call(Parcel(1.5))).__name__)\n"
    )

    assert run(program) == "Call\n"
