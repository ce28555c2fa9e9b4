"""`everbeat` of the version after this one, which knows more steps: newer.py [--crash-at POINT] -- WORDS."""

from everbeat.store import schema
from everbeat.store.schema import Step
from everbeat.testing import main

ADDS = Step(2, "ALTER TABLE everbeat_tasks ADD COLUMN later TEXT;\nCREATE TABLE everbeat_later (id INTEGER);\n")
FILLS = Step(
    3,
    "-- min_reader: 2\n"
    "UPDATE everbeat_tasks SET later = id;\n"
    "INSERT INTO everbeat_later (id) SELECT seq FROM everbeat_tasks;\n"
    "DROP VIEW everbeat_tasks_readable;\n",
)

if __name__ == "__main__":
    known = [*schema.steps(), ADDS, FILLS]
    setattr(schema, "steps", lambda: known)  # noqa: B010 - for this process only
    main()
