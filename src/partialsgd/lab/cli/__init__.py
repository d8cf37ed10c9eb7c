"""The command line `partialsgd …`: it parses a call and runs the command.

Commands import torch only when they need it, so that --help and `methods` answer at once.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

import partialsgd
from partialsgd._util.extras import missing
from partialsgd.lab.cli import parsing
from partialsgd.lab.cli.commands import COMMANDS, WITH_SETTINGS
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training.errors import Stopped, WrongCall

__all__ = ["main"]

_EXTRA = ("accelerate", "babel", "rich", "sacrebleu", "sklearn", "tokenizers", "tomli", "transformers", "tyro")

_ABOUT = """\
Train a network and the smaller ones inside it in one run, and use each of them.

$ partialsgd train                         # some minutes; ends with a table
$ partialsgd train --help                  # the recipes
$ partialsgd translate RUN --level core    # a line in, a line out
$ partialsgd --version

Exit codes: 0 success, 1 failure, 2 wrong call. PARTIALSGD_TRACEBACK=1 shows where a failure happened.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 for success, 1 for a failure, 2 for a wrong call."""
    try:
        _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # so that a broken pipe is noticed here
    except WrongCall as error:
        return _fail(str(error), 2)
    except Stopped as error:
        return _fail(str(error), 1) if os.environ.get("RANK", "0") == "0" else 1  # the other ranks stay silent
    except KeyboardInterrupt:
        return _fail("interrupted; `partialsgd resume RUN` continues a training", 1)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("PARTIALSGD_TRACEBACK"):
            traceback.print_exc()
        return _fail(_message(error), 1)
    return 0


def _run(argv: list[str]) -> None:
    """Run the command that the arguments describe. --help and wrong options end the process."""
    name, rest = (argv or ["--help"])[0], argv[1:]
    if name in ("-h", "--help"):
        parsing.show_choices("partialsgd", _ABOUT, {**WITH_SETTINGS, **COMMANDS})
        sys.exit(0 if argv else 2)
    elif name == "--version":
        print(f"partialsgd {partialsgd.__version__}")
    elif name in COMMANDS:
        parsing.parse(COMMANDS[name], f"partialsgd {name}", rest)()
    elif name not in WITH_SETTINGS:
        close = get_close_matches(name, [*COMMANDS, *WITH_SETTINGS], n=1)
        hint = f"did you mean {close[0]}?" if close else "`partialsgd --help` lists them"
        raise WrongCall(f"there is no command {name!r}; {hint}")
    elif rest in (["-h"], ["--help"]):
        options = f"The options of a recipe: partialsgd {name} {parsing.DEFAULT} --help"
        about = f"{inspect.getdoc(WITH_SETTINGS[name])}\n\n{options}\n\nWithout NAME the recipe is {parsing.DEFAULT}."
        parsing.show_choices(f"partialsgd {name}", about, RECIPES)
    else:
        command, settings = parsing.parse_settings(WITH_SETTINGS[name], name, rest)
        command(settings)


def _fail(message: str, code: int) -> int:
    print(f"partialsgd: {message}", file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    """The message of an error; errors that are not meant for users are shown with their type."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module in _EXTRA:
        return str(missing(f"this command needs {module}", "lab"))
    explains_itself = isinstance(error, (ValueError, OSError, RuntimeError, ImportError, ArithmeticError))
    if explains_itself or type(error).__module__.startswith("partialsgd."):
        return str(error)
    return f"{type(error).__name__}: {error}; PARTIALSGD_TRACEBACK=1 shows where"
