"""The settings that all recipes share, and what a recipe consists of."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from partialsgd.lab import recipes
from partialsgd.lab.cli.commands import Train
from partialsgd.lab.cli.parsing import parse_settings
from partialsgd.lab.recipes import presets
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.settings import Settings, parse_ratio
from partialsgd.lab.training.settings_files import _types, groups, read, resolve, to_toml

COUNTS = ("epochs", "accumulate", "evaluate_every", "checkpoint_every", "keep")
OPTIONAL = ("max_steps", "threads", "measure_every")


@pytest.mark.parametrize("recipe", [Translation, Images])
@pytest.mark.parametrize("name", [*COUNTS, *OPTIONAL])
def test_a_count_is_a_whole_number_from_1(recipe: type[Any], name: str) -> None:
    for value in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 1, got {value}$"):
            recipe(**{name: value})
    assert getattr(recipe(**{name: 1}), name) == 1


def test_shared_code_does_not_name_a_recipe() -> None:
    """A new recipe is a folder and one line in recipes/__init__.py."""
    lab = Path(str(recipes.__file__)).parents[1]
    shared = [file for folder in ("cli", "training", "runs") for file in (lab / folder).glob("*.py")]
    for file in shared:
        source = file.read_text(encoding="utf-8")
        for name in recipes.RECIPES:
            assert f'"{name}"' not in source and f"recipes.{name}" not in source, (file.name, name)


RATIOS = st.lists(st.sampled_from(["1/32", "0.25", "1/3", "1"]), min_size=1, max_size=3).map(tuple)
WORDS = st.text(st.characters(codec="utf-8"), max_size=9).filter(lambda text: text != "None")
NAMES = st.text("abc_-", min_size=1, max_size=4).filter(lambda text: not text.startswith("-"))
SPECIAL: dict[str, Any] = {
    "ratio": RATIOS,
    "track": st.lists(NAMES, max_size=2).map(tuple),
    "method": st.sampled_from(["plain", "sam(rho=0.1)", 'compose(only("core"), sam)', "dropout( keep=0.5 )"]),
    "d_model": st.sampled_from([8, 64]),
    "threads": st.integers(1, 64),
    "heads": st.sampled_from([1, 2, 4]),
    "source": st.sampled_from(["fr", "es"]),
    "target": st.sampled_from(["it", "pt_BR"]),
    "out": WORDS.filter(str.strip),
    "level_budget": st.sampled_from(["parameters=1/4", "flops=0.25,1/2"]),
    "data": WORDS,
    "start": WORDS,
    "teacher": WORDS,
    "alone": st.sampled_from(["core", "full"]),
    "probe": st.sampled_from(["only('core')", "dropout(keep=0.5)"]),
    "measure_layers": st.lists(NAMES, max_size=2).map(tuple),
}
MEASURING = {"probe", "measure_layers", "measure_batches"}  # none of them without measure_every
BY_TYPE: dict[Any, Any] = {
    int: st.integers(300, 10**6),
    float: st.floats(1e-30, 0.999),
    bool: st.booleans(),
}


def values_of(recipe: str, name: str) -> Any:
    """Any value that a setting may have, now and then None where that is one."""
    hint = _types(recipe)[name]
    args = getattr(hint, "__args__", ())
    inner = args[0] if type(None) in args else hint
    found = (
        SPECIAL[name] if name in SPECIAL else BY_TYPE[inner] if inner in BY_TYPE else st.sampled_from(inner.__args__)
    )
    return st.none() | found if type(None) in args else found


EXCLUSIVE = ("part_ways", "shard", "state")
"""Settings of which a run has at most one."""


@st.composite
def made(draw: Any) -> Settings:
    recipe = draw(st.sampled_from(list(recipes.RECIPES)))
    names = draw(st.sets(st.sampled_from(sorted(_types(recipe)))))
    values = {name: draw(values_of(recipe, name)) for name in sorted(names)}
    if names & MEASURING:
        values["measure_every"] = draw(BY_TYPE[int])
    if values.get("level_budget") is not None:
        values["nest"] = draw(st.sampled_from(["width", "low-rank"]))  # what a budget can choose
    if values.get("full") == "own":
        values["nest"] = "low-rank"
    if values.get("start") is not None:
        values["init"] = draw(st.sampled_from(["svd", "matched"]))  # zero would overwrite it
    for name in draw(st.permutations(EXCLUSIVE))[1:]:
        values.pop(name, None)
    return resolve(recipe, values)


@given(made())
@options(max_examples=150, deadline=None)
def test_settings_come_back_from_toml(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    recipe, values = read(path)
    assert recipe == settings.recipe
    assert resolve(recipe, values) == settings


def argv_of(settings: Settings) -> list[str]:
    argv = [settings.recipe]
    for name, value in dataclasses.asdict(settings).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            argv += [f"--{option}" if value else f"--no-{option}"]
        elif isinstance(value, (list, tuple)):
            argv += [f"--{option}", *value] if value else []
        else:
            argv += [f"--{option}={value}"]
    return argv


@given(made())
@options(max_examples=40, deadline=None)
def test_settings_come_back_from_the_command_line(settings: Settings) -> None:
    assert parse_settings(Train, "train", argv_of(settings))[1] == settings


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epoch", 3, "epoch is not a setting of images; did you mean epochs"),
        ("layers", 3, "layers is not a setting of images"),
        ("epochs", 2.0, "epochs must be a whole number; got 2.0"),
        ("epochs", True, "epochs must be a whole number; got True"),
        ("flip", 1, "flip must be true or false; got 1"),
        ("lr", "fast", "lr must be a number; got 'fast'"),
        ("nest", "deep", "nest must be one of low-rank, width, depth, none; got 'deep'"),
        ("ratio", [1], r"ratio must be a list of texts; got \[1\]"),
        ("max_steps", "many", "max_steps must be a whole number or \"None\"; got 'many'"),
        ("ratio", ["7"], r"^ratio must be in \(0, 1\], got '7'$"),
        ("epochs", 0, "^epochs must be a whole number of at least 1, got 0$"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve("images", {name: value})


@pytest.mark.parametrize("recipe", [Translation, Images])
def test_every_setting_is_in_one_group_and_is_given_by_name(recipe: type[Any]) -> None:
    grouped = [field.name for group in groups(recipe) for field in fields(group)]
    assert sorted(grouped) == sorted({field.name for field in fields(recipe)})
    with pytest.raises(TypeError):
        recipe("runs/a")
    unset = recipe(**dict.fromkeys(OPTIONAL))
    assert all(getattr(unset, name) is None for name in OPTIONAL)


def test_a_ratio_is_written_as_a_fraction_or_a_decimal() -> None:
    ratios = {"1/32": 0.03125, "0.03125": 0.03125, "1": 1.0, "2e-1": 0.2}
    assert {text: parse_ratio(text) for text in ratios} == ratios
    for text in ("0", "-1/2", "3/2", "1.01", "1e-999999999"):
        with pytest.raises(ValueError, match=rf"ratio must be in \(0, 1\], got '{text}'"):
            parse_ratio(text)
    for text in ("half", "1/0", "", "1/2/3", "nan", "inf", f"{10**999}/7"):
        with pytest.raises(ValueError, match=f"ratio must be written like 1/32 or 0.03125, got '{text}'"):
            parse_ratio(text)


def test_a_file_may_be_short_and_have_dashes_and_come_from_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('recipe = "images"\nmax-steps = 5\nratio = "1/4"\nlr = 1\nlimit = "None"\nclip_norm = inf')
    recipe, values = read(path)
    found: Any = resolve(str(recipe), values)
    assert (found.max_steps, found.ratio, found.lr, found.limit) == (5, ("1/4",), 1.0, None)
    changed = {"max_steps": 5, "ratio": ("1/4",), "lr": 1.0, "clip_norm": math.inf}
    assert found == dataclasses.replace(presets("images")["digits"], **changed) and "clip_norm = inf" in to_toml(found)
    run = Run.new(dataclasses.replace(found, out=str(tmp_path / "run")))
    recipe, values = read(run.path / "config.json")
    assert resolve(str(recipe), values) == found, "all but the directory: another run has its own"
    narrow: Any = presets("images")["narrow"]
    assert narrow.limit is not None and 'limit = "None"' in to_toml(dataclasses.replace(narrow, limit=None))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.toml", b'recipe = "image"', "there is no recipe 'image'; the recipes are translation, images"),
        ("run.toml", b"epochs = \n", r"run\.toml is not a TOML file: .*line 1"),
        ("run.toml", b"max-steps = 1\nmax_steps = 2", "a setting occurs twice"),
        ("run.toml", b'out = "\xff"', r"run\.toml is not a TOML file: .utf-8. codec"),
        ("run.toml", b"a = " + b"[" * 9_000, r"run\.toml is not a TOML file: "),
        ("config.json", b'{"hidden_size": 3}', r"config\.json is not the config\.json of a run"),
        ("config.json", b"[" * 99_000, r"config\.json is not the config\.json of a run"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)
