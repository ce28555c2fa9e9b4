"""The floor: the writes that Everbeat makes for a task, in the same batches, with nothing around them.

No processes, no encoding, no decisions: one connection, one table with the columns and indexes that these writes touch,
durable commits. A figure of Everbeat divided by the same figure here is the share of what the machine can do.
"""
