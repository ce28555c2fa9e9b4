"""The variables of the environment: `EVERBEAT_<SECTION>_<FIELD>`. Pure: the variables are given.

An empty variable counts as not set. A variable that looks like one of ours but is none is refused; others that only
share the prefix are left alone, such as those Kubernetes makes for a service of that name.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from everbeat.config.catalogue import FILE_ONLY, OTHER_VARIABLES, PREFIX, catalogue, suggestion, variables
from everbeat.config.found import Found, Source, gather
from everbeat.config.setting import SECTIONS

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
_ALIKE = 0.85


def read(environment: Mapping[str, str]) -> Source:
    ours = {name: text for name, text in environment.items() if name.startswith(PREFIX) and text}
    known = variables()
    found: list[Found] = []
    problems: list[str] = []
    for name in sorted(ours):
        key = known.get(name)
        if key is None:
            problems += _unknown(name, known)
            continue
        entry = catalogue()[key]
        value = entry.rule.from_text(ours[name])
        wrong = entry.rule.problems(name, value)
        problems += wrong
        if not wrong:
            found.append(Found(key=entry.key, value=value, name=name))
    return gather(found, problems)


def _unknown(name: str, known: Mapping[str, str]) -> Iterator[str]:
    if name in OTHER_VARIABLES or _SERVICE_LINK.fullmatch(name):
        return
    if name.removeprefix(PREFIX).lower() in FILE_ONLY:
        yield f"{name} is not read: give it in code or in a file"
        return
    section = next((f"{one.upper()}_" for one in SECTIONS if one and name.startswith(f"{PREFIX}{one.upper()}_")), None)
    if section is not None:
        yield f"{name} is no setting; {suggestion(name, _after(PREFIX + section, known), prefix=PREFIX + section)}"
    elif near := difflib.get_close_matches(name[len(PREFIX) :], _after(PREFIX, [*known, *OTHER_VARIABLES]), 1, _ALIKE):
        yield f"{name} is no setting; did you mean {PREFIX}{near[0]}?"


def _after(prefix: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
