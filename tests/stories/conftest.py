"""What the stories share."""

import asyncpg
import pytest

EMPTY = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();
    DELETE FROM aiopgq.jobs;
    DELETE FROM aiopgq.archive;
    DELETE FROM aiopgq.dead_letters;
    DELETE FROM aiopgq.workers;
    DELETE FROM aiopgq.unique_holds;
    SELECT setval(c.oid, 0) FROM pg_class c
    WHERE c.relnamespace = 'aiopgq'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^(sleepers|waiters)';
"""


@pytest.fixture
async def sql(dsn):
    """A connection of the test's own, to look behind the curtain."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def module_dsn(databases, template):
    """The DSN of a migrated database for all tests of a module."""
    dsn = databases.create(template)
    yield dsn
    databases.drop(dsn)


@pytest.fixture
def emptied_dsn(databases, module_dsn):
    """The same, without jobs, workers or connections of the test before; ten times as fast as a copy."""
    databases.run(_empty(module_dsn))
    return module_dsn


async def _empty(dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute(EMPTY)
    await connection.close()
