"""Commands that train: their own options beside those of the recipe, and what they do with the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.cli.options import parse_settings
from partialsgd.lab.cli.trainings import Compare, Train
from partialsgd.lab.training import settings_files as files
from tests.lab.cli.calls import Call, require_wrong


def read(*argv: str) -> Any:
    return parse_settings(Train, "train", argv)[1]


def test_the_settings_that_are_shown_are_a_file_for_config(call: Call, tmp_path: Path) -> None:
    argv = ["train", "images", "--preset", "narrow", "--limit", "None", "--ratio", "1/4", "1/2", "--out", "a b"]
    code, out, _ = call(*argv, "--show-settings")
    (tmp_path / "run.toml").write_text(out)
    assert code == 0 and read("--config", str(tmp_path / "run.toml")) == read(*argv[1:])
    _, out, _ = call("train", "--preset", "wmt17", "--show-settings")
    (tmp_path / "run.toml").write_text(out)
    assert read("--config", str(tmp_path / "run.toml")) == files.presets("translation")["wmt17"]
    assert re.search(r"# warmup_updates +4000 +4000", out)


def test_compare_has_options_of_its_own() -> None:
    own, settings = parse_settings(Compare, "compare", ["images", "--budget", "flops", "--seeds", "3", "--width", "8"])
    assert own == Compare(budget="flops", seeds=3) and settings == read("images", "--width", "8")


def test_a_comparison_without_a_training_is_a_wrong_call(call: Call) -> None:
    require_wrong(call, ["compare", "--seeds", "0"], "--seeds must be a whole number, at least 1; got 0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "images", "--method", "only('tiny')"], "there is no level 'tiny'; there are 'core', 'full'"),
        (["train", "images", "--preset", "cifar10"], "the preset 'cifar10' is for CIFAR-10: give --data"),
    ],
)
def test_what_only_the_network_or_the_data_can_tell_is_a_wrong_call_too(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    from accelerate.state import AcceleratorState

    monkeypatch.chdir(tmp_path)
    code, _, err = call(*argv)
    AcceleratorState._reset_state(reset_partial_state=True)  # one for a process, which other tests must not find
    assert code == 2 and message in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_asked_for_reaches_the_training(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from partialsgd.lab.recipes import comparing
    from partialsgd.lab.runs.run import Run
    from partialsgd.lab.training import loop

    asked: list[Any] = []
    for module, name in ((loop, "train"), (loop, "resume"), (comparing, "compare")):
        monkeypatch.setattr(module, name, lambda what, **options: asked.append((what, options)))
    run = Run.new(read("tabular", "--out", str(tmp_path / "run")))
    assert call("train", "tabular", "--seed", "3") == (0, "", "")
    assert call("compare", "tabular", "--seeds", "2", "--budget", "updates") == (0, "", "")
    assert call("resume", str(run.path)) == (0, "", "")
    assert asked[0] == (read("tabular", "--seed", "3"), {})
    assert asked[1] == (read("tabular"), {"budget": "updates", "seeds": 2})
    assert asked[2][0].path == run.path
