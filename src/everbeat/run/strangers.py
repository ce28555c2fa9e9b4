"""Fails tasks whose name no worker knows, after they have waited for one in vain (PROTOCOL 26)."""

from everbeat.store.interface import Store

GAP_CHECKS = 10
"""So many checks may be missed, and it is still one watch: others look as well, and workers are restarted."""


def refuse_unknown(store: Store, *, after_ms: int | None, check_interval_ms: int) -> None:
    if after_ms is None:
        return
    gap_us = GAP_CHECKS * check_interval_ms * 1000
    while store.refuse_unknown(after_us=after_ms * 1000, gap_us=gap_us):
        continue
