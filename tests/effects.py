"""What handlers in processes of their own leave behind: a row for each run, written over a connection of its own."""

import asyncio
import itertools
from collections import Counter, defaultdict
from pathlib import Path

import asyncpg

__all__ = ["FAKE_CLOCK", "PROGRAM", "Effects", "wrong_clock"]

# What makes the clock of a process wrong; None where it is not installed.
FAKE_CLOCK = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)

TABLE = """
    CREATE TABLE IF NOT EXISTS public.effects (
        id bigint GENERATED ALWAYS AS IDENTITY, key uuid PRIMARY KEY, job uuid, claim uuid, attempt int, pid int,
        host_clock double precision, began timestamptz DEFAULT clock_timestamp(), ended timestamptz);
    CREATE TABLE IF NOT EXISTS public.ledger (job uuid, claim uuid)"""

PROGRAM = """
import asyncio, contextlib, os, select, signal, time, uuid
import asyncpg
from aiopgq import App, Backoff, current_job

class ShortLived(App):
    def worker(self, *args, **options):
        set_by_test = {name: float(os.environ[name]) for name in ("lease", "hang_limit") if name in os.environ}
        return super().worker(*args, **options, **set_by_test)

jobs = ShortLived()
EFFECTS = os.environ["EFFECTS"]
AT_ONCE = Backoff(base=0)

async def write(sql, *args):
    # The server may be away; what is written twice is there once.
    while True:
        try:
            connection = await asyncpg.connect(EFFECTS)
            try:
                return await connection.execute(sql, *args)
            finally:
                connection.terminate()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.1)

@contextlib.asynccontextmanager
async def effect():
    run, key = current_job(), uuid.uuid4()
    await write(
        "INSERT INTO public.effects (key, job, claim, attempt, pid, host_clock) VALUES ($1, $2, $3, $4, $5, $6) "
        "ON CONFLICT DO NOTHING", key, run.id, run.job.claim_id, run.attempt, os.getpid(), time.time())
    try:
        yield run
    finally:
        await write("UPDATE public.effects SET ended = clock_timestamp() WHERE key = $1 AND ended IS NULL", key)

def stand(seconds):
    # time.sleep() waits for a moment, which a clock made wrong lets it miss.
    select.select([], [], [], seconds)

@jobs.task
async def first_run_stays(seconds: float) -> int:
    async with effect() as run:
        if run.attempt == 1:
            await asyncio.sleep(seconds)
    return os.getpid()

@jobs.task
async def quick() -> int:
    async with effect():
        return os.getpid()

@jobs.task(backoff=AT_ONCE)
async def work(seconds: float, fails: int = 0) -> None:
    async with effect() as run:
        await asyncio.sleep(seconds)
        if run.attempt <= fails:
            raise ValueError

@jobs.task
async def die(how: str, times: int = 1) -> None:
    async with effect() as run:
        if run.attempt <= times:
            if how == "killed":
                await asyncio.sleep(300)
            elif how == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            else:
                os._exit(int(how))

@jobs.task
async def block(seconds: float) -> None:
    async with effect():
        stand(seconds)

@jobs.task
def thread(seconds: float) -> None:
    if current_job().attempt == 1:
        open("threaded", "w").close()
        time.sleep(seconds)

@jobs.task(backoff=AT_ONCE)
def work_in_a_thread(seconds: float, fails: int = 0) -> None:
    async def work() -> None:
        async with effect() as run:
            stand(seconds)
            if run.attempt <= fails:
                raise ValueError

    # A loop of its own: that of the worker may be blocked.
    asyncio.run(work())

@jobs.task(transactional=True, backoff=AT_ONCE)
async def transfer(seconds: float, how: str) -> None:
    async with effect() as run:
        await run.connection.execute("INSERT INTO public.ledger VALUES ($1, $2)", run.id, run.job.claim_id)
        await asyncio.sleep(seconds)
        if run.attempt == 1 and how == "fails":
            raise ValueError
        if run.attempt == 1 and how == "dies":
            os._exit(5)

@jobs.task(backoff=Backoff(base=2, factor=1, jitter=0))
async def come_back(fails: int) -> None:
    async with effect() as run:
        if run.attempt <= fails:
            raise ValueError
"""


def wrong_clock(file, hours):
    """Return an environment whose clock is wrong by so many hours, as long as the file, then written, does not change.

    The monotonic clock stays right, as on a host whose time was set by hand.
    """
    file.write_text(f"{hours:+d}h")
    return {
        "LD_PRELOAD": str(FAKE_CLOCK),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class Effects:
    """The runs that handlers wrote down."""

    def __init__(self, connection):
        self._connection = connection
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, dsn):
        effects = cls(await asyncpg.connect(dsn))
        await effects._connection.execute(TABLE)
        return effects

    async def close(self):
        await self._connection.close()

    async def runs(self):
        """Return all runs, in the order in which they began."""
        async with self._turn:
            return await self._connection.fetch("SELECT * FROM public.effects ORDER BY id")

    async def begun(self, count):
        """Tell whether so many runs have begun."""
        return len(await self.runs()) >= count

    async def ledger(self):
        """Return how often each job wrote, in a transaction of its own that was committed."""
        async with self._turn:
            return Counter(row["job"] for row in await self._connection.fetch("SELECT job FROM public.ledger"))

    async def attempts(self):
        """Return how many runs each job had."""
        return Counter(run["job"] for run in await self.runs())

    async def twice(self):
        """Return claims that began a job more than once; there must be none."""
        begun = Counter((run["job"], run["claim"]) for run in await self.runs())
        return [claim for claim, times in begun.items() if times > 1]

    async def overlaps(self):
        """Return pairs of runs of one job of which the second began before the first, in a living process, ended."""
        by_job = defaultdict(list)
        for run in await self.runs():
            by_job[run["job"]].append(run)
        pairs = itertools.chain.from_iterable(itertools.pairwise(runs) for runs in by_job.values())
        # A run without an end died with its process.
        return [(one, other) for one, other in pairs if one["ended"] is not None and other["began"] < one["ended"]]
