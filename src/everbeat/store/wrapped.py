"""The driver's connection below what users work with: Django's and SQLAlchemy's connections, a SQLAlchemy session.

Nothing of these libraries is imported: what they give is known by its shape.
"""

import inspect
from typing import Any


def driver_connection(given: Any) -> Any:
    """What the driver itself would call a connection; `given` if it is none of these. ValueError if that is one that
    has to be awaited: nothing that we do on a connection is."""
    _refuse_async(given, given)
    found = _unwrapped(given)
    _refuse_async(found, given)
    return found


def _refuse_async(found: Any, given: Any) -> None:
    if inspect.iscoroutinefunction(getattr(type(found), "execute", None)):
        raise ValueError(
            f"connection= takes a synchronous connection, and {kind_of(given)} is asynchronous, or what is below it. "
            "Make the whole transaction with a synchronous one (psycopg.connect, sqlalchemy.orm.Session) in "
            "asyncio.to_thread, or send without connection= after your commit. Nothing was sent."
        )


def _unwrapped(given: Any) -> Any:
    found = given
    if hasattr(found, "ensure_connection"):  # Django
        found.ensure_connection()
        return found.connection
    if hasattr(found, "exec_driver_sql") and found.closed:  # of SQLAlchemy, as the next
        raise ValueError(f"the connection, {kind_of(given)}, is closed. Nothing was sent.")
    if callable(getattr(found, "connection", None)):  # a SQLAlchemy session
        found = found.connection()
    if hasattr(found, "exec_driver_sql"):  # a SQLAlchemy connection, which commits only what it knows to have begun
        if not found.in_transaction():
            found.begin()
        found = found.connection
    return getattr(found, "driver_connection", found)


def kind_of(given: Any) -> str:
    """Its type, for people: the thing itself may show a password."""
    return f"{type(given).__module__}.{type(given).__qualname__}"
