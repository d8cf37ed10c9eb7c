"""The command line: how a call ends, what is said about a wrong one, and that help does not wait for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import partialsgd
from partialsgd.lab.cli.commands import COMMANDS
from partialsgd.lab.training.errors import Stopped
from tests.lab.cli.calls import Call, as_text, require_wrong

HEAVY = {"torch", "transformers", "sklearn", "tokenizers", "accelerate", "babel", "numpy", "sacrebleu", "safetensors"}
PROGRAM = [sys.executable, "-m", "partialsgd"]


@pytest.mark.parametrize("argv", [["--help"], ["methods"], ["train", "--help"], ["train", "--show-settings"]])
def test_help_and_methods_import_nothing_heavy(argv: list[str]) -> None:
    code = (
        f"import sys; from partialsgd.lab.cli import main\ntry: main({argv})\nexcept SystemExit: pass\n"
        f"found = {HEAVY} & set(sys.modules)\nassert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version_and_the_program_are_the_package() -> None:
    for program in ([str(Path(sys.executable).with_name("partialsgd"))], PROGRAM):
        found = subprocess.run([*program, "--version"], check=True, capture_output=True, text=True)
        assert found.stdout == f"partialsgd {partialsgd.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "there is no command 'trian'; did you mean train?"),
        (["frobnicate"], "there is no command 'frobnicate'; `partialsgd --help` lists them"),
    ],
    ids=as_text,
)
def test_a_wrong_command_ends_with_2_and_is_named(call: Call, argv: list[str], message: str) -> None:
    require_wrong(call, argv, message)


def test_no_arguments_show_the_help_and_are_a_wrong_call(call: Call) -> None:
    code, out, _ = call()
    assert code == 2 and "• train" in out


def raising(error: BaseException) -> Callable[[Any], None]:
    def run(self: Any) -> None:
        raise error

    return run


def test_a_failure_ends_with_1_and_its_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMMANDS["methods"], "__call__", raising(OSError("the disk is full")))
    assert call("methods") == (1, "", "partialsgd: the disk is full\n")
    monkeypatch.setenv("PARTIALSGD_TRACEBACK", "1")
    code, _, err = call("methods")
    assert code == 1 and err.startswith("Traceback (most recent call last)") and err.endswith("the disk is full\n")


def test_errors_of_others_say_what_kind_they_are(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMMANDS["methods"], "__call__", raising(KeyError("weight")))
    assert call("methods") == (1, "", "partialsgd: KeyError: 'weight'; PARTIALSGD_TRACEBACK=1 shows where\n")
    monkeypatch.setattr(COMMANDS["methods"], "__call__", raising(KeyboardInterrupt()))
    assert call("methods") == (1, "", "partialsgd: interrupted; `partialsgd resume RUN` continues a training\n")


def test_of_several_processes_that_are_stopped_one_says_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMMANDS["methods"], "__call__", raising(Stopped("saved at step 3")))
    monkeypatch.delenv("RANK", raising=False)
    assert call("methods") == (1, "", "partialsgd: saved at step 3\n")
    monkeypatch.setenv("RANK", "0")
    assert call("methods") == (1, "", "partialsgd: saved at step 3\n")
    monkeypatch.setenv("RANK", "1")
    assert call("methods") == (1, "", "")


def test_a_reader_that_has_seen_enough_is_no_failure_to_speak_of() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
        found = subprocess.run([*PROGRAM, "methods"], stdout=closed, stderr=subprocess.PIPE)
    assert found.stderr == b""


def test_without_tyro_the_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert call("methods") == (1, "", "partialsgd: the command line needs tyro: pip install partialsgd[lab]\n")


@pytest.mark.parametrize("name", ["accelerate", "rich"])
def test_without_another_library_of_the_recipes_the_extra_is_named(name: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from partialsgd.lab.cli import main; exit(main(['resume', '.']))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (
        1,
        f"partialsgd: this command needs {name}: pip install partialsgd[lab]\n",
    )
