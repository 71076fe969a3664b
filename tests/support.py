"""What many tests need: waiting for a named condition, and a database of one's own."""

import asyncio
import inspect
import secrets
import threading
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ["Databases", "eventually", "with_database"]


async def eventually(check, *, within=30.0, every=0.02, what="the condition holds"):
    """Wait until check() is true and return its value; it may be a coroutine function.

    Raises:
        AssertionError: It is not true in time; names `what`, and what was seen last.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        seen = check()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if loop.time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}; last seen: {seen!r}")
        await asyncio.sleep(every)


def with_database(dsn, database):
    """Return the DSN of another database of the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


class Databases:
    """Makes and drops databases, over one connection, in an event loop of its own."""

    def __init__(self, dsn):
        self._dsn = dsn
        self._connection = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="databases of tests", daemon=True)
        self._thread.start()

    def run(self, work):
        """Run a coroutine to its end, from any thread, whatever loop runs there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def create(self, template=None):
        """Return the DSN of a new database: a copy of the template, or an empty one."""
        name = f"aiopgq_test_{secrets.token_hex(6)}"
        self.run(self._execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'}"))
        return with_database(self._dsn, name)

    def close_to_all(self, dsn):
        """Let nobody connect to a database, so that it can be copied at any time; return its name."""
        name = urlsplit(dsn).path.strip("/")
        self.run(self._execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        return name

    def drop(self, dsn):
        """Drop a database, and whoever is still connected to it."""
        name = urlsplit(dsn).path.strip("/")
        self.run(self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))

    def hurry(self):
        """Let the server save its fsyncs."""
        self.run(self._execute("ALTER SYSTEM SET fsync = off"))
        self.run(self._execute("SELECT pg_reload_conf()"))

    def close(self):
        """Close the connection and the loop."""
        if self._connection is not None:
            self.run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _execute(self, sql):
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._dsn)
        await self._connection.execute(sql)
