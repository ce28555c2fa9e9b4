"""What is erased is not in the files any more: neither in the database nor in its log."""

from pathlib import Path

from tests.words import carry_out, claim_one, completed, enqueue, settle

from everbeat.model.order import Order
from everbeat.store.sqlite.store import SQLiteStore

SMALL, LARGE = b"the secret of a small task", b"the secret of a large task " * 2000


def test_the_bytes_of_an_erased_task_are_overwritten(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "erase.db", durability="normal")
    for task_id, secret in (("small", SMALL), ("large", LARGE)):
        enqueue(store, id=task_id, args=secret)
        settle(store, claim_one(store), completed(secret))
    store.database.checkpoint("TRUNCATE")

    carry_out(store, Order.ERASE)

    store.close()
    left = b"".join(path.read_bytes() for path in tmp_path.glob("erase.db*") if path.is_file())
    assert b"the secret" not in left
    assert b"small" in left
