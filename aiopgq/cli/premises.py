"""A schema for the time of one command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.statements import quote
from aiopgq.errors import ConfigError, StoreError

__all__ = ["own_schema"]

_DUPLICATE_SCHEMA: Final = "42P06"


@asynccontextmanager
async def own_schema(settings: ConnectSettings, whose: str) -> AsyncIterator[None]:
    """Make the schema, and drop it afterwards; one that is there already is left alone.

    Args:
        settings: The server, and the schema.
        whose: The command it is for.

    Raises:
        ConfigError: It is there already.
        StoreError: PostgreSQL refused, or did not answer.
    """
    line = Line(settings, whose)
    schema = quote(settings.schema)
    try:
        await line.fetch(f"make a schema for the {whose}", f"CREATE SCHEMA {schema}")
    except StoreError as error:
        if getattr(error.__cause__, "sqlstate", None) != _DUPLICATE_SCHEMA:
            raise
        raise ConfigError(
            "--dsn",
            f"the schema {schema} is there already: another {whose} runs, or one was killed. Then drop it with "
            f"DROP SCHEMA {schema} CASCADE.",
        ) from None
    finally:
        await line.close()
    try:
        yield
    finally:
        await line.fetch(f"drop the schema of the {whose}", f"DROP SCHEMA {schema} CASCADE")
        await line.close()
