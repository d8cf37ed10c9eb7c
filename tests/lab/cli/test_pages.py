"""Pages of help: they fit, every option is explained, and the examples are those of the recipe."""

from __future__ import annotations

import re

import pytest

from partialsgd.lab.cli.commands import OF_RUNS, OF_SETTINGS
from partialsgd.lab.cli.fields import documented
from partialsgd.lab.cli.pages import examples, wrapped
from partialsgd.lab.cli.trainings import Compare, Train
from partialsgd.lab.recipes import RECIPES
from tests.lab.cli import calls
from tests.lab.cli.calls import Call, without_space

PAGES = [
    [],
    *([name] for name in OF_RUNS),
    *([name] for name in OF_SETTINGS),
    *([name, recipe] for name in OF_SETTINGS for recipe in calls.RECIPES),
]


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_a_page_of_help_fits_and_has_every_option(call: Call, page: list[str]) -> None:
    code, out, err = call(*page, "--help")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines() if not line.startswith("usage:")) <= 80
    if page:
        assert f"$ partialsgd {page[0]}" in out
    kinds = [OF_RUNS.get(page[0]) or OF_SETTINGS[page[0]]] if page and (len(page) == 2 or page[0] in OF_RUNS) else []
    kinds += [RECIPES[page[1]]] if len(page) == 2 else []
    flat = without_space(out)
    for kind in kinds:
        for name, text in documented(kind).items():
            assert f"--{name.replace('_', '-')}" in out or name.upper() in out
            assert without_space(text) in flat, f"{name} is not explained"


def test_the_first_page_has_every_command_and_train_every_recipe(call: Call) -> None:
    _, out, _ = call("--help")
    for name, kind in {**OF_RUNS, **OF_SETTINGS}.items():
        assert re.search(rf"• {name} +{(kind.__doc__ or '').split()[0]}", out)
    _, out, _ = call("train", "--help")
    assert "(default: translation)" in out
    for recipe in calls.RECIPES:
        assert f"• {recipe} " in out


@pytest.mark.parametrize(("command", "name"), [(Train, "train"), (Compare, "compare")], ids=["train", "compare"])
def test_an_example_is_on_the_page_of_its_recipe_and_on_no_other(command: type, name: str) -> None:
    shown = {
        recipe: [line for line in examples(command, name, recipe).splitlines() if line.startswith("$")]
        for recipe in calls.RECIPES
    }
    every = [line.strip() for line in (command.__doc__ or "").splitlines() if line.strip().startswith("$")]
    assert sorted(line for lines in shown.values() for line in lines) == sorted(every)
    for recipe, lines in shown.items():
        named = {word for line in lines for word in line.split()[3:4]} & set(calls.RECIPES)
        assert lines and named == (set() if recipe == "translation" else {recipe})


def test_what_is_said_beside_the_examples_is_on_every_page() -> None:
    for recipe in calls.RECIPES:
        assert "Every training is a run" in examples(Compare, "compare", recipe)


def test_paragraphs_are_wrapped_and_examples_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    example = "$ partialsgd train " + "x" * 60
    monkeypatch.setenv("COLUMNS", "40")
    assert wrapped(f"{'word ' * 10}\n\n{example}\n$ b") == f"{'word ' * 7}word\nword word\n\n  {example}\n  $ b\n"
    monkeypatch.setenv("COLUMNS", "300")
    assert max(map(len, wrapped("word " * 90).splitlines())) == 99
