"""What a run can say: a result, an exception, or one of four outcomes, returned or raised."""

import asyncio
from datetime import timedelta

from aiopgq import App, Backoff, Cancel, Fail, Failure, Retry, Snooze, current_job

jobs = App()


class Busy(Exception): ...


class Gone(Exception): ...


# region outcomes
@jobs.task(max_attempts=5, backoff=Backoff(base=60, factor=2, cap=3600), fail_on=(Gone,), timeout=30)
async def crawl(url: str) -> str | Retry | Snooze | Cancel | Fail:
    match url:
        case "busy":
            return Retry(after=30)  # again in 30 s, an attempt is spent; Retry() asks the backoff
        case "closed":
            return Snooze(timedelta(hours=8))  # again later, no attempt is spent
        case "unwanted":
            return Cancel("nobody wants it any more")
        case "nonsense":
            return Fail("not a URL")  # a dead letter at once
        case "gone":
            raise Gone(url)  # a dead letter at once: fail_on
        case "broken":
            raise OSError("connection reset")  # again as the backoff says, after the last attempt a dead letter
        case _:
            return f"page {url}"


# endregion


# region backoff
def patient(failure: Failure) -> float | None:
    """Any function from a failure to seconds will do; None makes a dead letter."""
    if isinstance(failure.error, Busy):
        return 60.0 * failure.attempt
    return None


@jobs.task(backoff=patient)
async def upload(name: str) -> None:
    current_job().progress(50, stage="half of it")
    raise Busy if name == "large" else ValueError(name)


# endregion


async def main() -> None:
    await jobs.migrate()
    async with jobs:
        urls = ("busy", "closed", "unwanted", "nonsense", "gone", "broken", "fine")
        handles = await jobs.enqueue_many(
            [*(crawl.call(url) for url in urls), upload.call("large"), upload.call("small")]
        )
        await jobs.worker(burst=True).run()

        for handle in handles:
            job = await handle.info()
            [argument] = job.args.values()
            print(f"{argument}: {job.status}, attempts {job.attempts}, {job.last_error or job.result}")


if __name__ == "__main__":
    asyncio.run(main())
