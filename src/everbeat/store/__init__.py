"""The only place with SQL. Everything above speaks to `Store`, in the verbs of a task's life."""
