"""Let workflows go on that something tore: a reaper looks at some of them, a start-up and a person at all."""

from everbeat.store.interface import Store


def mend_workflows(store: Store, *, all_of_them: bool = False) -> tuple[list[str], list[str]]:
    """Those that go on, and those that could not be mended. `all_of_them`: also those that were set aside before."""
    mended: list[str] = []
    stuck: list[str] = []
    after = ""
    while True:
        done, left, after = store.mend_workflows(after=after, all_of_them=all_of_them)
        mended += done
        stuck += left
        if not after:
            return mended, stuck
