"""What the tests of faces share."""

import asyncpg
import pytest
from faces.cli import Cli


@pytest.fixture
def cli(tmp_path, dsn):
    """The command line, on a database with a fresh schema."""
    cli = Cli(tmp_path, dsn)
    yield cli
    cli.close()


@pytest.fixture
async def sql(dsn):
    """A connection of the test's own, to look behind the curtain."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
