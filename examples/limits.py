"""What keeps jobs waiting although they are due: limits, order and pauses, over all workers together."""

import asyncio
from collections import Counter

from aiopgq import App, Limit

jobs = App()
running: list[int] = []
most: Counter[int] = Counter()
ran: list[str] = []


# region limit
@jobs.task(limit=Limit(key="account_id", running=2))  # of each account two at once, over all workers
async def sync_account(account_id: int) -> None:
    running.append(account_id)
    most[account_id] = max(most[account_id], running.count(account_id))
    await asyncio.sleep(0.01)
    running.remove(account_id)


@jobs.task(limit=Limit(rate=100, per=60, burst=10))  # a hundred a minute, ten at the same moment at most
async def call_partner(number: int) -> None: ...


# endregion


# region order
@jobs.task(ordered_by="order_id", on_dead="block")
async def ship(order_id: int, step: str) -> None:
    ran.append(f"{order_id} {step}")


# endregion

# region queue
jobs.limit_queue("mail", Limit(running=50, rate=10, per=1))
# endregion


@jobs.task(queue="mail")
async def send(to: str) -> None:
    ran.append(f"mail to {to}")


async def main() -> None:
    await jobs.migrate()
    async with jobs:
        # region pause
        await jobs.pause(queue="mail")  # or pause(task="myapp.mail.send")
        # endregion
        await send.enqueue("ada")
        await jobs.enqueue_many([sync_account.call(n % 3) for n in range(30)])
        await jobs.enqueue_many([ship.call(n, step) for step in ("pay", "pack", "send") for n in (1, 2)])
        await call_partner.enqueue(1)
        await jobs.worker(burst=True).run()
        print("most of each account at once:", *most.values())
        for order in ("1", "2"):
            print(f"order {order}:", *[one.split()[1] for one in ran if one.startswith(order)])
        print("mail:", *[one for one in ran if one.startswith("mail")])
        # region resume
        await jobs.resume(queue="mail")
        # endregion
        await jobs.worker(burst=True).run()
        print("mail:", *[one for one in ran if one.startswith("mail")])


if __name__ == "__main__":
    asyncio.run(main())
