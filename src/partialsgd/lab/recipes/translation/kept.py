"""Text that is made once and kept in a folder, under a name that says what it was made from."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def key(*parts: str) -> str:
    """A hash of what decides: with other parts, or the same cut elsewhere, it is another."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode()
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def text(name: str, make: Callable[[], str], folder: str | os.PathLike[str] | None = None) -> str:
    """What is kept under the name, or what `make` makes, which is then kept.

    A damaged file is made anew. Where nothing can be written it is made each time: that is slower, and no error.
    """
    file = (default_folder() if folder is None else Path(folder)) / name
    found = _read(file)
    if found is None:
        found = make()
        with suppress(OSError):
            _write(file, found)
    return found


def default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "partialsgd"


def _read(file: Path) -> str | None:
    try:
        said, _, found = file.read_bytes().decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return found if said == key(found) else None


def _write(file: Path, made: str) -> None:
    """Whole or not at all: another process may be reading or writing it. The first line vouches for the rest."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    try:
        with open(descriptor, "wb") as out:
            out.write(f"{key(made)}\n{made}".encode())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
