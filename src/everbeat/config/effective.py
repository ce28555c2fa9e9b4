"""The configuration that is in effect: every setting with its value and where it came from, for people."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from everbeat.config.app import AppConfig, QueueConfig
from everbeat.config.rules import Mode
from everbeat.config.setting import CODE, DEFAULT, Settings, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    key: str
    """As in a file: `recovery.action`."""
    value: str
    """As in a file; passwords are masked."""
    origin: str
    """"default", "code", a variable, a key and line of a file, or a flag."""

    @property
    def is_from_outside(self) -> bool:
        """By a variable, a file or a flag: where whoever reads the code would not look."""
        return self.origin not in (CODE, DEFAULT)


def effective(config: AppConfig) -> tuple[Effective, ...]:
    store = "path" if "path" in config.broker.origins else "database_url"
    return (
        Effective(key="store", value=config.broker.location, origin=config.broker.origin(store)),
        *_of(config.broker, "broker."),
        *_of(config.recovery, "recovery."),
        *_of(config, ""),
    )


def _of(config: Settings, section: str) -> Iterator[Effective]:
    declared = {field.name: left.rule for field, left in settings_of(type(config))}
    for name, rule in declared.items():
        value = getattr(config, name)
        if not isinstance(value, Settings):
            shown = f"{value:#o}" if isinstance(rule, Mode) else _shown(value)
            yield Effective(key=section + name, value=shown, origin=config.origin(name))


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case QueueConfig():
            limits = (f"{field.name}={_shown(getattr(value, field.name))}" for field in fields(value)[1:])
            return f"{value.name} ({', '.join(limits)})"
        case tuple():
            return ", ".join(map(_shown, value)) or "none"
    return str(value)
