"""Files that are written whole or not at all, and checksums.

A kill, a full disk or a power failure at any moment leaves the old file or the new one, never a part of one. The new
bytes go to a temporary file beside the old one, are flushed to the disk, and take the old one's name by `os.replace`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

STAGE = ".being_written"
"""The only name that a kill inside `staged` or `write_alone` can leave in a directory; the next of them removes it."""


def write_alone(path: Path, data: bytes) -> None:
    """Write one file into a directory that only this process writes into; a kill after it leaves nothing else."""
    clear_stage(path.parent)
    write_bytes(path, data, path.with_name(STAGE))


def write_bytes(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Write one file whole or not at all; missing directories are made, and several processes may write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary or path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    fsync(path.parent)


def open_to_change(path: Path) -> BinaryIO:
    """Open a file to read and write it in place, and make it if it is missing; a symbolic link is not followed."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.fdopen(os.open(path, flags, 0o666), "r+b")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(f"{path} is a symbolic link, and nothing is written through one; remove it") from error


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return a value as the text of a JSON file, indented, with a newline at the end."""
    return json.dumps(value, indent=2) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a ValueError names the file and says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise ValueError(f"{path} cannot be read ({error}); it is damaged or only partly copied: restore it") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, and holds a {type(value).__name__}; is it the right file?")
    return value


@contextmanager
def staged(directory: Path, *, last: str | None = None) -> Iterator[Path]:
    """Give an empty folder to write several files into; at the end of the block they move into `directory`.

    If the block raises, nothing moves. Each file is replaced whole. The file named `last` is removed before any other
    is replaced and arrives after them, so that it never stands beside files of another write. Only one process may
    write to a directory in this way.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file; give the directory that the files are to be written into")
    existed = directory.exists()
    stage = clear_stage(directory)
    stage.mkdir(parents=True)
    try:
        yield stage
        _replace(stage, directory, last)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if not existed:
            with suppress(OSError):  # the directory holds the files, unless writing failed
                directory.rmdir()


def fsync(path: Path) -> None:
    """Flush a file or a directory to the disk, so that a power failure does not leave a name without its bytes."""
    if path.is_dir() and os.name == "nt":
        return  # Windows does not open directories
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(*parts: str | bytes) -> str:
    """Hash the parts with their lengths, so that the same text divided elsewhere has another hash."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def clear_stage(directory: Path) -> Path:
    """Remove what a kill has left, and return its path."""
    stage = directory / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    with suppress(FileNotFoundError):
        stage.unlink()  # a file or a link; what could not be removed is an error
    return stage


def _replace(stage: Path, directory: Path, last: str | None) -> None:
    files = sorted(stage.iterdir(), key=lambda file: file.name == last)
    for file in files:
        file.chmod(stage.stat().st_mode & 0o666)  # safetensors makes files that only their owner can read
        fsync(file)
    if last is not None and files and files[-1].name == last:
        (directory / last).unlink(missing_ok=True)
    for file in files:
        os.replace(file, directory / file.name)
    fsync(directory)
