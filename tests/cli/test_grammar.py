"""How words become the call of a command, and what its help says of them."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from everbeat.cli import given, manual
from everbeat.cli.ends import USAGE
from everbeat.cli.grammar import Argument, Group, Misused, Option, call_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def paint(
    what: Annotated[str, Argument(metavar="WHAT", help="What to paint.")],
    more: Annotated[list[str] | None, Argument(metavar="MORE")] = None,
    coats: Annotated[int, Option(min=1, max=9, help="How often.")] = 2,
    hours: Annotated[float | None, Option("--dry-for", min=0, metavar="HOURS")] = None,
    colour: Annotated[Colour, Option(help="In which colour.")] = Colour.RED,
    brush: Annotated[list[str] | None, Option(help="May be repeated.")] = None,
    plan: Annotated[Path | None, Option(envvar="PAINT_PLAN")] = None,
    since: Annotated[datetime | None, Option(parser=given.moment, metavar="TIME")] = None,
    quietly: Annotated[bool, Option("--quietly")] = False,
    secretly: Annotated[bool, Option("--secretly", hidden=True, help="Nobody is told.")] = False,
) -> None:
    """Paint something. Then wait."""


def burn(what: Annotated[list[str], Argument(metavar="WHAT")]) -> None:
    """Burn it all."""


PLAIN: dict[str, Any] = {
    "what": "wall", "more": None, "coats": 2, "hours": None, "colour": Colour.RED, "brush": None, "plan": None,
    "since": None, "quietly": False, "secretly": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("wall", {}),
        ("wall --coats 3", {"coats": 3}),
        ("--coats 3 wall", {"coats": 3}),
        ("--coats=3 wall", {"coats": 3}),
        ("wall --coats 3 --coats 4", {"coats": 4}),
        ("wall --dry-for 1.5", {"hours": 1.5}),
        ("wall --colour BLUE", {"colour": Colour.BLUE}),
        ("wall --brush big --brush small", {"brush": ["big", "small"]}),
        ("wall --brush --coats", {"brush": ["--coats"]}),
        ("wall --brush=", {"brush": [""]}),
        ("wall --plan a/b", {"plan": Path("a/b")}),
        ("wall door --quietly gate", {"more": ["door", "gate"], "quietly": True}),
        ("wall -- --quietly --", {"more": ["--quietly", "--"]}),
        ("wall -", {"more": ["-"]}),
    ],
)
def test_words_become_a_call(words: str, means: dict[str, Any]) -> None:
    assert call_of(paint, words.split(" ")) == PLAIN | means


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "WHAT is missing"),
        ("--quietly", "WHAT is missing"),
        ("wall --coats", "--coats needs a value: --coats N"),
        ("wall --coats 0", "--coats must be a whole number from 1 to 9, not '0'"),
        ("wall --coats 1.5", "--coats must be a whole number from 1 to 9, not '1.5'"),
        ("wall --dry-for -1", "--dry-for must be a number from 0 on, not '-1'"),
        ("wall --dry-for nan", "--dry-for must be a number from 0 on, not 'nan'"),
        ("wall --dry-for inf", "--dry-for must be a number from 0 on, not 'inf'"),
        ("wall --colour green", "--colour must be one of red, blue, not 'green'"),
        ("wall --since soon", "--since: 'soon' is not a time"),
        ("wall --quietly=yes", "--quietly takes no value"),
        ("wall --coat 3", "there is no option --coat; did you mean --coats?"),
        ("wall -x", "there is no option -x"),
    ],
)
def test_what_is_no_call_is_refused_by_name(words: str, problem: str) -> None:
    with pytest.raises(Misused) as refused:
        call_of(paint, words.split())

    assert str(refused.value).startswith(problem)
    assert refused.value.code == USAGE


def test_a_command_for_one_thing_takes_no_second() -> None:
    def look(at: Annotated[str, Argument(metavar="AT")]) -> None: ...

    with pytest.raises(Misused, match="'there' is one word too many"):
        call_of(look, ["here", "there"])


def test_a_command_for_some_things_needs_one() -> None:
    assert call_of(burn, ["a", "b"]) == {"what": ["a", "b"]}
    with pytest.raises(Misused, match="WHAT is missing"):
        call_of(burn, [])


def test_a_variable_counts_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAINT_PLAN", "from-outside")

    assert call_of(paint, ["wall"])["plan"] == Path("from-outside")
    assert call_of(paint, ["wall", "--plan", "given"])["plan"] == Path("given")


def test_a_command_is_found_by_its_path_and_what_follows_is_left() -> None:
    inner, outer = Group("Works."), Group("All.")
    inner.command()(paint)
    outer.members["work"] = inner
    path, words = ["top"], ["work", "paint", "wall", "--help"]

    assert outer.find(path, words) is paint
    assert (path, words) == (["top", "work", "paint"], ["wall", "--help"])
    assert outer.find([], ["work"]) is inner
    with pytest.raises(Misused, match="there is no command 'pant'; did you mean paint"):
        outer.find([], ["work", "pant"])


def test_the_help_of_a_command_shows_all_but_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert manual.help_of("paint", paint).splitlines() == [
        "Usage: paint WHAT [MORE]... [OPTIONS]",
        "",
        "  Paint something. Then wait.",
        "",
        "Arguments:",
        "  WHAT  What to paint.",
        "  MORE",
        "",
        "Options:",
        "  --coats N          How often. From 1 to 9. Default: `2`.",
        "  --dry-for HOURS    From 0 on.",
        "  --colour red|blue  In which colour. Default: `red`.",
        "  --brush TEXT       May be repeated.",
        "  --plan TEXT        Environment: `PAINT_PLAN`.",
        "  --since TIME",
        "  --quietly",
        "  --help             Show this and exit.",
    ]
