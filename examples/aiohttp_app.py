"""aiohttp with a worker inside, and asyncpg.

Run it with DATABASE_URL=postgresql://user:password@host/database python -m aiohttp.web aiohttp_app:make_app
"""

import os
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import asyncpg
from aiohttp import web

from aiopgq import App
from aiopgq.errors import JobNotFound, ResultTimeout

jobs = App()
POOL = web.AppKey("POOL", asyncpg.Pool)


@jobs.task
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


async def sign_up(request: web.Request) -> web.Response:
    email = (await request.json())["email"]
    async with request.app[POOL].acquire() as connection, connection.transaction():
        user_id = await connection.fetchval("INSERT INTO users (email) VALUES ($1) RETURNING id", email)
        job = await send_welcome.options(connection=connection).enqueue(user_id)
    return web.json_response(str(job.id), status=201)


async def result(request: web.Request) -> web.Response:
    job = send_welcome.handle(UUID(request.match_info["id"]))
    try:
        return web.json_response(await job.result(timeout=10))
    except JobNotFound:
        raise web.HTTPNotFound from None
    except ResultTimeout:
        return web.json_response(None, status=202)


async def pool(app: web.Application) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1) as app[POOL]:
        yield


def make_app(_: Sequence[str] = ()) -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(pool)
    app.cleanup_ctx.append(jobs.worker(concurrency=10).cleanup_ctx)
    app.router.add_post("/users", sign_up)
    app.router.add_get("/jobs/{id}/result", result)
    return app
