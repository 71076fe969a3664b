"""Schedules: declared on tasks, and made at run time."""

import asyncio

from aiopgq import App, current_job

jobs = App()


# region declared
@jobs.schedule("0 3 * * *", timezone="Europe/Berlin")
@jobs.schedule(every=3600, name="shallow clean-up", arguments={"deep": False}, misfire="skip")
@jobs.task
async def clean_up(deep: bool = True) -> str:
    scheduled_at = current_job().headers.get("scheduled_at", "now")
    return f"{'all' if deep else 'some'} before {scheduled_at}"


# endregion


@jobs.task
async def report(customer: int) -> str:
    return f"report for {customer}"


# region made
async def report_weekly(customer: int, timezone: str) -> None:
    name = f"report {customer}"
    await jobs.schedules.set(name, report.call(customer), "0 8 * * MON", timezone=timezone)


async def stop_reporting(customer: int) -> None:
    await jobs.schedules.remove(f"report {customer}")


# endregion


async def main() -> None:
    await jobs.migrate()
    async with jobs, jobs.worker():
        await report_weekly(42, "America/New_York")
        for schedule in await jobs.schedules.list():
            print(f"{schedule.name}: {schedule.when}")
        job = await jobs.schedules.run_now("report 42")
        print(await job.result())
        job = await jobs.schedules.run_now("shallow clean-up")
        print((await job.result())[:11])
        await stop_reporting(42)
        print(len(await jobs.schedules.list()))


if __name__ == "__main__":
    asyncio.run(main())
