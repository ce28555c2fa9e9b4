"""What is wrong with a server, in one line, with what a person can do about it. Passwords never get into it.

And which errors are of a statement or a value in it, and not of the server.
"""

import struct

import psycopg

from everbeat.secrecy import masked, without_passwords

ADVICE = (
    ("password authentication failed", "Check user and password in the database URL"),
    ("no password supplied", "Check user and password in the database URL"),
    ("no pg_hba.conf entry", "The server's pg_hba.conf must admit this user from this host"),
    ("Temporary failure in name resolution", "The name service does not answer"),
    ("resolve host", "Check the host in the database URL"),
    ("Name or service not known", "Check the host in the database URL"),
    ("Connection refused", "Start the server, or check host and port in the database URL"),
    ("failed: No such file or directory", "Start the server, or check host and port in the database URL"),
    ("invalid URI query parameter", "Check the database URL"),
    ("connection is bad: invalid ", "Check the database URL"),
    ("definition of service", "Check the database URL"),
    ("unrecognized configuration parameter", "Check options in the database URL"),
    ("invalid value for parameter", "Check options in the database URL"),
    ("too many clients", "Raise max_connections, or put a pooler before the server"),
    ("remaining connection slots", "Raise max_connections, or put a pooler before the server"),
    ("too many connections", "Raise the limit of the database or of the user"),
    ("permission denied for schema", "GRANT USAGE, CREATE ON SCHEMA to this user, or let its owner make the tables"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE to this user, and CREATE if it makes the schema"),
    ("permission denied for sequence", "GRANT USAGE on the everbeat_ sequences to this user"),
    ("permission denied", "GRANT SELECT, INSERT, UPDATE, DELETE on the everbeat_ tables to this user"),
    ("no schema has been selected", "The search path of this user leads to no schema that there is: make it, or name"
     " another one (EVERBEAT_BROKER_SCHEMA)"),
    ("read-only transaction", "This is a standby (add target_session_attrs=read-write to the URL), or"
     " default_transaction_read_only is on for this database, user or session"),
    ("No space left", "The server's disk is full"),
    ("lock timeout", "Somebody holds a lock: SELECT * FROM pg_stat_activity WHERE xact_start IS NOT NULL"),
)  # fmt: skip
FOR_A_PERSON = (
    "password authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist",
    "not permitted to log in", "not currently accepting connections", "Name or service not known",
    "No address associated with hostname", "nodename nor servname provided", "does not support SSL",
    "or newer is needed", "permission denied for database", "connection is bad: invalid ", "definition of service",
    "unrecognized configuration parameter", "invalid value for parameter",
)  # fmt: skip
"""Signs of what no waiting mends. A server may say it in another language: then a worker that starts waits, and says
why."""
DEFINITE = (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError)
REFUSED = (*DEFINITE, UnicodeError, OverflowError, struct.error)
MISSING = (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn,
           psycopg.errors.InvalidSchemaName)  # fmt: skip
"""Errors of a statement that tell of the store."""
IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
"""Somebody has a lock: for longer than we wait, or until he gets one that we have."""
SEVERAL = "Multiple connection attempts failed"


def told(error: psycopg.Error) -> str:
    """One sentence, or two."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines and lines[0].startswith(SEVERAL):
        lines = [line for line in lines if line.startswith("- ")][-1:] or lines
    said = lines[0].removeprefix("- ").rstrip(".") if lines else type(error).__name__
    advice = next((advice for sign, advice in ADVICE if sign in said), None)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName) and advice is None:
        return f"it has no tables of Everbeat, or not all ({clean(said)})"
    if isinstance(error, psycopg.errors.UndefinedColumn):
        return f"its tables are of another version of Everbeat ({clean(said)}). Upgrade this program"
    if 'database "' in said and said.endswith("does not exist"):
        return f"{clean(said)}. Create it, or check its name in the database URL"
    if 'role "' in said and said.endswith("does not exist"):
        return f"{clean(said)}. Create it, or check the user in the database URL"
    return clean(said) if advice is None else f"{clean(said)}. {advice}"


def may_pass(error: psycopg.Error) -> bool:
    """Whether it is the outage of a server, rather than something that a person has to put right."""
    said = str(error)
    return isinstance(error, psycopg.OperationalError) and not any(sign in said for sign in FOR_A_PERSON)


def clean(said: str) -> str:
    return masked(without_passwords(said))
