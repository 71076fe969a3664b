"""Least privilege: a producer, a reader and a worker may do what they are for, and nothing else."""

# ruff: noqa: S608  # the names put into SQL are of the tests' own making

import asyncio
import logging
import secrets
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Retry, Unique
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq._store.schema import migrate
from aiopgq._store.workers import Workers
from aiopgq.errors import MessageHeld, StoreError, UniqueKeyHeld

# A role of a server lives longer than the database it is made for.
DENIED = "permission denied"


def as_role(dsn, role):
    """Return the DSN by which a role logs in; its password is its name."""
    parts = urlsplit(dsn)
    _, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{role}:{role}@{host}"))


class Roles:
    """An owner that is no superuser has migrated the database; makes roles by one line each."""

    def __init__(self, dsn, admin, owner, schema):
        self.dsn = dsn
        self.admin = admin
        self.owner = owner
        self.schema = schema
        self.made = [owner]

    async def make(self, kind=None):
        role = await self.bare()
        if kind is not None:
            async with Connected(as_role(self.dsn, self.owner)) as owner:
                await owner.execute(f"SELECT \"{self.schema}\".grant_{kind}('{role}')")
        return as_role(self.dsn, role)

    async def bare(self):
        role = f"Test-{secrets.token_hex(6)}"
        await self.admin.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{role}'")
        self.made.append(role)
        return role


class Connected:
    """A connection for a while."""

    def __init__(self, dsn):
        self._dsn = dsn

    async def __aenter__(self):
        self._connection = await asyncpg.connect(self._dsn)
        return self._connection

    async def __aexit__(self, *_):
        await self._connection.close()


