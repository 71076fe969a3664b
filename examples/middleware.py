import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from aiopgq import App, Call, CurrentJob, JobEvent, JobHandle, current_job

# region middleware
request_id = ContextVar("request_id", default="none")


class RequestId:
    async def enqueue(
        self, calls: Sequence[Call[Any]], proceed: Callable[[], Awaitable[list[JobHandle[Any]]]]
    ) -> list[JobHandle[Any]]:
        for call in calls:
            call.add_headers({"request-id": request_id.get()})
        return await proceed()

    async def run(self, job: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        request_id.set(job.headers.get("request-id", "none"))
        return await proceed()


jobs = App(middleware=[RequestId()])
# endregion


# region events
@jobs.on("failed")
async def tell_somebody(event: JobEvent) -> None:
    print(f"{event.task} failed in attempt {event.attempt}: {event.reason}")


# endregion


@jobs.task(max_attempts=1)
async def divide(a: int, b: int) -> float:
    print(f"attempt {current_job().attempt} on behalf of request {request_id.get()}")
    return a / b


async def main() -> None:
    logging.disable()
    async with jobs, jobs.worker():
        request_id.set("42")
        job = await divide.enqueue(6, 2)
        print(await job.result())
        await divide.enqueue(6, 0)
        await jobs.drain(raises=False)


if __name__ == "__main__":
    asyncio.run(main())
