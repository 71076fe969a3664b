"""The App: where tasks are known, and what user code touches."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Generic
from uuid import UUID

from aiopgq._store.connection import ConnectFactory
from aiopgq._store.dsn import normal
from aiopgq._store.jobs import Jobs, Outstanding
from aiopgq._store.schema import Migration, migrate
from aiopgq._store.statements import DEFAULT_SCHEMA, check_schema_name
from aiopgq._words import options, slots
from aiopgq._words.current import Around
from aiopgq._words.pending import MaxPending, bounds
from aiopgq._words.progress import Progress
from aiopgq.call import Call
from aiopgq.control import Control
from aiopgq.equipment import Equipment, Parentage
from aiopgq.handle import JobHandle
from aiopgq.inbox import DEFAULT_WINDOW
from aiopgq.middleware import Chain, Middleware
from aiopgq.opened import DatabaseSettings, Opened, Openings
from aiopgq.outbox.face import WithOutbox
from aiopgq.producer import Producer
from aiopgq.registry import Registry
from aiopgq.state import State, StateHolder
from aiopgq.task import EnqueueHome
from aiopgq.worker import Drained, Worker, drain

__all__ = ["App"]

_DAY: Final = 86_400.0
_BEAT_INTERVAL: Final = 5.0
_MIB: Final = 1024 * 1024
_FASTEST_POLL: Final = 0.01
_MOST_STATEMENTS: Final = 100_000


class App(Registry, Control, WithOutbox, Generic[State]):
    """A job queue in PostgreSQL: declare tasks on it, enqueue calls, make workers.

    Nothing happens at construction: settings are read and connections made by `async with jobs:`.

    Args:
        dsn: `postgresql://user:password@host/database`, or `embedded:./data` for a PostgreSQL of its own.
            Default: AIOPGQ_DSN, DATABASE_URL, or the PG* variables.
        schema: Where the tables are. Default: AIOPGQ_SCHEMA or `aiopgq`.
        imports: Modules that declare tasks on it; imported by workers, the CLI and the testing kit, so that
            the module of the App itself imports nothing of yours.
        middleware: What goes around each enqueue and each run, the outermost first; see `aiopgq.middleware`.
        state: An async context manager without parameters; a worker process enters it once before its first
            claim, and what it yields is `jobs.state` in tasks.
        queue: The queue of tasks that name none.
        retention: Seconds (or a timedelta) finished jobs and their results are kept; 0 keeps nothing.
            Default 7 days.
        inbox_window: Seconds (or a timedelta) the inbox knows a message; one delivered again after that is taken
            for a new one. Default 7 days.
        listen_dsn: Where to LISTEN, if `dsn` leads through a pooler. Default: AIOPGQ_LISTEN_DSN or `dsn`.
        connect: Makes an asyncpg connection instead of a DSN, for tokens and connectors.
        statement_cache_size: Prepared statements kept per connection. Default:
            AIOPGQ_STATEMENT_CACHE_SIZE or 100; 0 behind PgBouncer before 1.21.
        max_args_bytes: The largest arguments of one job, encoded. Default 1 MiB: a row is no place for files.
        max_result_bytes: The largest result kept, encoded. Default 1 MiB.
        max_pending: The most ready jobs of queues that may not grow without end, a number or a MaxPending each.

    Example:
        >>> jobs = App("embedded:./data")
        >>> @jobs.task
        ... async def greet(name: str) -> str:
        ...     return f"hello {name}"
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        imports: Iterable[str] = (),
        middleware: Iterable[Middleware] = (),
        state: Callable[[], AbstractAsyncContextManager[State]] | None = None,
        queue: str = options.DEFAULT_QUEUE,
        retention: float | timedelta = 7 * _DAY,
        inbox_window: float | timedelta = DEFAULT_WINDOW,
        listen_dsn: str | None = None,
        connect: ConnectFactory | None = None,
        statement_cache_size: int | None = None,
        max_args_bytes: int = _MIB,
        max_result_bytes: int = _MIB,
        max_pending: Mapping[str, int | MaxPending] | None = None,
    ) -> None:
        super().__init__(queue=queue, imports=imports)
        self._dsn = None if dsn is None else normal(dsn)
        self._schema = None if schema is None else check_schema_name(schema)
        self._chain = Chain(middleware)
        self._state = StateHolder(state)
        self._retention = options.seconds("retention", retention)
        self._inbox_window = options.seconds("inbox_window", inbox_window)
        self._listen_dsn = None if listen_dsn is None else normal(listen_dsn, "listen_dsn")
        self._connect = connect
        if statement_cache_size is not None:
            options.number("statement_cache_size", statement_cache_size, 0, _MOST_STATEMENTS)
        self._statement_cache_size = statement_cache_size
        self._max_args_bytes = options.count("max_args_bytes", max_args_bytes)
        self._max_result_bytes = options.count("max_result_bytes", max_result_bytes)
        self._producer = Producer(self, bounds(max_pending or {}), self._chain)
        self._openings = Openings()

    # enqueue

    async def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Enqueue calls made by `task.call(…)`, all or none, in one transaction.

        Many are enqueued fastest from a generator: beyond 250 calls it is read part by part, while PostgreSQL writes
        the part before and other coroutines run. What it raises, undoes them all; cancelling leaves all or none.

        Args:
            calls: The calls, of any tasks.
            connection: An asyncpg Connection or a SQLAlchemy AsyncSession or AsyncConnection: the rows are
                inserted in its transaction. Default: the connection the calls were made with, if it is one.

        Raises:
            UsageError: The calls were made with different connections, belong to another App, or debounce without
                a delay.
            AppNotOpen: No connection was given and the App is not open.
            RowRefused: PostgreSQL cannot store one of them.
            UniqueKeyHeld: Another transaction has written one of their unique keys, and does not end.
            QueueFull: A queue has as many ready jobs as `max_pending` allows.
            StoreUnavailable: PostgreSQL did not answer for ten seconds.
            EnqueueUnknown: The answer to the commit was lost, and finished jobs are not kept.
            TypeError: Something is not a call, or connection is of no kind we know.
        """
        return await self._producer.many(calls, connection)

    async def enqueue_one(self, call: Call[Any]) -> JobHandle[Any]:
        """Enqueue one call; `task.enqueue(…)` is the typed way to say it."""
        return await self._producer.one(call)

    def handle(self, job_id: UUID) -> JobHandle[Any]:
        """Make a handle on any job from its id."""
        return JobHandle(self, options.identity("handle(…)", job_id), None)

    # run

    def worker(
        self,
        queues: Mapping[str, int | None] | Iterable[str] | None = None,
        *,
        concurrency: int = 10,
        name: str | None = None,
        burst: bool = False,
        poll_interval: float | timedelta = 5.0,
        shutdown_grace: float | timedelta = 30.0,
        job_log: bool = True,
        lease: float | timedelta = 60.0,
        hang_limit: float | timedelta = 300.0,
        parent: Parentage | None = None,
    ) -> Worker:
        """Make a worker for this process.

        Args:
            queues: The queues to serve; a number gives a queue slots of its own (`{"mail": 20}`), without
                one it shares `concurrency`. Default: all queues of the tasks known.
            concurrency: How many jobs the sharing queues run at once. Default 10.
            name: How it is called in logs and in the errors of jobs. Default: the host's name.
            burst: End when nothing is due, instead of waiting for more.
            poll_interval: Seconds between looks while asleep: the net below the notifications. Default 5;
                less than 0.01 is taken as that.
            shutdown_grace: Seconds running jobs may take to finish at the end. Default 30.
            job_log: Write an INFO line for each completed job.
            lease: Seconds a silent worker keeps its jobs before others run them again. Default 60; at least 2:
                a worker beats every five seconds, or four times a lease.
            hang_limit: Seconds the event loop may be blocked before the worker gives itself up. Default 300.
            parent: The process that watches over this one; `python -m aiopgq run` gives it.

        Raises:
            ConfigError: An option cannot be used.
        """
        chosen = slots.choose(queues)
        options.count("concurrency", concurrency)
        if name is not None:
            options.name("name", name)

        def make_slots() -> slots.Slots:
            return slots.make(concurrency, chosen, (definition.queue for definition in self._known.values()))

        return Worker(
            self,
            partial(self._equip, make_slots),
            name=name,
            burst=burst,
            poll_interval=max(_FASTEST_POLL, options.seconds("poll_interval", poll_interval)),
            shutdown_grace=options.seconds("shutdown_grace", shutdown_grace),
            job_log=job_log,
            lease=options.lease("lease", lease),
            beat_interval=min(_BEAT_INTERVAL, options.lease("lease", lease) / 4),
            hang_limit=options.seconds("hang_limit", hang_limit),
            parent=parent,
        )

    async def drain(
        self,
        queues: Mapping[str, int | None] | Iterable[str] | None = None,
        *,
        concurrency: int = 10,
        timeout: float | timedelta | None = 60,  # noqa: ASYNC109  # part of the face
        raises: bool = True,
    ) -> Drained:
        """Run due jobs in this event loop until none is due, also those they enqueue; for tests and scripts.

        Jobs that wait for a later moment, a retry among them, stay pending.

        Args:
            queues: The queues to serve, as for `worker`. Default: all queues of the tasks known.
            concurrency: How many jobs run at once. Default 10.
            timeout: Seconds (or a timedelta) it may take; None for no limit. Default 60.
            raises: Raise when a job became a dead letter.

        Returns:
            How many runs ended how.

        Raises:
            JobFailed: A job became a dead letter; notes name the others. All due jobs have run.
            TimeoutError: Jobs were still due or running; those that ran are released.
            AiopgqError: What `worker` and opening the App raise.
        """
        limit = None if timeout is None else options.seconds("drain(timeout=…)", timeout)
        worker = self.worker(queues, concurrency=concurrency, burst=True, shutdown_grace=0, job_log=False)
        async with self:
            return await drain(worker, self.inspector, limit, raises=raises)

    def _equip(self, make_slots: Callable[[], slots.Slots]) -> Equipment:
        self.import_tasks()
        database = self.supply("start a worker").database

        return Equipment(
            connect=database.connect,
            listen=database.listen,
            tasks=dict(self._known),
            around=self._chain.run,
            handlers=self._handlers,
            schedules=self.declared_schedules(),
            slots=make_slots(),
            state=self._state.entered,
            retention=self._retention,
            inbox_window=self._inbox_window,
            max_result_bytes=self._max_result_bytes,
            version=version("aiopgq"),
            queue_rules=self.queue_rules,
        )

    # open and close

    async def __aenter__(self) -> "App[State]":
        """Read the settings, connect, check the schema. Opening an open App again is counted, not done.

        Raises:
            ConfigError: A setting cannot be used.
            SchemaError: The schema is missing, behind or too far ahead; run `python -m aiopgq migrate`.
            StoreUnavailable: PostgreSQL does not answer.
            WrongLoop: It is open in another event loop.
        """
        await self._openings.enter(self.database_settings(), keep=self.keeps_results)

        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for enqueues under way, then close the connections."""
        await self._openings.leave()

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Serve as the lifespan of a Starlette or FastAPI app that only enqueues."""
        async with self:
            yield

    async def cleanup_ctx(self, _app: Any) -> AsyncIterator[None]:
        """Serve as an aiohttp cleanup context of an app that only enqueues."""
        async with self:
            yield

    async def migrate(self) -> Sequence[Migration]:
        """Bring the schema up to date; safe to race, changes nothing when all is current.

        The App need not be open.

        Raises:
            SchemaError: What is there does not fit what this version brings.
            StoreError: PostgreSQL refused, or did not answer.
        """
        database = await self.database_settings().resolve()
        try:
            return await migrate(database.connect)
        finally:
            database.release()

    @property
    def state(self) -> State:
        """What the `state=` context manager yielded in this worker process.

        Raises:
            NoState: No worker runs here, or the App has no `state=`.
        """
        return self._state.get()

    # for handles and tasks

    def _home(self) -> EnqueueHome:
        return self

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self._schema or check_schema_name(os.environ.get("AIOPGQ_SCHEMA") or DEFAULT_SCHEMA)

    @property
    def max_args_bytes(self) -> int:
        """The largest arguments of one job, encoded."""
        return self._max_args_bytes

    @property
    def around_run(self) -> Around | None:
        """What goes around a run; the testing kit uses it."""
        return self._chain.run

    @property
    def inbox_window(self) -> float:
        """Seconds the inbox knows a message."""
        return self._inbox_window

    @property
    def keeps_results(self) -> bool:
        """Whether finished jobs are kept."""
        return self._retention > 0

    def store(self, doing: str) -> Jobs:
        """Return the store of the opened App."""
        return self.supply(doing).jobs

    async def outcome(self, job_id: UUID, seconds: float | None) -> Outstanding | None:
        """Wait until a job is final; handles use it."""
        return await self.supply("wait for a result").results.wait(job_id, seconds)

    def watch(self, job_id: UUID) -> AsyncGenerator[Progress, None]:
        """Give how far a job is, until it has ended; handles use it."""
        return self.supply("watch a job").watch.updates(job_id)

    @property
    def is_open(self) -> bool:
        """Whether the App is open."""
        return self._openings.now is not None

    def supply(self, doing: str) -> Opened:
        """Return the connections of the opened App.

        Raises:
            AppNotOpen: It is not open.
            WrongLoop: It is open in another event loop.
        """
        return self._openings.get(doing)

    def override(self, *, dsn: str | None = None, schema: str | None = None) -> None:
        """Replace what the constructor said, before the App is opened; options of the command line do.

        Raises:
            ConfigError: One of them cannot be used.
        """
        if dsn is not None:
            self._dsn = self._listen_dsn = normal(dsn)
            self._connect = None
        if schema is not None:
            self._schema = check_schema_name(schema)

    def database_settings(self) -> DatabaseSettings:
        """Return where the database is, as far as the constructor says; the CLI looks before it migrates."""
        return DatabaseSettings(self._dsn, self._listen_dsn, self.schema, self._connect, self._statement_cache_size)
