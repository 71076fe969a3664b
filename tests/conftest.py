"""One server per run, one migrated template database, one copy of it per test."""

import os
from contextlib import contextmanager

import pytest
from support import Databases

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.schema import migrate


@pytest.fixture(scope="session")
def databases(aiopgq_dsn):
    """Makes databases on the server of this run."""
    databases = Databases(aiopgq_dsn)
    if "AIOPGQ_TEST_DSN" not in os.environ:
        # A server of our own: what the tests kill are processes, and these need no fsync.
        databases.hurry()
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def template(databases):
    """The name of a migrated database that is only copied."""
    with _database(databases) as dsn:
        databases.run(migrate(ConnectSettings(dsn, "aiopgq")))
        yield databases.close_to_all(dsn)


@pytest.fixture
def dsn(databases, template):
    """The DSN of a database with a fresh schema `aiopgq`."""
    with _database(databases, template) as dsn:
        yield dsn


@pytest.fixture
def empty_dsn(databases):
    """The DSN of a database that holds nothing of ours."""
    with _database(databases) as dsn:
        yield dsn


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Make what hostile errors log printable: a lone surrogate would break the pipe of a parallel run."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@contextmanager
def _database(databases, template=None):
    dsn = databases.create(template)
    try:
        yield dsn
    finally:
        databases.drop(dsn)
