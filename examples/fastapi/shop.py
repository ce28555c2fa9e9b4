"""A shop that stores an order and the task for its receipt in one transaction.

    export EVERBEAT_DATABASE_URL=postgresql://shop@localhost/shop
    everbeat worker start shop:app
    uvicorn shop:api

If the request fails, there is neither an order nor a task; if it is answered, there are both, whatever dies next.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from everbeat import Everbeat, ResultTimeout, RetryPolicy, TaskFailed, TaskNotFound

URL = os.environ["EVERBEAT_DATABASE_URL"]

app = Everbeat(URL)
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)  # here and not at import: workers import this file too
    yield


api = FastAPI(lifespan=lifespan)


@app.task(retry=RetryPolicy(max_attempts=5))
def make_receipt(number: int, item: str) -> str:
    return f"receipt of order {number}: {item}"


def a_session() -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@api.post("/orders", status_code=202)
def order(item: str, session: Annotated[Session, Depends(a_session)]) -> dict[str, str]:
    with session.begin():
        new = Order(item=item)
        session.add(new)
        session.flush()  # gives it its number
        receipt = make_receipt.options(connection=session).enqueue(new.number, item)
        if item == "nothing":
            raise HTTPException(422, "nothing is not for sale")
    return {"order": str(new.number), "task": receipt.id}


@api.get("/tasks/{task_id}")
async def result(task_id: str, wait: float = 0) -> dict[str, str | None]:
    """Waiting holds no thread."""
    try:
        handle = make_receipt.handle(task_id)
        return {"status": "COMPLETED", "result": await handle.aresult(timeout=min(max(wait, 0), 30))}
    except ResultTimeout:
        return {"status": await handle.astatus(), "result": None}
    except TaskFailed as failure:
        return {"status": "FAILED", "result": failure.message}
    except (TaskNotFound, ValueError) as error:
        raise HTTPException(404, f"there is no task {task_id}") from error
