"""The pages of docs/api, which git ignores: one for each public name, written before the site is built."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import partialsgd

MODULES_BESIDE_ALL = ["integrations", "testing"]
"""Public modules that `partialsgd.__all__` does not name; see docs/design.md."""


def title(text: str, underline: str = "=") -> list[str]:
    return [text, underline * len(text), ""]


def entry(name: str, value: object) -> list[str]:
    """The directive that documents a class, a function or a constant."""
    if inspect.isclass(value):
        return [f".. autoclass:: {name}", "   :members:", ""]
    if callable(value):
        return [f".. autofunction:: {name}", ""]
    return [f".. autodata:: {name}", "   :no-value:", ""]


def public_names(module: ModuleType) -> list[str]:
    """The module's `__all__`, or what it defines without a leading underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return sorted(name for name in own if not name.startswith("_"))


def module_page(module: ModuleType) -> list[str]:
    name = module.__name__
    lines = [*title(f"{name.removeprefix('partialsgd.')} (module)"), f".. automodule:: {name}", ""]
    lines += [f".. currentmodule:: {name}", ""]
    for public_name in public_names(module):
        value = getattr(module, public_name)
        if public_name in partialsgd.__all__:
            lines += [f":doc:`{public_name} <{public_name}>` has a page of its own.", ""]
        elif inspect.getdoc(value) and not isinstance(value, ModuleType | tuple | dict | str):
            lines += entry(public_name, value)
    return lines


def first_paragraph(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def public_values() -> dict[str, object]:
    values = {name: getattr(partialsgd, name) for name in partialsgd.__all__ if name != "__version__"}
    values |= {name: import_module(f"partialsgd.{name}") for name in MODULES_BESIDE_ALL}
    return dict(sorted(values.items(), key=lambda item: item[0].lower()))


def listing() -> str:
    """A list of all pages with what each documents, in Markdown, and their place in the menu."""
    values = public_values()
    lines = [f"- [{name}](api/{name}.rst): {first_paragraph(value)}" for name, value in values.items()]
    toctree = ["```{toctree}", ":hidden:", "", *(f"api/{name}" for name in values), "```"]
    return "\n".join([*lines, "", *toctree, ""])


def write(folder: Path) -> None:
    """Write a page for each public name; remove the pages of names that are gone."""
    pages = {}
    for name, value in public_values().items():
        if isinstance(value, ModuleType):
            pages[name] = module_page(value)
        else:
            pages[name] = [*title(name), ".. currentmodule:: partialsgd", "", *entry(name, value)]
    folder.mkdir(exist_ok=True)
    for page in folder.glob("*.rst"):
        if page.stem not in pages:
            page.unlink()
    for name, lines in pages.items():
        page, text = folder / f"{name}.rst", "\n".join(lines)
        if not page.exists() or page.read_text(encoding="utf-8") != text:  # Sphinx reads again what is newer
            page.write_text(text, encoding="utf-8")
