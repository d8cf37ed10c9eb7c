"""Messages that say what to install work from a clone, and are made in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partialsgd._util import extras

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["lab", "export"])
def test_the_command_names_files_and_an_extra_of_the_clone(extra: str) -> None:
    error = extras.missing("to do this, that is needed", extra)
    assert isinstance(error, ImportError)
    need, command = str(error).split(": ")
    found = re.fullmatch(r'pip install -c (\S+) "\.\[(\w+)\]" in a clone of partialsgd', command)
    assert need == "to do this, that is needed" and found is not None
    assert (ROOT / found[1]).is_file() and f"\n{found[2]} = [" in (ROOT / "pyproject.toml").read_text()


def test_no_other_module_says_how_to_install_this_package() -> None:
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")}
    telling = [file.name for file, text in sources.items() if re.search(r"pip install (-c|\.|\"|partialsgd)", text)]
    assert telling == ["extras.py"]
