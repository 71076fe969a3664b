"""A web app with jobs that ignore their cancellation; `test_embedding.py` starts and stops it."""

import asyncio
import time

from fastapi import FastAPI

from aiopgq import App, current_job

jobs = App()
app = FastAPI(lifespan=jobs.worker(shutdown_grace=2).lifespan)
began = set()


@jobs.task
async def stubborn():
    began.add("stubborn")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@jobs.task
def thread():
    began.add("thread")
    while not current_job().should_stop:
        time.sleep(0.01)
    time.sleep(60)


@jobs.task
async def patient():
    began.add("patient")
    await asyncio.sleep(60)


@jobs.task
async def quick():
    began.add("quick")
    await asyncio.sleep(0.5)


@app.post("/jobs/{name}")
async def start(name: str):
    return (await jobs.task_named(f"stubborn_app.{name}").enqueue()).id


@app.get("/began")
async def look():
    return sorted(began)
