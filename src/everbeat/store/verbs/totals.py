"""Totals and moments that outlive what they were counted from, for metrics: written in the transaction that counts."""

import json
from collections.abc import Iterable, Mapping

from everbeat.model.total import Total
from everbeat.store.reading import object_in
from everbeat.store.transaction import Transaction

ADD = """
INSERT INTO everbeat_metrics (name, labels, value) VALUES (?, ?, ?)
ON CONFLICT (name, labels) DO UPDATE SET value = everbeat_metrics.value + excluded.value"""
SET = """
INSERT INTO everbeat_metrics (name, labels, value) VALUES (?, ?, ?)
ON CONFLICT (name, labels) DO UPDATE SET value = excluded.value"""
ONE = "SELECT value FROM everbeat_metrics WHERE name = ? AND labels = '{}'"
ALL = "SELECT name, labels, value FROM everbeat_metrics ORDER BY name, labels"


def add(tx: Transaction, totals: Iterable[Total]) -> None:
    rows = [(total.name, _key(total.labels), total.value) for total in totals]
    tx.many(ADD, sorted(rows))  # everybody adds in the same order, and nobody waits for ever


def note(tx: Transaction, name: str, value: float) -> None:
    tx.run(SET, (name, _key({}), value))


def noted(tx: Transaction, name: str) -> float | None:
    row = tx.one(ONE, (name,))
    return row[0] if row else None


def every(tx: Transaction) -> list[Total]:
    """Those that can be read: a row that was written by hand must not take the others from those who watch."""
    found = ((name, object_in(labels), value) for name, labels, value in tx.rows(ALL))
    return [
        Total(name=name, labels=labels, value=value)
        for name, labels, value in found
        if labels is not None and isinstance(name, str) and isinstance(value, int | float)
    ]


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))
