"""Results of nodes as arguments of others, byte by byte.

Arguments are stored with `null` in the place of every result that belongs there, and beside them a list of these
places. Nobody has to understand either: what is put together is JSON because each of its parts is. Nothing in the data
can be taken for a place, because places are counted in bytes and not marked by words.
"""

import json
from collections.abc import Mapping, Sequence

import msgspec

from everbeat.model.flow import ITEM, Reference

HOLE = b"null"
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def dump(references: Sequence[Reference]) -> str | None:
    return json.dumps(references, separators=(",", ":")) if references else None


def load(stored: str | None) -> list[Reference]:
    """ValueError if it is no list of places."""
    if stored is None:
        return []
    said = json.loads(stored)
    try:
        found = [(at, node) for at, node in said]
    except TypeError as error:
        raise ValueError(f"references are not understood: {stored[:100]}") from error
    if not all(isinstance(at, int) and isinstance(node, int) for at, node in found):
        raise ValueError(f"references are not understood: {stored[:100]}")
    return found


def put_in(args: bytes, references: Sequence[Reference], values: Mapping[int, bytes]) -> bytes:
    """The arguments with their values. ValueError if a value is missing or its place is not there."""
    parts: list[bytes] = []
    done = 0
    for at, node in references:
        if at < done or args[at : at + len(HOLE)] != HOLE or node not in values:
            raise ValueError(f"there is no value for byte {at} of the arguments, or no place")
        parts += (args[done:at], values[node])
        done = at + len(HOLE)
    return b"".join((*parts, args[done:]))


def put_item_in(args: bytes, references: Sequence[Reference], item: bytes) -> tuple[bytes, list[Reference]]:
    """The arguments with the element of a map, and the places that are left."""
    mine = [reference for reference in references if reference[1] == ITEM]
    longer = len(item) - len(HOLE)
    left = [
        (at + longer * sum(place < at for place, _ in mine), node) for at, node in references if node != ITEM
    ]  # fmt: skip
    return put_in(args, mine, {ITEM: item}), left


def elements(raw: bytes) -> list[bytes]:
    """Those of a JSON array. ValueError if it is none."""
    try:
        return [bytes(element) for element in _ELEMENTS.decode(raw)]
    except msgspec.MsgspecError as error:
        raise ValueError(f"the value is no list: {error}") from error


def as_list(values: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"]"


def as_object(values: Mapping[str, bytes]) -> bytes:
    members = (json.dumps(name).encode() + b":" + value for name, value in values.items())
    return b"{" + b",".join(members) + b"}"
