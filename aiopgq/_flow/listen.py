"""Listen, beside the path: keeps one LISTEN connection and says when it is deaf.

If the process dies here, nothing is lost: a notification only means "look", and looking happens anyway.
"""

import asyncio
import logging
from collections.abc import Callable

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.listen import Ear, listen
from aiopgq._store.patience import Patience, comes
from aiopgq.errors import StoreError

__all__ = ["keep_listening"]

log = logging.getLogger("aiopgq.listen")


async def keep_listening(
    settings: ConnectSettings,
    topics: tuple[str, ...],
    heard: Callable[[str, str], None],
    hearing: Callable[[bool], None],
    stop: asyncio.Event,
) -> None:
    """Listen until `stop` is set, reconnecting with capped backoff.

    Args:
        settings: Where to listen; a direct connection, not through a pooler.
        topics: What to listen to; the empty topic is about pending jobs.
        heard: Called with topic and payload.
        hearing: Called with True when LISTEN is active and proven, with False when it is lost.
        stop: Ends it.
    """
    patience = Patience(log, "listen for notifications (polling meanwhile)")

    def listening() -> None:
        patience.worked()
        hearing(True)  # noqa: FBT003  # a callback has no keywords

    while not stop.is_set():
        try:
            await listen(settings, topics, Ear(heard, listening), stop)
        except StoreError as error:
            hearing(False)  # noqa: FBT003  # a callback has no keywords
            await comes(stop, patience.failed(error))
