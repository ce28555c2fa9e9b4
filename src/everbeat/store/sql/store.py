"""All that a store does, on any database that speaks SQL. Left to the kinds of store: how they are opened, where they
are, and how their files or tables are checked."""

from collections.abc import Sequence

from everbeat.model.task import Enqueued, NewTask
from everbeat.store.sql.commanded import Commanded
from everbeat.store.sql.flowing import Flowing
from everbeat.store.sql.group import GroupCommit
from everbeat.store.sql.keeping import Keeping
from everbeat.store.sql.recovering import Recovering
from everbeat.store.sql.working import Working
from everbeat.store.verbs import living
from everbeat.store.verbs.sending import kinds_of


class SQLStore(Working, Recovering, Commanded, Flowing, Keeping):
    _sending: GroupCommit

    @property
    def store_id(self) -> str:
        """Read each time: a restored store is another one."""
        with self.database.read() as tx:
            return living.store_id(tx)

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        return self._sending.enqueue(tasks)

    def _ring_for(self, tasks: Sequence[NewTask]) -> None:
        self.bells.ring_workers({(kind.queue, kind.name) for kind in kinds_of(tasks)})
