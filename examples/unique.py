"""One unfinished job a key, and queues that do not grow without end."""

import asyncio

from aiopgq import App, MaxPending, Unique
from aiopgq.errors import QueueFull

# region bounded
jobs = App(max_pending={"mail": 3, "import": MaxPending(500, on_full="wait")})
# endregion


# region declare
@jobs.task(unique="args")  # one unfinished job for the same arguments
async def reindex(document: int) -> None: ...


@jobs.task(unique=Unique(lambda user_id, **_: f"user:{user_id}", on_conflict="replace", period=3600))
async def remind(user_id: int, text: str) -> str:
    return f"user {user_id}: {text}"


@jobs.task(unique=Unique("args", on_conflict="debounce", max_delay=300))
async def save_draft(document: int) -> None: ...


# endregion


@jobs.task(queue="mail")
async def send(number: int) -> None: ...


async def skip() -> None:
    # region skip
    first = await reindex.enqueue(7)
    again = await reindex.enqueue(7)
    print(again.existing, again.id == first.id)  # True True
    # endregion


async def replace() -> None:
    await remind.options(delay=600).enqueue(42, "come back")
    job = await remind.options(delay=0).enqueue(42, "come back, it is nice here")
    await jobs.drain()
    print(f"replace: {await job.result()}")
    later = await remind.enqueue(42, "come back!")
    print(f"period: {'the same job' if later.id == job.id else 'another job'}, {(await later.info()).status}")


async def debounce() -> None:
    # region debounce
    later = save_draft.options(delay=60)
    await later.enqueue(7)
    await later.enqueue(7)  # a minute from now, but no later than five minutes after the first
    # endregion
    print(f"debounce: {len(await jobs.inspector.jobs(task=save_draft.name))} job")


async def main() -> None:
    await jobs.migrate()
    async with jobs:
        await skip()
        await replace()
        await debounce()
        # region full
        try:
            await jobs.enqueue_many([send.call(number) for number in range(5)])
        except QueueFull as error:
            print(f"{error.queue}: {error.pending} jobs of {error.max_pending}")
        # endregion


if __name__ == "__main__":
    asyncio.run(main())
