"""All mutations, in the order in which the protocol has their rules."""

from tests.mutation import machine, sessions, tasks
from tests.mutation.weakening import FOUND, Mutation

__all__ = ["MUTATIONS", "machine", "sessions", "tasks"]

MUTATIONS: dict[str, Mutation] = dict(sorted(FOUND.items(), key=lambda one: int(one[1].rule)))
