"""Enqueue in your own transaction: the job is there if you commit, and was never there if you do not.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database.
"""

import asyncio
import os

import asyncpg
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiopgq import App

jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)


@jobs.task
async def send_welcome(user_id: int, locale: str = "en") -> str:
    return f"welcome in {locale}, user {user_id}"


# region session
async def sign_up(session: AsyncSession, email: str) -> int:
    user = User(email=email)
    session.add(user)
    await session.flush()
    await send_welcome.options(connection=session).enqueue(user.id)
    return user.id


# endregion


# region asyncpg
async def sign_up_with_asyncpg(connection: asyncpg.Connection, email: str) -> int:
    async with connection.transaction():
        user_id: int = await connection.fetchval("INSERT INTO users (email) VALUES ($1) RETURNING id", email)
        await send_welcome.options(connection=connection, delay=1).enqueue(user_id, locale="de")
    return user_id


# endregion


async def main() -> None:
    dsn = os.environ["DATABASE_URL"]
    await jobs.migrate()
    engine = create_async_engine(dsn)
    async with engine.begin() as made:
        await made.run_sync(Base.metadata.create_all)
    connection = await asyncpg.connect(dsn.replace("+asyncpg", ""))
    new_session = async_sessionmaker(engine)

    async with new_session.begin() as session:
        print("committed: user", await sign_up(session, "ada@example.org"))
    async with new_session() as session:
        print("rolled back: user", await sign_up(session, "bob@example.org"))
        await session.rollback()
    print("committed: user", await sign_up_with_asyncpg(connection, "eve@example.org"))
    await connection.close()
    await engine.dispose()

    async with jobs:
        for job in reversed(await jobs.inspector.jobs()):
            print(f"{job.status}: {job.task} {job.args}")


if __name__ == "__main__":
    asyncio.run(main())
