"""Where the database is: one connection string out of the settings and the environment.

Whatever is wrong with a DSN, no message shows it: what looks like a host may be half of a password.
"""

import os
import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from aiopgq.errors import ConfigError

__all__ = ["EMBEDDED", "Hosts", "find_dsn", "masked", "normal"]

EMBEDDED: Final = "embedded:"
_SCHEMES: Final = re.compile(r"postgres(?:ql)?(?P<driver>\+\w+)?://", re.IGNORECASE)
_ANY_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST: Final = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::\d*)?")
_SSL: Final = re.compile(r"(?<=[?&])ssl=")
_PASSWORDS: Final = re.compile(r"(?<=:)[^/@]*(?=@)|(?<=password=)[^&]*")
_VARIABLES: Final = ("AIOPGQ_DSN", "DATABASE_URL")
_LIBPQ: Final = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE", "PGPORT")


def normal(dsn: str, setting: str = "dsn") -> str:
    """Return a DSN in the form asyncpg reads; `postgresql+asyncpg://` and its kin lose their driver.

    Args:
        dsn: The DSN.
        setting: Where it comes from, for the message.

    Raises:
        ConfigError: It is no PostgreSQL URL, or one that cannot be read.
    """
    if not isinstance(dsn, str):
        raise ConfigError(setting, f"takes a string, not {type(dsn).__name__}.")
    if dsn.startswith(EMBEDDED):
        return dsn
    scheme = _SCHEMES.match(dsn)
    if scheme is None:
        other = _ANY_SCHEME.match(dsn)
        raise ConfigError(
            setting,
            "takes postgresql://user:password@host:5432/database (also postgres://, postgresql+asyncpg://) "
            f"or embedded:FOLDER, not {other.group() if other else 'a text without a scheme'}.",
        )
    bare = "postgresql://" + dsn[scheme.end() :]
    if scheme["driver"]:
        # SQLAlchemy's name for what libpq and asyncpg call sslmode.
        bare = _SSL.sub("sslmode=", bare)
    if not _is_readable(bare):
        raise ConfigError(
            setting,
            "cannot be read as a URL. In user name and password the characters @ : / # % ? must be "
            "percent-encoded, as urllib.parse.quote(password, safe='') does; a port is a number.",
        )

    return bare


def find_dsn(given: str | None) -> str:
    """Choose the DSN: the one given, AIOPGQ_DSN, DATABASE_URL, or libpq's PG* variables.

    Raises:
        ConfigError: None of them is set, or it is no PostgreSQL URL.
    """
    if given:
        return normal(given)
    for variable in _VARIABLES:
        if dsn := os.environ.get(variable):
            return normal(dsn, variable)
    if any(os.environ.get(variable) for variable in _LIBPQ):
        return "postgresql://"

    raise ConfigError(
        "dsn",
        "no database is configured. Give App(dsn) or a command --dsn, or set AIOPGQ_DSN or DATABASE_URL; "
        'App("embedded:./data") starts one of its own.',
    )


def masked(dsn: str) -> str:
    """Return a DSN that `normal` let pass in a form that can be shown: without its password."""
    return _PASSWORDS.sub("***", dsn)


class Hosts:
    """A DSN that may name several hosts, each in its turn the first to be asked.

    asyncpg asks one after the other, so one that gives no sign at all takes the time of all.
    """

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        user, at, hosts = parts.netloc.rpartition("@")
        names = hosts.split(",")
        self._orders = [dsn]
        for first in range(1, len(names)):
            netloc = user + at + ",".join(names[first:] + names[:first])
            self._orders.append(urlunsplit(parts._replace(netloc=netloc)))
        self._turn = 0

    @property
    def dsn(self) -> str:
        """The DSN, its hosts in the order in which they are to be asked now."""
        return self._orders[self._turn]

    def silent(self, dsn: str) -> None:
        """Ask another host first from now on, unless somebody who waited as long has seen to that already."""
        if dsn == self.dsn:
            self._turn = (self._turn + 1) % len(self._orders)


def _is_readable(dsn: str) -> bool:
    """Tell whether the URL means what it seems to: no half of a password was taken for a host or a path."""
    try:
        parts = urlsplit(dsn)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    user, at, hosts = parts.netloc.rpartition("@")
    misplaced = "@" in user or (parts.netloc and not at and "@" in parts.path)

    return not misplaced and not parts.fragment and all(_HOST.fullmatch(host) for host in hosts.split(","))
