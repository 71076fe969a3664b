import asyncio

from aiopgq import App

jobs = App("embedded:./data")  # or postgresql://user:password@host/database


@jobs.task
async def greet(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    await jobs.migrate()
    async with jobs, jobs.worker():
        job = await greet.enqueue("world")
        print(await job.result())


if __name__ == "__main__":
    asyncio.run(main())
