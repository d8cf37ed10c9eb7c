"""A call and what it means: help, the command line over the file over the preset, and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.cli.commands import COMMANDS, WITH_SETTINGS, Evaluate, Methods, Train
from partialsgd.lab.cli.parsing import parse, parse_settings
from partialsgd.lab.recipes import RECIPES, presets
from partialsgd.lab.reproduce import compare as comparing
from tests.lab.cli import calls
from tests.lab.cli.calls import Call, as_text, require_wrong, without_space

PAGES = [
    [],
    *([name] for name in COMMANDS),
    *([name] for name in WITH_SETTINGS),
    *([name, recipe] for name in WITH_SETTINGS for recipe in calls.RECIPES),
]


def read(*argv: str) -> Any:
    return parse_settings(Train, "train", argv)[1]


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_a_page_of_help_fits_and_explains_every_option(call: Call, page: list[str]) -> None:
    code, out, err = call(*page, "--help")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines() if not line.startswith("usage:")) <= 80
    if page:
        assert f"$ partialsgd {page[0]}" in out
    kinds: list[Any] = [COMMANDS[page[0]]] if page and page[0] in COMMANDS else []
    kinds += [WITH_SETTINGS[page[0]], RECIPES[page[1]]] if len(page) == 2 else []
    options = re.split(r"\n[│ ] (?=-|[A-Z[])", out)
    for name in (field.name for kind in kinds for field in fields(kind)):
        pattern = rf"(--{name.replace('_', '-')}[ ,\n]|\[?{name.upper()}\b)"
        (text,) = [option for option in options if re.match(pattern, option)]
        assert len(text.split()) >= 5, f"{name} is not explained"


def test_the_first_page_lists_every_command_and_train_every_recipe(call: Call) -> None:
    _, out, _ = call("--help")
    for name, kind in {**COMMANDS, **WITH_SETTINGS}.items():
        assert re.search(rf"\n{name} +{(kind.__doc__ or '').split()[0]}", out)
    _, out, _ = call("train", "--help")
    assert "Without NAME the recipe is translation." in out
    assert all(f"\n{recipe} " in out for recipe in calls.RECIPES)


def test_help_shows_the_values_of_the_preset_and_of_the_file(call: Call, tmp_path: Path) -> None:
    for preset, width in (("laptop", 128), ("iwslt14", 512)):
        _, out, _ = call("train", "translation", "--preset", preset, "--help")
        assert f"(default:{preset})" in without_space(out)
        assert f"embeddings.(default:{width})" in without_space(out)
    (tmp_path / "run.toml").write_text("d-model = 96")
    _, out, _ = call("train", f"--config={tmp_path / 'run.toml'}", "--help")
    assert "embeddings.(default:96)" in without_space(out)


WRONG = [
    (["train", "image"], "there is no recipe 'image'; the recipes are translation, images"),
    (["train", "tabular"], "the recipe 'tabular' was removed; examples/wide_and_deep.py shows"),
    (["train", "--ratio", "7"], "--ratio must be in (0, 1], got '7'"),
    (["train", "--ratio", "half"], "--ratio must be written like 1/32 or 0.03125, got 'half'"),
    (["train", "--ratio", "1e-999999999"], "--ratio must be in (0, 1], got '1e-999999999'"),
    (["train", "--threads", "100000"], "--threads must be at most 1,024, got 100,000"),
    (["train", "--clip-norm", "0"], "--clip-norm must be positive, got 0.0; omit it to clip nothing"),
    (["train", "--clip-norm", "nan"], "--clip-norm must be positive, got nan"),
    (["train", "--seed", str(2**64)], "--seed must be from -2⁶³ to 2⁶⁴ - 1, got 18446744073709551616"),
    (["train", "--max-steps", "99999999999999999999"], "--max-steps must be at most 9,007,199,254,740,992, got 9999"),
    (["train", "--lr", "inf"], "--lr must be positive and finite, got inf"),
    (["train", "--epochs", "0"], "--epochs must be a whole number of at least 1, got 0"),
    (["train", "--checkpoint-every", "-1"], "--checkpoint-every must be a whole number of at least 1, got -1"),
    (["train", "--out", "\n"], "--out is blank, '\\n'; name a folder"),
    (["train", "--probe", "plain"], "--probe has no effect without measure_every; set both, or neither"),
    (["train", "--config", "none.toml"], "none.toml does not exist"),
    (["train", "--config"], "--config"),
    (["train", "--d-model", "10"], "--d-model must be even and a multiple of heads"),
    (["train", "--heads", "7"], "--heads: d_model must be even and a multiple of heads"),
    (["train", "--epoch", "1"], "--epochs"),
    (["train", "--epochs", "1.5"], "--epochs"),
    (["train", "--nest", "deep"], "--nest"),
    (["train", "images", "--preset", "cifar"], "--preset"),
    (["compare", "--seeds", "0"], "--seeds must be from 1 to 10,000, got 0"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=as_text)
def test_a_wrong_call_ends_with_2_and_names_what_is_wrong(call: Call, argv: list[str], message: str) -> None:
    require_wrong(call, argv, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--method", "sma"], "there is no method 'sma'; did you mean sam?"),
        (["--method", "sam(rh=1)"], "unexpected keyword argument 'rh'; its form is sam(rho=0.05, "),
        (["--method", "sam("], "the method 'sam(' cannot be read"),
        (["--method", "only('tiny')"], "there is no level 'tiny'; there are 'core', 'full'"),
        (["--measure-every", "5", "--probe", "onl('core')"], "probe: there is no method 'onl'; did you mean only"),
        (["--preset", "cifar10"], "the preset 'cifar10' is for CIFAR-10; give --data"),
    ],
    ids=as_text,
)
def test_what_only_torch_the_network_or_the_data_can_tell_is_a_wrong_call_too(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    from accelerate.state import AcceleratorState

    monkeypatch.chdir(tmp_path)
    code, _, err = call("train", "images", *argv)
    AcceleratorState._reset_state(reset_partial_state=True)  # one for a process, which other tests must not find
    assert code == 2 and message in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_wrong_is_a_wrong_call(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text, message in (
        ("epoch = 1", f"{path}: epoch is not a setting of translation; did you mean epochs"),
        ('ratio = ["2"]', f"{path}: ratio must be in (0, 1], got '2'"),
        ("epochs =", "is not a TOML file"),
    ):
        path.write_text(text)
        code, _, err = call("train", "--config", str(path))
        assert code == 2 and message in err
    path.write_text('recipe = "images"')
    code, _, err = call("train", "translation", "--config", str(path))
    assert code == 2 and f"{path} is for the recipe images, but the call names translation" in err


def test_the_run_comes_before_or_after_the_options() -> None:
    expected = Evaluate(run=Path("runs/r"), level=("core", "full"), split="valid")
    assert parse(Evaluate, "evaluate", ["runs/r", "--level", "core", "full", "--split", "valid"]) == expected
    assert parse(Evaluate, "evaluate", ["--split", "valid", "runs/r", "--level", "core", "full"]) == expected
    assert parse(Methods, "methods", ["sam"]) == Methods(name="sam") and parse(Methods, "methods", []) == Methods()


def test_the_settings_that_are_shown_are_a_file_for_config(call: Call, tmp_path: Path) -> None:
    argv = ["train", "images", "--preset", "narrow", "--limit", "None", "--ratio", "1/4", "1/2", "--out", "a b"]
    code, out, _ = call(*argv, "--show-settings")
    (tmp_path / "run.toml").write_text(out)
    assert code == 0 and read("--config", str(tmp_path / "run.toml")) == read(*argv[1:])
    _, out, _ = call("train", "--preset", "wmt17", "--show-settings")
    (tmp_path / "run.toml").write_text(out)
    assert read("--config", str(tmp_path / "run.toml")) == presets("translation")["wmt17"]
    assert re.search(r"# warmup_updates +4000 +4000", out)


def test_the_options_reach_the_training(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from partialsgd.lab.runs.run import Run
    from partialsgd.lab.training import loop

    calls: list[Any] = []
    for module, name in ((loop, "train"), (loop, "resume"), (comparing, "compare")):
        monkeypatch.setattr(module, name, lambda what, **options: calls.append((what, options)))
    run = Run.new(read("images", "--out", str(tmp_path / "run")))
    assert call("train", "images", "--seed", "3") == (0, "", "")
    assert call("compare", "images", "--seeds", "2", "--budget", "each", "--jobs", "3", "--match", "latency") == (
        0,
        "",
        "",
    )
    assert call("resume", str(run.path)) == (0, "", "")
    assert calls[0] == (read("images", "--seed", "3"), {})
    assert calls[1] == (read("images"), {"budget": "each", "seeds": 2, "jobs": 3, "match": ("latency",)})
    assert calls[2][0].path == run.path


@pytest.mark.parametrize("words", [("--budget", "parameters=1/4"), ("--budget=parameters=1/4",)])
def test_a_budget_of_a_level_is_one_of_train_and_has_a_name_of_its_own_in_compare(
    call: Call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    from partialsgd.lab.training import loop

    calls: list[Any] = []
    for module, name in ((loop, "train"), (comparing, "compare")):
        monkeypatch.setattr(module, name, lambda what, **options: calls.append((what.level_budget, options)))
    assert call("train", "images", "--nest", "width", *words) == (0, "", "")
    both = ("--budget", "each", "--level-budget", "flops=1/2")
    assert call("compare", "images", "--nest", "width", *both) == (0, "", "")
    assert calls[0] == ("parameters=1/4", {})
    assert calls[1] == ("flops=1/2", {"budget": "each", "seeds": 1, "jobs": 1, "match": ()})


def test_the_command_line_goes_over_the_file_over_the_preset_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "wmt17"\nepochs = 5\nheads = 2')
    paper: Any = presets("translation")["wmt17"]
    assert read("--config", str(path)) == replace(paper, epochs=5, heads=2)
    assert read("--config", str(path), "--epochs", "7") == replace(paper, epochs=7, heads=2)
    other: Any = presets("translation")["iwslt14"]
    assert read("--config", str(path), "--preset=iwslt14") == replace(other, epochs=5, heads=2)
    assert read() == presets("translation")["laptop"]
    path.write_text('recipe = "images"\nwidth = 4')
    assert read("--config", str(path)) == read("images", "--config", str(path)) == read("images", "--width", "4")