@pytest.fixture
async def roles(empty_dsn, request):
    """Roles on a schema whose owner is no superuser, and whose name needs quoting unless a test wants another."""
    schema = getattr(request, "param", "Our jobs")
    owner = f"Owner-{secrets.token_hex(6)}"
    async with Connected(empty_dsn) as admin:
        database = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"CREATE ROLE \"{owner}\" LOGIN PASSWORD '{owner}'")
        roles = Roles(empty_dsn, admin, owner, schema)
        try:
            await admin.execute(f'GRANT CREATE ON DATABASE {database} TO "{owner}"')
            await migrate(ConnectSettings(as_role(empty_dsn, owner), schema))
            yield roles
        finally:
            for role in reversed(roles.made):
                await admin.execute(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


def app_of(dsn, schema, **settings):
    jobs = App(dsn, schema=schema, **settings)

    @jobs.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    return jobs, double


@pytest.mark.parametrize("roles", ["aiopgq", "Our jobs"], indirect=True)
async def test_a_producer_enqueues_in_every_way(roles):
    dsn = await roles.make("producer")
    jobs, double = app_of(dsn, roles.schema)
    known = uuid4()

    async with jobs, Connected(dsn) as own:
        await double.enqueue(1)
        await jobs.enqueue_many([double.call(2), double.options(delay=60).call(3)])
        assert not (await double.options(id=known).enqueue(4)).existing
        assert (await double.options(id=known).enqueue(4)).existing
        async with own.transaction():
            await double.options(connection=own).enqueue(5)
            await double.options(connection=own, id=uuid4()).enqueue(6)
            await jobs.enqueue_many([double.call(7)], connection=own)
        await own.execute(f"SELECT \"{roles.schema}\".enqueue('double', '{{\"number\": 8}}')")

    numbers = await roles.admin.fetch(
        f"SELECT (args->>'number')::int AS number FROM \"{roles.schema}\".jobs ORDER BY 1"
    )
    assert [row["number"] for row in numbers] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_producer_and_a_worker_share_unique_keys(roles):
    dsn = await roles.make("producer")
    producing, double = app_of(dsn, roles.schema)
    working, _ = app_of(await roles.make("worker"), roles.schema)
    unique = Unique("k", on_conflict="replace", period=600)

    async with producing, working, Connected(dsn) as own:
        first = await double.options(unique=unique).enqueue(1)
        replaced = await double.options(unique=unique, connection=own).enqueue(2)
        by_sql = await own.fetchval(f"SELECT \"{roles.schema}\".enqueue('double', p_unique_key => 'k')")
        assert first.id == replaced.id == by_sql
        assert (await working.drain()).completed == 1
        assert (await double.options(unique=unique).enqueue(3)).id == first.id
        async with own.transaction(), Connected(dsn) as other:
            await double.options(unique="other", connection=own).enqueue(4)
            await roles.admin.execute(
                f"ALTER FUNCTION \"{roles.schema}\".enqueue_unique_jobs SET lock_timeout = '200ms'"
            )
            with pytest.raises(UniqueKeyHeld) as told:
                await double.options(unique="other", connection=other).enqueue(4)
            assert told.value.pid == own.get_server_pid()


async def test_the_job_of_a_producer_wakes_a_sleeping_worker(roles):
    producing, double = app_of(await roles.make("producer"), roles.schema)
    working, doubled = app_of(await roles.make("worker"), roles.schema)

    # The next look of its own accord comes after the test.
    async with producing, working, working.worker(poll_interval=600) as worker:
        await eventually(lambda: worker.health().listening, what="the worker listens")
        job = await double.enqueue(21)
        assert await doubled.handle(job.id).result(30) == 42


async def test_a_producer_neither_sees_nor_touches_jobs(roles):
    dsn = await roles.make("producer")
    jobs, double = app_of(dsn, roles.schema)

    async with jobs:
        job = await double.enqueue(1)
        for forbidden in (job.info, job.result, job.cancel, jobs.inspector.counts, jobs.worker().run):
            with pytest.raises(StoreError, match=DENIED):
                await forbidden()
    async with Connected(dsn) as own:
        home = f'"{roles.schema}"'
        for forbidden in (
            f"SELECT id FROM {home}.jobs",
            f"SELECT result FROM {home}.all_jobs",
            f"SELECT errors FROM {home}.dead_letters",
            f"INSERT INTO {home}.jobs (id, task) VALUES (gen_random_uuid(), 'x')",
            f"UPDATE {home}.jobs SET priority = 1",
            f"DELETE FROM {home}.jobs",
            f"SELECT {home}.claim_lanes(NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL)",
            f"SELECT {home}.drop_partitions(0)",
            f"SELECT {home}.make_partitions(100000)",
            f"SELECT {home}.fall_asleep('{{0}}', '{{0}}', 1e6)",
            f"SELECT {home}.leave_sleepers('{{0}}', '{{0}}', '{{q}}')",
            f"SELECT {home}.wake_up(0, 0)",
            f"SELECT {home}.raise_flag('{home}.places', 9)",
            f"SELECT {home}.await_results(1e9)",
            f"SELECT {home}.grant_worker(current_user)",
            f"SELECT {home}.renew_grants()",
            f"SELECT nextval('{home}.places')",
            f"CREATE TABLE {home}.mine ()",
            f"DROP SCHEMA {home} CASCADE",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await own.execute(forbidden)


async def test_a_producer_may_call_migrate_on_a_current_schema(roles):
    jobs, _ = app_of(await roles.make("producer"), roles.schema)

    assert await jobs.migrate() == ()


@pytest.mark.parametrize("roles", ["aiopgq", "Our jobs"], indirect=True)
@pytest.mark.parametrize("kind", ["producer", "worker"])
async def test_who_enqueues_and_who_works_receive_messages(roles, kind):
    dsn = await roles.make(kind)
    inbox = App(dsn, schema=roles.schema).inbox
    home = f'"{roles.schema}"'

    async with Connected(dsn) as own, Connected(dsn) as other:
        async with own.transaction(), inbox.once(own, consumer="billing", message_id="m") as first:
            assert first
            async with other.transaction():
                with pytest.raises(MessageHeld) as told:
                    await inbox.once(other, consumer="billing", message_id="m", timeout=0.01).__aenter__()
        assert told.value.held_by == str(own.get_server_pid())
        assert await other.fetchval(f"SELECT {home}.receive_message('billing', 'm')") is False
        assert await other.fetchval(f"SELECT {home}.forget_message('billing', 'm')") is True


async def test_a_producer_neither_sees_nor_prunes_the_inbox_and_a_reader_sees_it(roles):
    home = f'"{roles.schema}"'
    async with Connected(await roles.make("producer")) as own:
        await own.execute(f"SELECT {home}.receive_message('billing', 'm')")
        for forbidden in (
            f"SELECT consumer FROM {home}.inbox",
            f"INSERT INTO {home}.inbox (consumer, message_id) VALUES ('billing', 'n')",
            f"DELETE FROM {home}.inbox",
            f"SELECT {home}.prune_inbox(0, '-infinity', 1)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await own.execute(forbidden)
    reading, _ = app_of(await roles.make("reader"), roles.schema)
    working, _ = app_of(await roles.make("worker"), roles.schema)

    async with reading, working:
        assert [(one.consumer, one.messages) for one in await reading.inspector.inbox()] == [("billing", 1)]
        with pytest.raises(StoreError, match=DENIED):
            await reading.inspector.prune_inbox(0)
        assert await working.inspector.prune_inbox(0) == 1


async def test_a_reader_waits_for_results_and_cannot_enqueue(roles):
    looking, seen = app_of(await roles.make("reader"), roles.schema)
    working, double = app_of(await roles.make("worker"), roles.schema)

    async with looking, working, working.worker():
        job = await double.enqueue(4)
        assert await seen.handle(job.id).result(30) == 8
        assert (await seen.handle(job.id).info()).status == "completed"
        assert [one.id for one in await looking.inspector.jobs()] == [job.id]
        await looking.inspector.counts()
        with pytest.raises(StoreError, match=DENIED):
            await seen.enqueue(1)
        with pytest.raises(StoreError, match=DENIED):
            await seen.handle(job.id).cancel()


@pytest.mark.parametrize("roles", ["aiopgq", "Our jobs"], indirect=True)
async def test_a_worker_does_all_its_work_without_owning_anything(roles, caplog):
    caplog.set_level(logging.WARNING, "aiopgq")
    dsn = await roles.make("worker")
    jobs = App(dsn, schema=roles.schema)
    started, forever = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def stubborn(fails: int) -> str:
        if fails < 0:
            raise ValueError("never")
        return "done"

    @jobs.task(name="again")
    async def again() -> str | Retry:
        return "done" if (await asyncio.sleep(0)) else Retry(after=0)

    @jobs.task
    async def long() -> None:
        started.set()
        await forever.wait()

    async with jobs, jobs.worker(concurrency=4) as worker:
        completed = await stubborn.options(delay=0.2).enqueue(0)
        buried = await stubborn.options(max_attempts=1).enqueue(-1)
        retried = await again.options(max_attempts=2).enqueue()
        cancelled = await long.enqueue()
        await asyncio.wait_for(started.wait(), 30)
        assert await completed.result(30) == "done"
        for job, status in ((buried, "failed"), (retried, "failed")):
            await eventually(lambda job=job, status=status: is_in(job, status), what=f"{job.id} is {status}")
        await cancelled.cancel()
        await eventually(lambda: is_in(cancelled, "cancelled"), what="the long job is cancelled")
        assert (await jobs.inspector.replay([buried.id])).jobs == 1
        await eventually(lambda: is_in(buried, "failed"), what="the replayed job failed again")
        assert await jobs.inspector.purge([buried.id]) == 1
        assert worker.health().claiming

    assert [said.getMessage() for said in caplog.records if DENIED in said.getMessage()] == []


async def is_in(job, status):
    return (await job.info()).status == status


async def test_a_worker_keeps_the_tables_and_rescues_the_dead(roles):
    dsn = await roles.make("worker")
    line = Line(ConnectSettings(dsn, roles.schema), "test")
    stored, workers = Jobs(line), Workers(line)
    home = f'"{roles.schema}"'
    dead, job = uuid4(), uuid4()
    await roles.admin.execute(
        f"INSERT INTO {home}.jobs (id, task, status, worker_id, claim_id)"
        f" VALUES ('{job}', 'x', 'claimed', '{dead}', gen_random_uuid())"
    )
    days = "SELECT count(*) FROM pg_inherits WHERE inhparent = $1::text::regclass"

    await stored.make_partitions(20)
    assert await roles.admin.fetchval(days, f"{home}.archive") == 22
    await stored.drop_partitions(0)
    assert await roles.admin.fetchval(days, f"{home}.archive") == 21
    assert await workers.rescue_orphans(keep=True) == 1
    assert await workers.forget(0) == 0
    await line.close()

    assert await roles.admin.fetchval(f"SELECT status FROM {home}.jobs WHERE id = '{job}'") == "pending"


async def test_a_worker_creates_alters_and_drops_nothing(roles):
    home = f'"{roles.schema}"'
    async with Connected(await roles.make("worker")) as own:
        for forbidden in (
            f"CREATE TABLE {home}.mine ()",
            f"ALTER TABLE {home}.jobs ADD COLUMN mine text",
            f"DROP TABLE {home}.archive",
            f"TRUNCATE {home}.jobs",
            f"DROP SCHEMA {home} CASCADE",
            f"DELETE FROM {home}.archive",
            f"UPDATE {home}.migrations SET checksum = ''",
            f"SELECT {home}.grant_worker(current_user)",
            f"SELECT {home}.renew_grants()",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await own.execute(forbidden)


@pytest.mark.parametrize("roles", ["aiopgq", "Our jobs"], indirect=True)
async def test_nothing_in_the_schema_is_for_everybody(roles):
    role = await roles.bare()

    open_to_all = await roles.admin.fetch(
        "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace"
        " AND has_function_privilege($2::text, p.oid, 'EXECUTE')",
        f'"{roles.schema}"',
        role,
    )

    assert open_to_all == []


async def test_granting_to_a_role_that_is_not_there_or_to_everybody_is_refused(roles):
    for role in ("public", "PUBLIC", "nobody-has-this-name", "", 'x"; DROP SCHEMA public; --'):
        async with Connected(as_role(roles.dsn, roles.owner)) as owner:
            with pytest.raises(asyncpg.UndefinedObjectError, match="does not exist"):
                await owner.execute(f'SELECT "{roles.schema}".grant_producer($role${role}$role$)')


async def test_roles_keep_what_they_were_granted_as_when_a_migration_adds_functions(roles):
    home = f'"{roles.schema}"'
    worker, producer = await roles.make("worker"), await roles.make("producer")
    async with Connected(as_role(roles.dsn, roles.owner)) as owner:
        await owner.execute(f"CREATE FUNCTION {home}.new_verb() RETURNS int LANGUAGE sql RETURN 1")
        await owner.execute(f"SELECT {home}.renew_grants()")

    async with Connected(worker) as own:
        assert await own.fetchval(f"SELECT {home}.new_verb()") == 1
    async with Connected(producer) as own:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await own.execute(f"SELECT {home}.new_verb()")
        await own.execute(f"SELECT {home}.enqueue('double')")
