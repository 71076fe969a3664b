"""What is enqueued, and what happens to it; told while it happens."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from aiopgq import App, Call
from aiopgq._store.connection import Line
from aiopgq._store.statements import quote
from aiopgq.cli.demo import shop
from aiopgq.cli.demo.facts import Notes
from aiopgq.cli.demo.gauges import Gauges, Picture
from aiopgq.cli.demo.screen import Screen

__all__ = ["Story"]

WAKES: Final = 20
BURST: Final = 300
_GAP: Final = 0.1
_REFRESH: Final = 0.24
_STREAM: Final = 5
_VIDEOS: Final = (("intro", 2.0), ("interview", 2.4), ("concert", 2.8), ("credits", 3.2))
_TOMORROW: Final = 86_400


class Story:
    """Tells the story of the demo, once.

    Args:
        jobs: The App, open, with a worker beside it.
        line: A connection of the teller's own.
        screen: Where it is shown.
    """

    def __init__(self, jobs: App[None], line: Line, screen: Screen) -> None:
        self._jobs = jobs
        self._line = line
        self._screen = screen
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._looked = 0.0
        self._gauges = Gauges(list(jobs.tasks))
        self.notes = Notes()

    async def tell(self) -> Picture:
        """Tell it to the end, and take the last picture."""
        await self._say_hello()
        await self._wake_an_idle_worker()
        await self._order_in_transactions()
        await self._open_the_shop()
        await self._replay()
        await self._burst()

        return await self._look()

    # scenes

    async def _say_hello(self) -> None:
        job = await shop.send_mail.enqueue("ada@example.com")
        answer = await job.result(timeout=30)
        self._say(f"send_mail.enqueue('ada@example.com') gave the result {answer!r}")

    async def _wake_an_idle_worker(self) -> None:
        for number in range(WAKES):
            await self._rest(_GAP)
            shop.arrivals[number] = arrival = self._loop.create_future()
            called = self._loop.time()
            await shop.ping.enqueue(number)
            self._gauges.wakes.append(await arrival - called)
        picture = await self._look()
        self._say(f"an idle worker woke {WAKES} times, p50 {picture.wake_p50:.1f} ms after enqueue() was called")

    async def _order_in_transactions(self) -> None:
        orders = f"{quote(self._jobs.schema)}.demo_orders"
        add_order = f"INSERT INTO {orders} VALUES ($1)"  # noqa: S608  # the schema's name is quoted
        async with self._line.borrow("write orders") as connection:
            await connection.execute(f"CREATE TABLE {orders} (id integer PRIMARY KEY)")
            ship_order = shop.ship_order.options(connection=connection)

            async with connection.transaction():
                await connection.execute(add_order, 1)
                self.notes.shipped = (await ship_order.enqueue(1)).id
            self._say("order 1 and its job ship_order(1) were written in one transaction: committed")

            second = connection.transaction()
            await second.start()
            await connection.execute(add_order, 2)
            self.notes.rolled_back = (await ship_order.enqueue(2)).id
            await second.rollback()
            self._say("order 2 and its job ship_order(2) were written in one transaction: rolled back")
            left = await connection.fetch(f"SELECT id FROM {orders}")  # noqa: S608  # the schema's name is quoted
            self.notes.orders = [row[0] for row in left]

    async def _open_the_shop(self) -> None:
        shop.gateway.up = False
        # The videos first, lest they wait behind the crowd; then those in a hurry, enqueued last, run first.
        await self._jobs.enqueue_many([shop.encode_video.call(*video) for video in _VIDEOS])
        crowd = self._crowd()
        await self._jobs.enqueue_many(crowd)
        self._say(f"enqueue_many wrote {len(crowd)} jobs in one transaction, the urgent ones last")
        tomorrow = await shop.remind.options(delay=_TOMORROW).enqueue(99)
        self._say(f"remind(99) is due tomorrow; cancel() says: {await tomorrow.cancel()}")
        self.notes.cancelled = tomorrow.id

        customers = count(1)

        async def customers_come(picture: Picture) -> bool:
            videos = picture.jobs["encode_video"]
            if all(job.status == "completed" for job in videos):
                return True
            mails = [shop.send_mail.enqueue(f"customer-{next(customers)}@example.com") for _ in range(_STREAM)]
            await asyncio.gather(*mails)
            return False

        picture = await self._look()
        while not await customers_come(picture):
            picture = await self._rest(_GAP) or picture
        await self._until(lambda picture: picture.idle)

    def _crowd(self) -> list[Call[Any]]:
        return [
            *(shop.reindex.call(page) for page in range(60)),
            *(shop.send_mail.call(f"reader-{n}@example.com") for n in range(120)),
            *(shop.fetch_page.call(f"https://example.com/{n}", 1 + n % 2) for n in range(24)),
            *(shop.thumbnail.call(f"picture-{n}.png") for n in range(12)),
            *(shop.remind.options(delay=1 + n / 4).call(n) for n in range(8)),
            shop.restock.call("tea"),
            shop.charge_card.call("bob", "valid"),
            shop.charge_card.call("eve", "stolen"),
            *(shop.reset_password.call(user) for user in range(40)),
        ]

    async def _replay(self) -> None:
        inspector = self._jobs.inspector
        dead = [await inspector.job(job_id) for job_id in await inspector.dead()]
        for letter in dead:
            spent = f"{letter.attempts} of {letter.max_attempts} attempts"
            self._say(f"dead letter: {letter.task} after {spent}, {letter.last_error}")
        shop.gateway.up = True
        ids = await inspector.dead(error="gateway")
        replayed = (await inspector.replay(ids)).jobs
        self.notes.replayed = {letter.id: letter.last_error for letter in dead if letter.id in ids}
        self._say(f"the gateway is up again; replayed {replayed} of {len(dead)} dead letters")
        for job_id in ids:
            self._say(f"and this time: {await self._jobs.handle(job_id).result(timeout=30)}")

    async def _burst(self) -> None:
        await self._jobs.enqueue_many([shop.no_op.call(number) for number in range(BURST)])
        # Looking takes time that the burst shall have.
        await asyncio.sleep(_GAP)
        await self._until(lambda picture: picture.idle)

    # telling

    def _say(self, text: str) -> None:
        self._screen.say(self._loop.time() - self._began, text)

    async def _look(self) -> Picture:
        picture = await self._gauges.look(self._jobs.inspector, self._loop.time() - self._began)
        self._screen.show(picture)
        self._looked = self._loop.time()

        return picture

    async def _rest(self, seconds: float) -> Picture | None:
        """Let so much time pass, and use it to look if the last look is old."""
        end = self._loop.time() + seconds
        picture = await self._look() if self._loop.time() - self._looked > _REFRESH else None
        await asyncio.sleep(end - self._loop.time())

        return picture

    async def _until(self, condition: Callable[[Picture], bool]) -> None:
        while not condition(await self._look()):
            await self._rest(_GAP)
