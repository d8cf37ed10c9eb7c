"""The command line: what a call means, what is said about a wrong one, and that help does not wait for torch."""

from __future__ import annotations

import inspect
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import partialsgd
from partialsgd import methods
from partialsgd.cli import main
from partialsgd.cli.commands import OF_RUNS, OF_SETTINGS
from partialsgd.cli.fields import documented
from partialsgd.cli.groups import GROUPS
from partialsgd.cli.options import parse_settings
from partialsgd.cli.trainings import Compare, Train
from partialsgd.recipes import RECIPES, files, registry

HEAVY = {"torch", "transformers", "sklearn", "tokenizers", "accelerate", "babel", "numpy", "sacrebleu", "safetensors"}
PROGRAM = [sys.executable, "-m", "partialsgd"]

Call = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The exit code, what is printed and what is said of errors, in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PARTIALSGD_TRACEBACK", raising=False)

    def called(*argv: str) -> tuple[Any, str, str]:
        try:
            code: Any = main(argv)
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return called


@pytest.mark.parametrize("argv", [["--help"], ["methods"], ["train", "--help"], ["train", "images", "--help"]])
def test_help_and_methods_answer_at_once_and_import_nothing_heavy(argv: list[str]) -> None:
    code = (
        f"import sys; from partialsgd.cli import main\ntry: main({argv})\nexcept SystemExit: pass\n"
        f"found = {HEAVY} & set(sys.modules)\nassert not found, found"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # What the processor did: another process may have it now, and that is not our time.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_the_version_and_the_program_are_the_package() -> None:
    for program in ([str(Path(sys.executable).with_name("partialsgd"))], PROGRAM):
        found = subprocess.run([*program, "--version"], check=True, capture_output=True, text=True)
        assert found.stdout == f"partialsgd {partialsgd.__version__}\n"


PAGES = [
    [],
    *([name] for name in OF_RUNS),
    *([name] for name in OF_SETTINGS),
    *([name, recipe] for name in OF_SETTINGS for recipe in RECIPES),
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


def without_space(text: str) -> str:
    return re.sub(r"[\s│]+", "", text)


def test_the_first_page_has_every_command_and_train_every_recipe(call: Call) -> None:
    _, out, _ = call("--help")
    for name, kind in {**OF_RUNS, **OF_SETTINGS}.items():
        assert re.search(rf"• {name} +{(kind.__doc__ or '').split()[0]}", out)
    _, out, _ = call("train", "--help")
    assert "(default: translation)" in out
    for recipe in RECIPES:
        assert f"• {recipe} " in out


def test_help_shows_the_values_of_the_preset_and_of_the_file(call: Call, tmp_path: Path) -> None:
    for preset, width in (("laptop", 128), ("iwslt14", 512)):
        _, out, _ = call("train", "translation", "--preset", preset, "--help")
        assert f"(default:{preset})" in without_space(out)
        assert f"embeddings.(default:{width})" in without_space(out)
    (tmp_path / "run.toml").write_text("d-model = 96")
    _, out, _ = call("train", f"--config={tmp_path / 'run.toml'}", "--help")
    assert "embeddings.(default:96)" in without_space(out)


def test_every_setting_has_one_place_in_the_help() -> None:
    places = Counter(name for names in GROUPS.values() for name in names)
    assert set(places.values()) == {1}
    assert set(places) == {field.name for kind in RECIPES.values() for field in fields(kind)}


def read(*argv: str) -> Any:
    return parse_settings(Train, "train", argv)[1]


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


WRONG = [
    (["trian"], "there is no command 'trian'; did you mean train?"),
    (["frobnicate"], "there is no command 'frobnicate'; `partialsgd --help` lists them"),
    (["train", "image"], "there is no recipe 'image'; there are translation, images, tabular"),
    (["train", "--ratio", "7"], "--ratio: a ratio must be in (0, 1], got '7'"),
    (["train", "--ratio", "half"], "--ratio: a ratio is written 1/32 or 0.03125; got 'half'"),
    (["train", "--epochs", "0"], "--epochs must be a whole number, at least 1; got 0"),
    (["train", "--checkpoint-every", "-1"], "--checkpoint-every must be a whole number, at least 1; got -1"),
    (["train", "--method", "sma"], "--method: there is no method 'sma'; did you mean sam?"),
    (["train", "--method", "sam(rh=1)"], "--method: the method 'sam' has no option 'rh'; it is sam(rho=0.05, "),
    (["train", "--method", "sam("], "--method: the method 'sam(' cannot be read"),
    (["train", "--config", "none.toml"], "none.toml does not exist"),
    (["train", "--config"], "--config"),
    (["train", "--epoch", "1"], "--epochs"),
    (["train", "--epochs", "1.5"], "--epochs"),
    (["train", "--nest", "deep"], "--nest"),
    (["train", "images", "--preset", "cifar"], "--preset"),
    (["methods", "adma"], "there is no method 'adma'"),
    (["evaluate"], "RUN"),
    (["evaluate", "runs", "--split", "train"], "--split"),
    (["compare", "--seeds", "0"], "--seeds must be a whole number, at least 1; got 0"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=[" ".join(argv) for argv, _ in WRONG])
def test_a_wrong_call_ends_with_2_and_names_what_is_wrong(call: Call, argv: list[str], message: str) -> None:
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err


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


def test_no_arguments_show_the_help_and_are_a_wrong_call(call: Call) -> None:
    code, out, _ = call()
    assert code == 2 and "• train" in out


def raising(error: BaseException) -> Callable[[Any], None]:
    def run(self: Any) -> None:
        raise error

    return run


def test_a_failure_ends_with_1_and_its_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OF_RUNS["methods"], "__call__", raising(OSError("the disk is full")))
    assert call("methods") == (1, "", "partialsgd: the disk is full\n")
    monkeypatch.setenv("PARTIALSGD_TRACEBACK", "1")
    code, _, err = call("methods")
    assert code == 1 and err.startswith("Traceback (most recent call last)") and err.endswith("the disk is full\n")


def test_a_directory_that_is_no_run_is_named(call: Call, tmp_path: Path) -> None:
    code, out, err = call("evaluate", str(tmp_path))
    assert (code, out) == (2, "") and f"{tmp_path} is no run" in err


def test_errors_of_others_say_what_kind_they_are(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OF_RUNS["methods"], "__call__", raising(KeyError("weight")))
    assert call("methods") == (1, "", "partialsgd: KeyError: 'weight'; PARTIALSGD_TRACEBACK=1 shows where\n")
    monkeypatch.setattr(OF_RUNS["methods"], "__call__", raising(KeyboardInterrupt()))
    assert call("methods") == (1, "", "partialsgd: interrupted; a training goes on by `partialsgd resume RUN`\n")


def test_a_reader_that_has_seen_enough_is_no_failure_to_speak_of() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
        found = subprocess.run([*PROGRAM, "methods"], stdout=closed, stderr=subprocess.PIPE)
    assert found.stderr == b""


def test_without_tyro_the_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert call("methods") == (1, "", "partialsgd: the command line needs tyro: pip install partialsgd[recipes]\n")


@pytest.mark.parametrize("name", ["accelerate", "rich"])
def test_without_another_library_of_the_recipes_the_extra_is_named(name: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from partialsgd.cli import main; sys.exit(main(['resume', '.']))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (
        1,
        f"partialsgd: {name} is needed for this: pip install partialsgd[recipes]\n",
    )


def test_methods_are_listed_with_their_line(call: Call) -> None:
    _, out, _ = call("methods")
    assert max(map(len, out.splitlines())) <= 80
    for name, summary in methods.SUMMARIES.items():
        assert f"{name} {summary}" in re.sub(r"\s+", " ", out)


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_a_method_without_torch_is_the_method_with_it(call: Call, name: str) -> None:
    function = getattr(methods, name)
    told = {p.name: p for p in inspect.signature(function).parameters.values() if p.name not in registry.NETWORKS}
    defaults = {option: None if p.default is p.empty else repr(p.default) for option, p in told.items()}
    found = registry.options_of(name)
    assert list(found) == list(told)
    for option, default in defaults.items():
        same = (
            found[option] is None
            if default is None
            else repr(eval(str(found[option]), vars(sys.modules[function.__module__]))) == default
        )
        assert same, option
    _, out, _ = call("methods", name)
    assert out.startswith(f"{name}(") and (inspect.getdoc(function) or "") in out


def test_methods_in_methods_are_checked_too() -> None:
    registry.require_method("compose(alternating, guarded(sam(rho=0.1), fallback=plain))")
    for text, message in (
        ("compose(alternating, sma)", "there is no method 'sma'"),
        ("guarded(method=sam(rhoo=1))", "the method 'sam' has no option 'rhoo'"),
        ("alternating + sam", "cannot be read"),
        ("ps.sam()", "cannot be read"),
        ("sam(**x)", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            registry.require_method(text)
