"""What a call means: the command line over the file over the preset, and what is said of what is wrong in each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.cli.commands import Evaluate
from partialsgd.lab.cli.options import parse, parse_settings, resolved
from partialsgd.lab.cli.trainings import Train
from partialsgd.lab.training import settings_files as files
from partialsgd.lab.training.errors import WrongCall
from tests.lab.cli.calls import Call, as_text, require_wrong, without_space


def read(*argv: str) -> Any:
    return parse_settings(Train, "train", argv)[1]


def test_help_shows_the_values_of_the_preset_and_of_the_file(call: Call, tmp_path: Path) -> None:
    for preset, width in (("laptop", 128), ("iwslt14", 512)):
        _, out, _ = call("train", "translation", "--preset", preset, "--help")
        assert f"(default:{preset})" in without_space(out)
        assert f"embeddings.(default:{width})" in without_space(out)
    (tmp_path / "run.toml").write_text("d-model = 96")
    _, out, _ = call("train", f"--config={tmp_path / 'run.toml'}", "--help")
    assert "embeddings.(default:96)" in without_space(out)


def test_the_command_line_goes_over_the_file_over_the_preset_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "wmt17"\nepochs = 5\nheads = 2')
    paper: Any = files.presets("translation")["wmt17"]
    assert read("--config", str(path)) == replace(paper, epochs=5, heads=2)
    assert read("--config", str(path), "--epochs", "7") == replace(paper, epochs=7, heads=2)
    other: Any = files.presets("translation")["iwslt14"]
    assert read("--config", str(path), "--preset=iwslt14") == replace(other, epochs=5, heads=2)
    assert read() == files.presets("translation")["laptop"]


def test_the_recipe_is_the_one_named_or_the_files_or_translation(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('recipe = "images"\nwidth = 4')
    assert read("--config", str(path)) == read("images", "--config", str(path)) == read("images", "--width", "4")
    assert read().recipe == "translation" and read("tabular").recipe == "tabular"


WRONG = [
    (["train", "image"], "there is no recipe 'image'; there are translation, images, tabular"),
    (["train", "--ratio", "7"], "--ratio: a ratio must be in (0, 1], got '7'"),
    (["train", "--ratio", "half"], "--ratio: a ratio is written 1/32 or 0.03125; got 'half'"),
    (["train", "--epochs", "0"], "--epochs must be a whole number, at least 1; got 0"),
    (["train", "--checkpoint-every", "-1"], "--checkpoint-every must be a whole number, at least 1; got -1"),
    (["train", "--method", "sma"], "--method: there is no method 'sma'; did you mean sam?"),
    (["train", "--method", "sam(rh=1)"], "--method: the method 'sam' has no option 'rh'; it is sam(rho=0.05, "),
    (["train", "--method", "sam("], "--method: the method 'sam(' cannot be read"),
    (
        ["train", "--measure-every", "5", "--probe", "onl('core')"],
        "--probe: there is no method 'onl'; did you mean only",
    ),
    (
        ["train", "--measure-every", "5", "--probe", "only(lvl='core')"],
        "--probe: the method 'only' has no option 'lvl'",
    ),
    (["train", "--probe", "plain"], "--probe is 'plain', and nothing is measured without measure_every; give that too"),
    (["train", "--config", "none.toml"], "none.toml does not exist"),
    (["train", "--config"], "--config"),
    (["train", "--epoch", "1"], "--epochs"),
    (["train", "--epochs", "1.5"], "--epochs"),
    (["train", "--nest", "deep"], "--nest"),
    (["train", "images", "--preset", "cifar"], "--preset"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=as_text)
def test_a_wrong_call_ends_with_2_and_names_what_is_wrong(call: Call, argv: list[str], message: str) -> None:
    require_wrong(call, argv, message)


def test_a_file_that_is_wrong_is_a_wrong_call(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text, message in (
        ("epoch = 1", f"{path}: epoch is not a setting of translation; did you mean epochs"),
        ('ratio = ["2"]', f"{path}: ratio: a ratio must be in (0, 1], got '2'"),
        ("epochs =", "is no TOML"),
    ):
        path.write_text(text)
        code, _, err = call("train", "--config", str(path))
        assert code == 2 and message in err
    path.write_text('recipe = "images"')
    code, _, err = call("train", "tabular", "--config", str(path))
    assert code == 2 and f"{path} is for the recipe images, and tabular was named" in err


def test_the_place_of_a_run_comes_before_or_after_its_options() -> None:
    expected = Evaluate(run=Path("runs/r"), level=("core", "full"), split="valid")
    assert parse(Evaluate, "evaluate", ["runs/r", "--level", "core", "full", "--split", "valid"]) == expected
    assert parse(Evaluate, "evaluate", ["--split", "valid", "runs/r", "--level", "core", "full"]) == expected
    assert parse(Evaluate, "evaluate", ["runs/r"]) == Evaluate(run=Path("runs/r"))


def test_a_setting_that_was_not_given_is_no_option() -> None:
    with pytest.raises(WrongCall, match=r"^--d-model must be even and a multiple of heads"):
        resolved("translation", {"d_model": 10})
    with pytest.raises(WrongCall, match=r"^--heads: d_model must be even and a multiple of heads"):
        resolved("translation", {"heads": 7})
