"""The command line: how a call ends, what is said about a wrong one, and that help does not wait for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import partialsgd
from partialsgd._util.extras import missing
from partialsgd.lab.cli.commands import COMMANDS
from partialsgd.lab.training.errors import AlreadyThere, NotThere, Stopped, WrongCall
from tests.lab.cli.calls import Call, require_wrong

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


def test_a_reader_that_has_seen_enough_is_no_failure_to_speak_of() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
        found = subprocess.run([*PROGRAM, "methods"], stdout=closed, stderr=subprocess.PIPE)
    assert found.stderr == b""


def test_a_wrong_command_or_none_is_a_wrong_call(call: Call) -> None:
    require_wrong(call, ["trian"], "there is no command 'trian'; did you mean train?")
    require_wrong(call, ["frobnicate"], "there is no command 'frobnicate'; `partialsgd --help` lists them")
    code, out, _ = call()
    assert code == 2 and "\ntrain " in out


@pytest.mark.parametrize(
    ("error", "rank", "expected"),
    [
        (WrongCall("so it is"), "0", (2, "", "partialsgd: so it is\n")),
        (NotThere("so it is"), "0", (2, "", "partialsgd: so it is\n")),
        (AlreadyThere("so it is"), "0", (2, "", "partialsgd: so it is\n")),
        (ValueError("so it is"), "0", (1, "", "partialsgd: so it is\n")),
        (FileNotFoundError("so it is"), "0", (1, "", "partialsgd: so it is\n")),
        (FileExistsError("so it is"), "0", (1, "", "partialsgd: so it is\n")),
        (KeyError("weight"), "0", (1, "", "partialsgd: KeyError: 'weight'; PARTIALSGD_TRACEBACK=1 shows where\n")),
        (KeyboardInterrupt(), "0", (1, "", "partialsgd: interrupted; `partialsgd resume RUN` continues a training\n")),
        (Stopped("saved at step 3"), "0", (1, "", "partialsgd: saved at step 3\n")),
        (Stopped("saved at step 3"), "1", (1, "", "")),  # of several processes one says it
    ],
    ids=str,
)
def test_a_wrong_call_ends_with_2_and_a_failure_with_1(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, rank: str, expected: tuple[int, str, str]
) -> None:
    def fail(self: Any) -> None:
        raise error

    monkeypatch.setattr(COMMANDS["methods"], "__call__", fail)
    monkeypatch.setenv("RANK", rank)
    assert call("methods") == expected
    monkeypatch.setenv("PARTIALSGD_TRACEBACK", "1")
    code, _, err = call("methods")
    is_unexpected = isinstance(error, Exception) and not isinstance(error, (WrongCall, Stopped))
    assert code == expected[0] and err.startswith("Traceback (most recent call last)") == is_unexpected


@pytest.mark.parametrize("name", ["tyro", "accelerate", "rich"])
def test_without_a_library_of_the_lab_the_extra_is_named(name: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from partialsgd.lab.cli import main; exit(main(['resume', '.']))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (1, f"partialsgd: {missing(f'this command needs {name}', 'lab')}\n")
