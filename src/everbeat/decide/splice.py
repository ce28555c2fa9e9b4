"""Results of nodes as arguments of others, byte by byte.

Arguments are stored with `null` in the place of every result that belongs there, and beside them a list of these
places. Nobody has to understand either: what is put together is JSON because each of its parts is. Nothing in the data
can be taken for a place, because places are counted in bytes and not marked by words.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import msgspec

from everbeat.model.flow import ITEM, Named, Reference

Place = tuple[int, Named]
"""Where in the arguments, and what belongs there."""
HOLE = b"null"
SHORT = 100
ELEMENT: Named = (ITEM, 0)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_REFERENCES = msgspec.json.Decoder(list[list[int]])


def dump(references: Sequence[Reference]) -> str | None:
    return json.dumps(references, separators=(",", ":")) if references else None


def load(stored: str | None) -> Sequence[Place]:
    """ValueError if it is no list of places."""
    if stored is None:
        return ()
    return _known(stored) if len(stored) <= SHORT else _lately(stored)


@lru_cache(maxsize=1024)
def _known(stored: str) -> Sequence[Place]:
    """Remembered: all nodes of a fan have the same."""
    return _places(stored)


@lru_cache(maxsize=2)
def _lately(stored: str) -> Sequence[Place]:
    """A join takes its results where it is enqueued, and again where it is claimed: in the same flush, most of the
    time."""
    return _places(stored)


def _places(stored: str) -> list[Place]:
    try:
        said = _REFERENCES.decode(stored)
    except msgspec.MsgspecError as error:
        raise ValueError(f"references are not understood: {stored[:100]}") from error
    if not {len(one) for one in said} <= {2, 3}:
        raise ValueError(f"references are not understood: {stored[:100]}")
    return [(one[0], (one[1], one[2] if len(one) == 3 else 0)) for one in said]


def put_in(args: bytes, places: Sequence[Place], values: Mapping[Named, bytes]) -> bytes:
    """The arguments with their values. ValueError if a value is missing or its place is not there."""
    parts: list[bytes] = []
    done = 0
    for at, named in places:
        value = values.get(named)
        if at < done or value is None or not args.startswith(HOLE, at):
            raise ValueError(f"there is no value for byte {at} of the arguments, or no place")
        parts.append(args[done:at])
        parts.append(value)
        done = at + len(HOLE)
    parts.append(args[done:])
    return b"".join(parts)


def put_in_each(several: Sequence[bytes], places: Sequence[Place], values: Mapping[Named, bytes]) -> list[bytes | None]:
    """`put_in` for many arguments with the same places. None for each that lacks a value or a place."""
    if len(places) != 1:
        return [_put_in_if_possible(args, places, values) for args in several]
    ((at, named),) = places  # nearly all, and by the thousand
    value, behind = values.get(named), at + len(HOLE)
    if value is None or at < 0:
        return [None] * len(several)
    return [args[:at] + value + args[behind:] if args.startswith(HOLE, at) else None for args in several]


def _put_in_if_possible(args: bytes, places: Sequence[Place], values: Mapping[Named, bytes]) -> bytes | None:
    try:
        return put_in(args, places, values)
    except ValueError:
        return None


def put_some_in(args: bytes, places: Sequence[Place], values: Mapping[Named, bytes]) -> tuple[bytes, list[Place]]:
    """The arguments with those values that are known now, and the places that are left."""
    left: list[Place] = []
    longer = 0
    for at, named in places:
        if named in values:
            longer += len(values[named]) - len(HOLE)
        else:
            left.append((at + longer, named))
    return put_in(args, [place for place in places if place[1] in values], values), left


def leave_out(args: bytes, places: Sequence[Place], absent: Collection[Named]) -> tuple[bytes, list[Place]]:
    """The arguments without the values that are `absent`, and the places that are left. An absent element of a list is
    removed; an absent argument or member of an object stays null."""
    kept = bytearray()
    left: list[Place] = []
    done = 0
    for at, named in places:
        if at < done or args[at : at + len(HOLE)] != HOLE:
            raise ValueError(f"there is no place at byte {at} of the arguments")
        kept += args[done:at]
        done = at
        if named not in absent:
            left.append((len(kept), named))
        elif kept.endswith((b"[", b",")):
            done += len(HOLE)
            if args[done : done + 1] == b",":
                done += 1
            elif kept.endswith(b","):
                del kept[-1:]
    return bytes(kept) + args[done:], left


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
