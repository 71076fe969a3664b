"""What PostgreSQL's errors mean to us: wait, repeat, look for the row at fault, or give up."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from aiopgq.errors import ConfigError, RowRefused, StoreError, StoreUnavailable

__all__ = [
    "PASSING",
    "Conflict",
    "NoPartition",
    "NotSent",
    "StatementLost",
    "Undefined",
    "Undelivered",
    "translated",
]

# The server is going, coming, full, read-only for a while, or the line to it broke.
PASSING: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
# Class 22 data, 23 constraints, 54 limits: one row is at fault, the others may pass.
_CULPRIT_CLASSES: Final = ("22", "23", "54")
_CONFLICTS: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_LOST_STATEMENT: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
_UNDEFINED: Final = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)


class Conflict(StoreError):
    """Two transactions met (40001, 40P01); the statement is repeated whole."""


class NotSent(StoreUnavailable):
    """No connection could be made, so the statement was certainly not carried out."""


class StatementLost(NotSent):
    """A pooler gave us a server process that knows other prepared statements; nothing was carried out.

    Attributes:
        remedy: What is wrong, and what to set.
    """

    remedy: Final = (
        "the pooler between us and PostgreSQL loses prepared statements. Set statement_cache_size=0 (or "
        "AIOPGQ_STATEMENT_CACHE_SIZE=0), or max_prepared_statements in PgBouncer 1.21 or later."
    )

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing}: {self.remedy.removesuffix('.')}")


class Undelivered(StoreError):
    """LISTEN was accepted, and a notification sent from elsewhere never came."""

    def __init__(self) -> None:
        super().__init__(
            "The connection leads through a pooler that delivers no notifications. Give listen_dsn (or "
            "AIOPGQ_LISTEN_DSN), a direct connection; until then jobs are found by looking every second."
        )


class Undefined(StoreError):
    """A table or function is not there: ours before the first migration, or one that a trigger of the user names."""


class NoPartition(StoreError):
    """The archive has no partition for today."""


@contextmanager
def translated(doing: str, schema: str) -> Iterator[None]:
    """Turn errors from below into ours.

    Raises:
        StoreUnavailable: It may pass; what became of the statement may be unknown.
        Conflict: Repeat it whole.
        RowRefused: A row is at fault.
        NoPartition: The archive lacks a day.
        StatementLost: A pooler lost a prepared statement.
        Undefined: A table or function is not there.
        ConfigError: The DSN cannot be used.
        StoreError: Anything else PostgreSQL says.
    """
    try:
        yield
    except _CONFLICTS as error:
        raise Conflict(f"{doing}: {_brief(error)}") from error
    except _LOST_STATEMENT as error:
        raise StatementLost(doing) from error
    except _UNDEFINED as error:
        raise Undefined(
            f"PostgreSQL refused to {doing} ({error.sqlstate}): {_brief(error)}. Schema {schema!r} is not as "
            "`python -m aiopgq migrate` makes it, or a trigger of yours fails."
        ) from error
    except asyncpg.ClientConfigurationError as error:
        raise ConfigError("dsn", _brief(error)) from error
    except asyncpg.CheckViolationError as error:
        # A violated constraint has a name; a missing partition has none, in any language of the server.
        if error.constraint_name is None:
            raise NoPartition(f"{doing}: {_brief(error)}") from error
        raise RowRefused(doing, error.sqlstate, _brief(error)) from error
    except PASSING as error:
        raise StoreUnavailable(f"{doing} ({type(error).__name__}: {error})") from error
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "")[:2] in _CULPRIT_CLASSES:
            raise RowRefused(doing, error.sqlstate, _brief(error)) from error
        raise StoreError(f"PostgreSQL refused to {doing} ({error.sqlstate}): {_brief(error)}.") from error


def _brief(error: Exception) -> str:
    """Return what PostgreSQL says without its DETAIL, which shows whole rows, arguments included."""
    return str(getattr(error, "message", None) or error).partition("\n")[0].removesuffix(".")
