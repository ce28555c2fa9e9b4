"""One statement that commits itself, known by name to the session, with values that are bytes already.

What senders do all the time has no need of a batch: the statement says which types its values have, so nobody looks at
them, and libpq sends it as one message and hears its one answer without a pipeline around it.

As in a batch, a connection on which the exchange was broken off is closed, and so is one that has forgotten the name.
"""

from collections.abc import Sequence

import psycopg
from psycopg import pq
from psycopg.generators import execute

from everbeat.store.postgres.batch import FAILED, Prepared, Statement, failure
from everbeat.store.postgres.limited import LimitedConnection

BINARY = pq.Format.BINARY


def run(connection: LimitedConnection, statement: Statement, values: Sequence[bytes | None]) -> pq.abc.PGresult | None:
    """What the server says. None: it is not known by name, and was not sent."""
    prepared = connection.prepared
    if prepared is None:
        return None
    name = prepared.known.get(statement) or _make_known(connection, prepared, statement)
    if name is None:
        return None
    connection.pgconn.send_query_prepared(name, values, [BINARY] * len(values), BINARY)
    return _answer(connection)


def _make_known(connection: LimitedConnection, prepared: Prepared, statement: Statement) -> bytes | None:
    name = prepared.name_of(statement)
    if name is not None:
        connection.pgconn.send_prepare(name, statement[0], param_types=statement[1])
        _answer(connection)
        prepared.know(statement)
    return name


def _answer(connection: LimitedConnection) -> pq.abc.PGresult:
    try:
        if connection.pgconn.flush():  # more than the network takes at once
            answer: pq.abc.PGresult = connection.wait(execute(connection.pgconn))[-1]
        else:
            answer = connection.hear()
    except psycopg.Error:
        raise
    except BaseException:  # an interrupt: nobody has heard the rest
        connection.close()
        raise
    if answer.status == FAILED:
        raise failure(connection, answer)
    return answer
