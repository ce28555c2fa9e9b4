"""What must not be read: passwords in URLs and in free text, and the values that an application calls secret.

Errors are cleaned where they are made, in the process that ran the task: what was never stored can not be shown by a
command, an event, a report, a log or a query (PROTOCOL 41).
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

MASK = "***"
SHORTEST_SECRET = 3
"""Shorter values are left in a text: they would be found in every word of it."""
_USER_SECRET = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
_QUERY_SECRET = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
_USER_SECRET_IN_TEXT = re.compile(r"""(\w://[^\s:/@'"]*:)[^\s'"]*@""")
_SETTING_IN_TEXT = re.compile(
    r"""(\b(?:ssl)?password=)(?!\*{3}(?:[\s&:]|$))('[^']*'|"[^"]*"|[^\s&'"]+)""", re.IGNORECASE
)


def masked(url: str) -> str:
    """The URL with every password replaced; rather too much than too little where the URL is not well formed."""
    return _QUERY_SECRET.sub(rf"\1{MASK}", _USER_SECRET.sub(rf"\1{MASK}@", url))


def located(url: str, schema: str | None) -> str:
    """Where the tables are, for people. Two stores may share a database."""
    return masked(url) if schema is None else f"{masked(url)}, schema {schema}"


def without_passwords(text: str) -> str:
    """A text of any kind, with the passwords of the URLs and connection strings in it replaced."""
    if "://" in text:
        text = _USER_SECRET_IN_TEXT.sub(rf"\1{MASK}@", text)
    return _SETTING_IN_TEXT.sub(rf"\1{MASK}", text) if "password" in text.lower() else text


def without(secrets: Collection[str], text: str) -> str:
    """The text without these values, the longest first: one may be a part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def secrets_in(raw: bytes, names: Collection[str]) -> frozenset[str]:
    """Every value under one of these names in a JSON text, however deep, as a text would show it."""
    if not names:
        return frozenset()
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return frozenset()
    wanted = {name.lower() for name in names}
    return frozenset(text for text in _under(value, wanted, secret=False) if len(text) >= SHORTEST_SECRET)


def _under(value: Any, names: Collection[str], *, secret: bool) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _under(inner, names, secret=secret or name.lower() in names)
        case list():
            for inner in value:
                yield from _under(inner, names, secret=secret)
        case str() if secret:
            yield value
            yield repr(value)[1:-1]
        case int() | float() if secret and not isinstance(value, bool):
            yield str(value)
