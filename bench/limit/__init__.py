"""The floor: the writes that Everbeat makes, in the same batches, with nothing of Everbeat around them.

What it is. A store made by Everbeat itself, so the same tables, columns, checks, indexes and settings of the file or
table, in the same place; the same columns of the same rows are written, with ids of the same kind, each commit durable.

* A drain settles the tasks it holds and starts as many others, in one transaction. How many, is what Everbeat had on
  the average in the same run, counted in its store; the time is read from the same columns, in the same way.
* Sending one by one is one row, one commit. With several threads each hands its row to one that commits what has come
  by then, and waits for its commit: as in any group commit, the batches make themselves. With several processes each
  has a connection of its own.
* Sending many is one transaction.

It is the fastest plain code that was found for that: one statement for all rows of a batch, prepared, in one message;
on PostgreSQL, where one connection waits while another may work, the faster of two ways counts (drains by one
connection or two, as Everbeat may have two flushes under way; threads through one connection or with one each).

What it is not. There are no processes that run tasks, no functions, nothing is encoded but for the driver, and nothing
is asked: not who is alive, whether a queue is paused or limited, whether the one that settles still owns the task. No
queue can work like that; a figure of Everbeat divided by the same figure here says how much of the time is spent on
writing, and a share of 100 % would mean that all the rest costs nothing.
"""
