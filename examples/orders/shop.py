"""Takes orders: each is written together with the event about it, and a relay brings the events to NATS JetStream.

Run it with DATABASE_URL=postgresql+asyncpg://user:password@host/database and NATS_URL=nats://host, beside billing.py:
uvicorn --app-dir examples/orders shop:app
"""

import os

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aiopgq import App
from aiopgq.outbox import Event
from aiopgq.outbox.nats import NatsPublisher

Session = async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"]), expire_on_commit=False)
jobs = App()  # the database of AIOPGQ_DSN or DATABASE_URL


def subject(event: Event) -> str:
    return f"orders.{event.event_type}"


# region relay
nats = NatsPublisher(os.environ.get("NATS_URL", "nats://localhost"), route=subject)
app = FastAPI(lifespan=jobs.outbox.relay(nats).lifespan)
# endregion


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str] = mapped_column(unique=True)
    cents: Mapped[int]


class NewOrder(BaseModel):
    reference: str
    cents: int


# region place
@app.post("/orders", status_code=201)
async def place(new: NewOrder) -> int:
    async with Session.begin() as session:
        order = Order(reference=new.reference, cents=new.cents)
        session.add(order)
        await session.flush()
        await jobs.outbox.add(
            session,
            aggregate_type="order",
            aggregate_id=order.id,
            event_type="placed",
            payload={"id": order.id, "cents": order.cents},
        )
    return order.id


# endregion


@app.exception_handler(IntegrityError)
async def refuse(*_: object) -> JSONResponse:
    return JSONResponse({"detail": "there is such an order"}, 409)
