"""Fields as options: their texts, their types, and which of them have a place instead of a name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from partialsgd.lab.cli.commands import Evaluate, Methods
from partialsgd.lab.cli.fields import documented, of_command, of_settings
from partialsgd.lab.cli.reports import Report
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training import settings_files as files
from tests.lab.cli import calls


@dataclasses.dataclass(kw_only=True)
class Parent:
    "Not a text of a field."

    kept: int = 1
    """Said
    above."""
    changed: int = 2
    """Said above too."""


@dataclasses.dataclass(kw_only=True)
class Child(Parent):
    kept: int = 3
    changed: int = 4
    """Said here."""
    bare: int = 5

    def method(self) -> None:
        """Not a text of a field."""


def test_a_text_is_that_of_the_nearest_class_that_has_one() -> None:
    assert documented(Parent) == {"kept": "Said above.", "changed": "Said above too."}
    assert documented(Child) == {"kept": "Said above.", "changed": "Said here."}


def test_texts_are_found_in_a_class_within_a_function() -> None:
    @dataclasses.dataclass
    class Inner:
        one: int
        """The one."""

    assert documented(Inner) == {"one": "The one."}


def markers(command: type) -> dict[str, tuple[Any, ...]]:
    return {name: get_args(hint)[1:] for name, hint, _ in of_command(command)}


def test_what_must_be_said_has_a_place_and_the_rest_a_name() -> None:
    assert {name: said[0].metavar for name, said in markers(Evaluate).items() if len(said) == 2} == {"run": "RUN"}
    assert {name: said[0].metavar for name, said in markers(Methods).items() if len(said) == 2} == {"name": "NAME"}


def test_several_may_have_one_place() -> None:
    assert {name: said[0].metavar for name, said in markers(Report).items() if len(said) == 2} == {
        "run": "RUN [RUN ...]"
    }


def test_a_value_is_announced_by_its_type_and_a_choice_by_its_choices() -> None:
    @dataclasses.dataclass
    class Types:
        number: float | None = None
        """Maybe."""
        texts: tuple[str, ...] = ()
        """Several."""
        place: Path = Path()
        """Somewhere."""
        yes: bool = False
        """Or no."""

    shown = {name: said[0].metavar for name, said in markers(Types).items()}
    assert shown == {"number": "FLOAT", "texts": "TEXT ...", "place": "PATH", "yes": None}


def flat(options: Any) -> list[tuple[str, Any]]:
    """Every option with its default, those in groups too."""
    found: list[tuple[str, Any]] = []
    for name, _, field in options:
        made = field.default_factory
        if made is dataclasses.MISSING:
            found.append((name, field.default))
        else:
            found += [(one.name, one.default) for one in dataclasses.fields(made)]
    return found


@pytest.mark.parametrize("recipe", calls.RECIPES)
def test_every_setting_is_one_option_with_its_value(recipe: str) -> None:
    settings = dataclasses.replace(RECIPES[recipe](), epochs=77, track=("wandb",))
    options = flat(of_settings(settings))
    assert set(Counter(name for name, _ in options).values()) == {1}
    assert dict(options) == {name: getattr(settings, name) for name in files.types(recipe)}
