"""What handlers in processes of their own leave behind: a row for each run, written over a connection of its own."""

import asyncio
import itertools
from collections import Counter, defaultdict

import asyncpg

__all__ = ["PROGRAM", "Effects"]

TABLE = """
    CREATE TABLE IF NOT EXISTS public.effects (
        id bigint GENERATED ALWAYS AS IDENTITY, key uuid PRIMARY KEY, job uuid, claim uuid, attempt int, pid int,
        began timestamptz DEFAULT clock_timestamp(), ended timestamptz)"""

PROGRAM = """
import asyncio, contextlib, os, signal, time, uuid
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
        "INSERT INTO public.effects (key, job, claim, attempt, pid) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        key, run.id, run.job.claim_id, run.attempt, os.getpid())
    try:
        yield run
    finally:
        await write("UPDATE public.effects SET ended = clock_timestamp() WHERE key = $1 AND ended IS NULL", key)

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
        time.sleep(seconds)

@jobs.task
def thread(seconds: float) -> None:
    if current_job().attempt == 1:
        open("threaded", "w").close()
        time.sleep(seconds)
"""


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
