"""A configuration file as settings: TOML, YAML, or a part of pyproject.toml. Pure: the text is given.

Every key is checked, so a misspelled one is refused rather than ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everbeat.config.catalogue import STORE, catalogue, suggestion
from everbeat.config.dialect import translate
from everbeat.config.found import Found, Source, gather
from everbeat.config.urls import SQLITE

Lines = Mapping[str, int]
"""The line of each dotted key, where it is known."""
ENABLED = "recovery.enabled"
MERGE = "tag:yaml.org,2002:merge"
"""The key `<<` of YAML."""
_TABLE = re.compile(r"\s*\[([\w.\"' -]+)\]")
_ASSIGNED = re.compile(r"\s*([\w.\"' -]+?)\s*=")


class Unreadable(ValueError):
    """The text of a file is not what its name says. The message is for a person."""


def read(path: Path, text: str) -> Source | None:
    """What the file says; None for a pyproject.toml that says nothing about us."""
    try:
        tree, lines = (_yaml if path.suffix in (".yaml", ".yml") else _toml)(text)
    except Unreadable as error:
        return gather((), [f"{path}: {error}"])
    if path.name == "pyproject.toml":
        tool = tree.get("tool")
        if not isinstance(tool, Mapping) or "everbeat" not in tool:
            return None
        tree, lines = tool["everbeat"], _below("tool.everbeat.", lines)
    return _settings(path, tree, lines)


def _settings(path: Path, tree: object, lines: Lines) -> Source:
    if not isinstance(tree, Mapping):
        return gather((), [f"{path}: holds {type(tree).__name__} instead of settings such as [recovery]"])
    found: list[Found] = []
    problems: list[str] = []
    for key, value in _leaves(tree, ""):
        where = f"{path}, line {lines[key]}" if key in lines else str(path)
        entry = catalogue().get(key)
        if entry is None:
            problems.append(f"{where}: {_no_setting(key)}")
            continue
        read_value = entry.rule.from_file(value)
        wrong = [f"{where}: {problem}" for problem in entry.rule.problems(key, read_value)]
        problems += wrong
        if not wrong:
            read_value = _beside(path, read_value) if entry.key == STORE else read_value
            found.append(Found(key=entry.key, value=read_value, name=key, where=where))
    translated, wrong = translate(found)
    return gather(translated, [*problems, *wrong])


def _leaves(tree: Mapping[Any, object], above: str) -> Iterator[tuple[str, object]]:
    """Every value by its dotted key. A table nobody knows is one leaf: its inside has no meaning."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and _is_table(key):
            yield from _leaves(value, f"{key}.")
        elif not (value is None and _is_table(key)):  # YAML: a heading with nothing below it
            yield key, value


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in catalogue())


def _no_setting(key: str) -> str:
    if _is_table(key):
        return f"{key} must be a table of settings"
    if key == ENABLED:
        return (
            f"{key} is no setting; set auto_requeue_stale_claimed and auto_fail_stale_running to false, "
            "or EVERBEAT_RECOVERY_ENABLED=0"
        )
    above = key.rpartition(".")[0]
    beside = {known.removeprefix(f"{above}.").split(".")[0] for known in catalogue() if known.startswith(f"{above}.")}
    everything = {known.split(".")[0] for known in catalogue()}
    return f"{key} is no setting; {suggestion(key.rpartition('.')[2], beside if above else everything)}"


def _beside(path: Path, store: object) -> object:
    """A relative path of a store counts from the file, so that every process that reads it means the same store."""
    match store:
        case Path():
            return path.parent / store.expanduser()
        case str() if store.startswith(SQLITE):
            return f"{SQLITE}{path.parent / Path(store.removeprefix(SQLITE)).expanduser()}"
    return store


# -- TOML -------------------------------------------------------------------------------------------------------------


def _toml(text: str) -> tuple[dict[str, Any], Lines]:
    import tomllib

    try:
        return tomllib.loads(text), _toml_lines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Unreadable(f"not TOML: {error}") from error


def _toml_lines(text: str) -> Lines:
    """Good enough for a message: keys inside several-line strings and arrays of tables are not told apart."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = f"{_plain(header[1])}."
            lines.setdefault(table[:-1], number)
        elif assigned := _ASSIGNED.match(line):
            lines.setdefault(table + _plain(assigned[1]), number)
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip(" \"'") for part in key.split("."))


def _below(prefix: str, lines: Lines) -> Lines:
    return {key.removeprefix(prefix): line for key, line in lines.items() if key.startswith(prefix)}


# -- YAML -------------------------------------------------------------------------------------------------------------


def _yaml(text: str) -> tuple[Any, Lines]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Unreadable(
            "reading YAML needs PyYAML: pip install everbeat[yaml], or write the settings as everbeat.toml"
        ) from error
    try:
        loader = yaml.SafeLoader(text)  # reads the first characters, and refuses those that YAML can not hold
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {error}") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        lines: dict[str, int] = {}
        _check_keys(node, "", lines, loader.construct_object)
        return loader.construct_document(node), lines
    except Unreadable:
        raise
    except yaml.MarkedYAMLError as error:  # its text would show the line itself, which may hold a password
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Unreadable(f"not YAML: {error.problem or error.context}{line}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"not YAML: {error}") from error
    finally:
        loader.dispose()


def _check_keys(node: Any, above: str, lines: dict[str, int], construct: Callable[..., Any]) -> None:
    """Remember the line of each key. YAML would quietly take the last of two equal ones."""
    if node.id != "mapping":
        return
    for key_node, value_node in node.value:
        if key_node.tag == MERGE:  # what it brings may be said again below it
            continue
        key = f"{above}{construct(key_node, deep=True)}"
        line = key_node.start_mark.line + 1
        if key in lines:
            raise Unreadable(f"{key} stands twice, in lines {lines[key]} and {line}; keep one of them")
        lines[key] = line
        _check_keys(value_node, f"{key}.", lines, construct)
