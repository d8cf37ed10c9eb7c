"""Result files: one JSON object a line. Only one process writes to a file, and it replaces the file as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from partialsgd._util import files

Record: TypeAlias = dict[str, Any]

RESULTS = Path(__file__).parent / "results"


def read(path: Path) -> list[Record]:
    """The records of a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line] if path.exists() else []


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write all records or, if the process is killed meanwhile, leave the file as it was."""
    files.write_text(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records))


def put(path: Path, record: Mapping[str, Any], key: Sequence[str]) -> None:
    """Add a record in order of its key, in the place of one with the same key."""

    def key_of(each: Mapping[str, Any]) -> list[Any]:
        return [each[name] for name in key]

    others = [each for each in read(path) if key_of(each) != key_of(record)]
    write(path, sorted([*others, record], key=key_of))
