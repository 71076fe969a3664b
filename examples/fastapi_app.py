"""FastAPI with a worker inside.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database uvicorn fastapi_app:app
"""

import os
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiopgq import App
from aiopgq.errors import JobNotFound

Session = async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"]))
# region embed
jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL
app = FastAPI(lifespan=jobs.worker(concurrency=10).lifespan)  # or jobs.lifespan, to enqueue only
# endregion


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)


class NewUser(BaseModel):
    email: str


@jobs.task
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


@jobs.task
def make_thumbnail(url: str) -> str:
    """A `def` task: it runs in a thread."""
    return url.replace(".png", ".thumbnail.png")


# region endpoint
@app.post("/users", status_code=201)
async def sign_up(new: NewUser) -> UUID:
    async with Session.begin() as session:
        user = User(email=new.email)
        session.add(user)
        await session.flush()
        job = await send_welcome.options(connection=session).enqueue(user.id)
    return job.id


# endregion


@app.exception_handler(IntegrityError)
async def refuse(*_: object) -> JSONResponse:
    return JSONResponse({"detail": "there is such a user"}, 409)


@app.post("/thumbnails", status_code=202)
def add_thumbnail(url: str) -> UUID:
    """A `def` endpoint: FastAPI runs it in a thread, too."""
    return make_thumbnail.enqueue_sync(url).id


@app.get("/jobs/{job_id}")
async def look(job_id: UUID) -> dict[str, Any]:
    try:
        info = await jobs.handle(job_id).info()
    except JobNotFound:
        raise HTTPException(404, "no such job") from None
    return {"task": info.task, "status": info.status, "result": info.result}
