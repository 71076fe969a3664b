"""Tasks of a reusable package: declared on a Router, made tasks of an App by the program that uses them."""

import asyncio

from aiopgq import App, Router
from aiopgq.errors import TaskNotIncluded

# The package: it knows no App.

mail = Router(queue="mail")


@mail.task(name="send", max_attempts=5, timeout=30)
async def send(to: str, text: str) -> str:
    return f"to {to}: {text}"


async def send_all(recipients: list[str], text: str) -> None:
    for to in recipients:
        await send.enqueue(to, text)


# The program.

jobs = App()


async def main() -> None:
    try:
        await send_all(["ada"], "too early")
    except TaskNotIncluded as error:
        print(error)

    jobs.include(mail, prefix="mail.")
    print("tasks:", *jobs.tasks)
    await jobs.migrate()
    async with jobs, jobs.worker({"mail": 2}):
        await send_all(["ada", "bob"], "hello")
        job = await send.enqueue("eve", "hello")
        print(await job.result())


if __name__ == "__main__":
    asyncio.run(main())
