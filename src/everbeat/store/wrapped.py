"""The driver's connection below what users work with: Django's and SQLAlchemy's connections, a SQLAlchemy session.

Nothing of these libraries is imported: what they give is known by its shape.
"""

from typing import Any


def driver_connection(given: Any) -> Any:
    """What the driver itself would call a connection; `given` if it is none of these."""
    found = given
    if hasattr(found, "ensure_connection"):  # Django
        found.ensure_connection()
        return found.connection
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
