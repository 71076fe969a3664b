"""Connections of the caller: his transaction, his driver, his codecs.

Recognised by where their class comes from, so that nothing is imported for those who do not use it.
SQLAlchemy is always used through its own `execute`: its raw driver connection is outside the transaction until
the first statement.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

__all__ = ["begun", "check_connection", "check_source", "fetch_foreign", "in_transaction", "is_asyncpg", "is_within"]

_SQLALCHEMY: Final = ("AsyncSession", "AsyncConnection", "async_scoped_session")
_ASYNCPG: Final = ("Connection", "PoolConnectionProxy")
# A comment or a quoted name is passed over: a schema may be called $1.
_PARAMETER: Final = re.compile(r'--[^\n]*|"(?:[^"]|"")*"|\$(\d+)')


def check_connection(connection: Any) -> None:
    """Check that a connection is one we know how to use.

    Raises:
        TypeError: It is not; the message lists what works.
    """
    if _kind(connection) is None:
        what = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise TypeError(
            f"connection= takes an asyncpg Connection (also from a pool), or a SQLAlchemy AsyncSession or "
            f"AsyncConnection, not {what}."
        )


async def fetch_foreign(connection: Any, sql: str, types: Sequence[str], args: Sequence[Any]) -> list[Any]:
    """Run a statement on the caller's connection, inside his transaction if there is one.

    Errors of PostgreSQL reach the caller as his driver raises them: only he knows whether to repeat.
    """
    if _kind(connection) == "sqlalchemy":
        from sqlalchemy import text  # noqa: PLC0415  # the caller has it; nobody else pays for it

        def bound(hit: re.Match[str]) -> str:
            return f"CAST(:p{hit[1]} AS {types[int(hit[1]) - 1]})" if hit[1] else hit[0]

        named = text(_PARAMETER.sub(bound, sql.replace(":", r"\:")))
        result = await connection.execute(named, {f"p{n}": arg for n, arg in enumerate(args, 1)})
        return list(result.fetchall())

    rows: list[Any] = await connection.fetch(sql, *args)
    return rows


def in_transaction(connection: Any) -> bool:
    """Tell whether the caller's transaction is still open."""
    try:
        if _kind(connection) == "sqlalchemy":
            # A scoped session lends out the session of this scope, and this method is not among what it passes on.
            registry = getattr(connection, "registry", None)
            return bool((registry() if registry else connection).in_transaction())
        return bool(connection.is_in_transaction())
    except Exception:  # noqa: BLE001  # a connection given back to its pool answers with errors of its driver
        return False


def is_asyncpg(connection: Any) -> bool:
    """Tell whether it is a connection of asyncpg, where each statement outside a transaction is one of its own."""
    return _kind(connection) == "asyncpg"


async def is_within(connection: Any) -> bool:
    """Tell whether what was just written on a connection is in a transaction; a driver in autocommit has none."""
    if _kind(connection) == "sqlalchemy":
        # A session lends its connection, which by now is in the transaction, if there is one.
        lent = connection if hasattr(connection, "get_raw_connection") else await connection.connection()
        connection = (await lent.get_raw_connection()).driver_connection
    asked = getattr(connection, "is_in_transaction", None)

    # Psycopg's says only whether it is in autocommit.
    return bool(asked()) if asked else not getattr(connection, "autocommit", False)


def check_source(setting: str, source: Any) -> None:
    """Check that `begun` can begin transactions there.

    Raises:
        TypeError: It cannot; the message lists what works.
    """
    if not (_kind(source) or hasattr(source, "acquire") or hasattr(source, "begin") or callable(source)):
        what = f"{type(source).__module__}.{type(source).__qualname__}"
        raise TypeError(
            f"{setting} takes an asyncpg Pool or Connection, a SQLAlchemy async_sessionmaker or AsyncEngine, or a "
            f"function that returns an async context manager of a connection in a transaction, not {what}."
        )


@asynccontextmanager
async def begun(source: Any) -> AsyncIterator[Any]:
    """Begin a transaction where the caller's connections come from, lend its connection, and commit or roll back."""
    if _kind(source) == "asyncpg":
        async with source.transaction():
            yield source
    elif _kind(source) == "sqlalchemy":
        async with source.begin():
            yield source
    elif hasattr(source, "acquire"):
        async with source.acquire() as connection, connection.transaction():
            yield connection
    else:
        async with source.begin() if hasattr(source, "begin") else source() as connection:
            yield connection


def _kind(connection: Any) -> str | None:
    for cls in type(connection).__mro__:
        home = cls.__module__.partition(".")[0]
        # SQLModel's session is a subclass of SQLAlchemy's.
        if home == "sqlalchemy" and cls.__name__ in _SQLALCHEMY:
            return "sqlalchemy"
        if home == "asyncpg" and cls.__name__ in _ASYNCPG:
            return "asyncpg"

    return None
