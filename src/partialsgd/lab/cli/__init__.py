"""`partialsgd …`: what a call means. It only parses and calls.

torch is imported by the commands that need it, so that --help and methods answer at once.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

import partialsgd
from partialsgd.lab.cli import options, pages
from partialsgd.lab.cli.commands import OF_RUNS, OF_SETTINGS
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.stopping import Stopped

__all__ = ["main"]

_EXTRA = ("accelerate", "babel", "rich", "sacrebleu", "sklearn", "tokenizers", "tomli", "transformers", "tyro")

_ABOUT = """\
Train a network and the smaller ones inside it in one run, and use each of them.

$ partialsgd train                         # some minutes; ends in a table
$ partialsgd train --help                  # the recipes
$ partialsgd translate RUN --level core    # a line in, a line out
$ partialsgd --version

Exit codes: 0 done, 1 failed, 2 a wrong call. PARTIALSGD_TRACEBACK=1 shows where a failure happened.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say. 0: done, 1: it failed, 2: the call was wrong."""
    try:
        _command(list(sys.argv[1:] if argv is None else argv))()
        sys.stdout.flush()  # what cannot be written is found out here
    except WrongCall as error:
        return _ended(str(error), 2)
    except Stopped as error:
        return _ended(str(error), 1) if os.environ.get("RANK", "0") == "0" else 1  # one of several processes says it
    except KeyboardInterrupt:
        return _ended("interrupted; a training goes on by `partialsgd resume RUN`", 1)
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("PARTIALSGD_TRACEBACK"):
            traceback.print_exc()
        return _ended(_message(error), 1)
    return 0


def _command(argv: list[str]) -> Callable[[], None]:
    """What is to be done. --help, and options that are wrong, end the process here."""
    if not argv:
        return partial(_help, code=2)
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help"):
        return _help
    if name == "--version":
        return partial(print, f"partialsgd {partialsgd.__version__}")
    if name in OF_RUNS:
        command: Callable[[], None] = options.parse(OF_RUNS[name], name, rest)
        return command
    if name not in OF_SETTINGS:
        close = get_close_matches(name, [*OF_RUNS, *OF_SETTINGS], n=1)
        hint = f"did you mean {close[0]}?" if close else "`partialsgd --help` lists them"
        raise WrongCall(f"there is no command {name!r}; {hint}")
    if rest in (["-h"], ["--help"]):
        return partial(_recipes, name)
    run, settings = options.parse_settings(OF_SETTINGS[name], name, rest)
    return partial(run, settings)


def _help(code: int = 0) -> None:
    pages.show_choices("partialsgd", _ABOUT, {**OF_SETTINGS, **OF_RUNS})
    sys.exit(code)


def _recipes(name: str) -> None:
    about = f"{inspect.getdoc(OF_SETTINGS[name])}\n\nA recipe's options: partialsgd {name} {pages.DEFAULT} --help"
    pages.show_choices(f"partialsgd {name}", about, RECIPES, default=pages.DEFAULT)


def _ended(message: str, code: int) -> int:
    print(f"partialsgd: {message}", file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    """The errors of this package say what is wrong; of others the kind is part of the message."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if library in _EXTRA:
        return f"{library} is needed for this: pip install partialsgd[lab]"
    said = isinstance(error, (ValueError, OSError, RuntimeError, ImportError, ArithmeticError))
    is_ours = type(error).__module__.startswith("partialsgd.")
    if said or is_ours:
        return str(error)
    return f"{type(error).__name__}: {error}; PARTIALSGD_TRACEBACK=1 shows where"
