"""Where the demo runs: a server or a schema of its own, a log, and an end that leaves nothing behind."""

import asyncio
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.statements import DEFAULT_SCHEMA, quote
from aiopgq._store.trouble import translated
from aiopgq.embedded import EmbeddedServer, supervisor
from aiopgq.errors import ConfigError

__all__ = ["Ending", "connected", "folder_for", "logging_to", "own_schema", "server_in"]

SCHEMA: Final = "aiopgq_demo"
LOG: Final = "demo.log"
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
_LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
