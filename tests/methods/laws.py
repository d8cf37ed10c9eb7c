"""The settings in which the laws try each method of the registry: its defaults, or what its test file says.

`tests/methods/test_<name>.py` may have
- `LAWS`: methods by case; the case "" is the main one, which is tried on more problems than the others;
- `REFUSED_PROBLEMS`: problems of `partialsgd.testing` that the method has no meaning on, and raises for;
- `REFUSED_OPTIMIZERS`: optimizers that it raises for;
- `REFUSED_SETTINGS`: settings with the message of the `ValueError` that they raise;
- `IDENTITY`: methods in settings that must be plain training.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from partialsgd import Method, methods
from partialsgd.testing.problems import PROBLEMS


def of_test_file(name: str, attribute: str, default: Any) -> Any:
    return getattr(import_module(f"tests.methods.test_{name}"), attribute, default)


def trains_levels(method: Method) -> bool:
    """True if the method needs a nested model."""
    try:
        method.bind(next(problem for problem in PROBLEMS if problem.name == "mlp").model())
    except TypeError:
        return True
    return False


ALL: dict[str, dict[str, Method]] = {
    name: of_test_file(name, "LAWS", None) or {"": getattr(methods, name)()} for name in methods.NAMES
}
"""Methods by name and case."""
OF_LEVELS = {name: cases for name, cases in ALL.items() if trains_levels(next(iter(cases.values())))}
METHODS = {
    f"{name}_{case}" if case else name: method
    for name, cases in ALL.items()
    if name not in OF_LEVELS
    for case, method in cases.items()
}
NAME_OF = {f"{name}_{case}" if case else name: name for name, cases in ALL.items() for case in cases}
IDENTITIES = [(name, method) for name in ALL for method in of_test_file(name, "IDENTITY", [])]
REFUSED_PROBLEMS = {
    (key, problem)
    for key, method in METHODS.items()
    for problem in of_test_file(NAME_OF[key], "REFUSED_PROBLEMS", {}).get(key.removeprefix(NAME_OF[key]).strip("_"), ())
}
REFUSED_OPTIMIZERS = {
    (key, optimizer) for key in METHODS for optimizer in of_test_file(NAME_OF[key], "REFUSED_OPTIMIZERS", ())
}
