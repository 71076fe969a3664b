"""The tasks of the demo, as a user would write them; they pretend to work by sleeping."""

import asyncio
import hashlib
import random
import threading
from uuid import UUID

from aiopgq import Backoff, Fail, Priority, Router, Snooze, current_job

__all__ = [
    "arrivals",
    "charge_card",
    "encode_video",
    "fetch_page",
    "gateway",
    "no_op",
    "ping",
    "reindex",
    "remind",
    "reset_password",
    "restock",
    "send_mail",
    "ship_order",
    "shop",
    "thumbnail",
]

shop = Router()
SOON = Backoff(base=0.3, factor=2, jitter=0.2)
STAGES = ("download", "decode", "encode", "upload")
DELIVERY = 1.0


class Gateway:
    """The bank at the other end of the line."""

    up = True


gateway = Gateway()
arrivals: dict[int, asyncio.Future[float]] = {}
_snoozed: set[UUID] = set()


@shop.task(name="ping")
async def ping(number: int) -> None:
    """Tell whoever waits when it began."""
    if (arrival := arrivals.pop(number, None)) is not None:
        arrival.set_result(asyncio.get_running_loop().time())


@shop.task(name="send_mail")
async def send_mail(to: str) -> str:
    """Quick."""
    await _some_io()
    return f"sent to {to}"


@shop.task(name="reset_password", priority=Priority.EXPLICIT)
async def reset_password(user: int) -> str:
    """Somebody waits for it, so it runs before the others."""
    await _some_io()
    return f"a new password for user {user}"


@shop.task(name="reindex", priority=Priority.BACKFILL)
async def reindex(page: int) -> str:
    """Nobody waits for it, so it runs after the others."""
    await _some_io()
    return f"page {page} is indexed"


@shop.task(name="encode_video", timeout=60)
async def encode_video(title: str, seconds: float) -> str:
    """Slow, and says how far it is."""
    for percent in range(100):
        current_job().progress(percent, stage=STAGES[percent * len(STAGES) // 100])
        await asyncio.sleep(seconds / 100)
    current_job().progress(100, stage="done")
    return f"{title}.webm"


@shop.task(name="fetch_page", max_attempts=5, backoff=SOON)
async def fetch_page(url: str, refusals: int) -> str:
    """Fails once or twice, then succeeds."""
    await _some_io()
    if current_job().attempt <= refusals:
        raise ConnectionError(f"503 from {url}")
    return f"contents of {url}"


@shop.task(name="thumbnail")
def thumbnail(picture: str) -> int:
    """Works hard, in a thread, and tells which."""
    hashlib.pbkdf2_hmac("sha256", picture.encode(), b"salt", 60_000)
    return threading.get_ident()


@shop.task(name="remind")
async def remind(user: int) -> None:
    """Enqueued with a delay."""


@shop.task(name="ship_order")
async def ship_order(order: int) -> str:
    """Enqueued in the transaction that writes the order."""
    await _some_io()
    return f"order {order} is on its way"


@shop.task(name="restock")
async def restock(item: str) -> str | Snooze:
    """Not yet: the delivery is late."""
    job = current_job().id
    if job not in _snoozed:
        _snoozed.add(job)
        return Snooze(DELIVERY)
    return f"{item} is back"


@shop.task(name="charge_card", max_attempts=3, backoff=SOON)
async def charge_card(customer: str, card: str) -> str | Fail:
    """Fails for good while the gateway is down, and at once if the card is stolen."""
    if card == "stolen":
        return Fail(f"the card of {customer} is reported stolen")
    if not gateway.up:
        raise ConnectionError("the payment gateway is down")
    return f"charged {customer}"


@shop.task(name="no_op")
async def no_op(number: int) -> None:
    """Nothing, to see how fast nothing is."""


async def _some_io() -> None:
    await asyncio.sleep(random.uniform(0.01, 0.06))  # noqa: S311  # pretended work, no secret
