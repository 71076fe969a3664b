"""What the tests of faces share."""

import asyncpg
import pytest
from faces.cli import Cli, Forge


@pytest.fixture(scope="session")
def forge():
    """Makes processes for commands."""
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture
def cli(forge, tmp_path, dsn):
    """The command line, on a database with a fresh schema."""
    cli = Cli(forge, tmp_path, dsn)
    yield cli
    cli.close()


@pytest.fixture
def cli_alone(forge, tmp_path):
    """The command line without a database."""
    cli = Cli(forge, tmp_path, "postgresql://postgres@127.0.0.1:1/none")
    yield cli
    cli.close()


@pytest.fixture
async def sql(dsn):
    """A connection of the test's own, to look behind the curtain."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
