"""Make a configuration object complete: check what the code gave, fill what it left out, remember where it came from.

For each field: the code, else a variable, else the file, else the default. One error lists every problem: those of the
code, and all of the surroundings, also of settings that belong to another object.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from everbeat.config.rules import Nested
from everbeat.config.setting import CODE, DEFAULT, LeftOut, Settings, section_of, settings_of
from everbeat.config.surroundings import Surroundings, look_around
from everbeat.errors import ConfigError


class Completion:
    """One object on its way to be complete. `finish` raises, or it is."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._section = section_of(type(config))
        self._around: Surroundings | None = None
        self._problems: list[str] = []
        self._fill()

    def _fill(self) -> None:
        origins = dict.fromkeys((field.name for field in fields(self._config)), CODE)  # type: ignore[arg-type]
        for field, left in settings_of(type(self._config)):
            value = getattr(self._config, field.name)
            if isinstance(value, LeftOut):
                origins[field.name] = self._take(field.name, left)
            else:
                self._problems += left.rule.problems(field.name, value)
        self._config.with_origins(origins)

    def _take(self, name: str, left: LeftOut) -> str:
        """The value for a field that was left out, and where it came from."""
        if isinstance(left.rule, Nested):
            try:
                self.put(name, left.rule.make())
            except ConfigError as error:
                self.add(error.problems)
            return DEFAULT
        found = self.surroundings.find(f"{self._section}.{name}".lstrip("."))
        self.put(name, left.default if found is None else found.value)
        return DEFAULT if found is None else found.origin

    @property
    def surroundings(self) -> Surroundings:
        if self._around is None:
            self._around = look_around()
            self.add(self._around.problems)
        return self._around

    def put(self, name: str, value: Any) -> None:
        object.__setattr__(self._config, name, value)

    def add(self, problems: Iterable[str | None]) -> None:
        self._problems += [problem for problem in problems if problem is not None]

    def finish(self) -> None:
        if self._problems:
            outside = self._around is not None and self._around.problems
            subject = "configuration" if outside else type(self._config).__name__
            raise ConfigError(tuple(dict.fromkeys(self._problems)), subject=subject)
