"""A corpus in a folder: `train.de`, `train.en`, `valid.de`, …, a sentence a line, plain or gzipped.

fairseq's preparation scripts write such a folder; its `code`, `bpe.code` and `tmp` are ignored.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from partialsgd.lab.recipes.translation import marks
from partialsgd.lab.recipes.translation.corpus import SPLITS, Corpus, Pair

_NAME = re.compile(r"(?P<split>train|valid|dev|test)(\.(?P<pair>[\w-]+))?\.(?P<language>(?!gz$)[\w-]+)(\.gz)?")
Place: TypeAlias = tuple[str, str]
"""A split and a language."""


def read(folder: str | os.PathLike[str], source: str, target: str) -> Corpus:
    """Read the corpus of a folder as plain text: BPE and Moses' tokenisation are undone, with a note.

    A pair in which a line is empty is dropped, with a note. `dev` is another name of `valid`, and `train.de-en.de`
    of `train.de`.
    """
    if source == target:
        raise ValueError(f"source and target are both {source!r}: choose two languages")
    files = _files(Path(folder), source, target)
    lines = {place: _lines(file) for place, file in files.items()}
    for split in SPLITS:
        _require_aligned(*((files[split, language], lines[split, language]) for language in (source, target)))
    notes = [note for language in (source, target) for note in _join(lines, language)]
    splits: dict[str, list[Pair]] = {}
    for split in SPLITS:
        names = files[split, source].name, files[split, target].name
        pairs = list(zip(lines[split, source], lines[split, target], strict=True))
        splits[split] = [pair for pair in pairs if all(pair)]
        if not splits[split]:
            raise ValueError(f"{files[split, source]} and {names[1]} have no pair of lines that are not empty")
        notes += _dropped(split, names, pairs)
    return Corpus(source, target, splits, tuple(notes))


def _files(folder: Path, source: str, target: str) -> dict[Place, Path]:
    """The file of each split and language; an error names the one that is missing."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: give one with train.{source}, train.{target} and so on")
    files = _matching_files(folder, {f"{source}-{target}", f"{target}-{source}"})
    there = ", ".join(sorted(path.name for paths in files.values() for path in paths)) or "none of that kind"
    for language in (source, target):
        if not any(place[1] == language for place in files):
            raise FileNotFoundError(f"{folder} has no files in {language!r}, such as train.{language}; it has {there}")
        for split in SPLITS:
            paths = files.get((split, language), [])
            if not paths:
                raise FileNotFoundError(f"{folder} has no {split}.{language}, plain or .gz; it has {there}")
            if len(paths) > 1:
                names = " and ".join(path.name for path in paths)
                raise ValueError(f"{folder} has {names}, and only one can be the {split} split: remove the others")
    return {(split, language): files[split, language][0] for split in SPLITS for language in (source, target)}


def _matching_files(folder: Path, pairs: set[str]) -> dict[Place, list[Path]]:
    files: dict[Place, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name and path.is_file() and (name["pair"] is None or name["pair"] in pairs):
            split = "valid" if name["split"] == "dev" else name["split"]
            files.setdefault((split, name["language"]), []).append(path)
    return files


def _lines(file: Path) -> list[str]:
    """Only a line feed ends a line: other separators of Unicode may stand in a sentence."""
    data = _bytes(file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        data = error.object  # without the mark that may open a file
        before = data[: error.start]
        line, byte = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ValueError(
            f"{file}, line {line}, byte {byte}: 0x{data[error.start]:02x} is not UTF-8; convert the file, "
            "for instance with iconv"
        ) from error
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


def _bytes(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file: {error}") from error


def _require_aligned(first: tuple[Path, list[str]], second: tuple[Path, list[str]]) -> None:
    (shorter, few), (longer, many) = sorted((first, second), key=lambda side: len(side[1]))
    if len(few) < len(many):
        raise ValueError(
            f"{longer} has {len(many):,} lines and {shorter.name} has {len(few):,}, so line {len(few) + 1} of "
            f"{longer.name} has no partner; line n of one file must be the translation of line n of the other"
        )


def _join(lines: dict[Place, list[str]], language: str) -> list[str]:
    """Undo the preprocessing of a language in all splits; its training text decides what is undone."""
    notes = []
    if marks.has_bpe(lines["train", language]):
        for split in SPLITS:
            lines[split, language] = [marks.join_bpe(line) for line in lines[split, language]]
        notes.append(f"{language}: the words that BPE had cut (@@) were joined")
    share = marks.share_alone(lines["train", language])
    if share >= marks.MOSES:
        for split in SPLITS:
            lines[split, language] = [marks.join_moses(line, language) for line in lines[split, language]]
        evidence = f"{share:.0%} of commas and last full stops stand alone"
        notes.append(f"{language}: looks Moses-tokenised ({evidence}) and was detokenised")
    return notes


def _dropped(split: str, names: tuple[str, str], pairs: Sequence[Pair]) -> list[str]:
    where = {
        f"in {names[0]}": sum(not source and bool(target) for source, target in pairs),
        f"in {names[1]}": sum(bool(source) and not target for source, target in pairs),
        "in both": sum(not source and not target for source, target in pairs),
    }
    if not any(where.values()):
        return []
    counts = ", ".join(f"{count:,} {place}" for place, count in where.items() if count)
    return [f"{split}: {sum(where.values()):,} of {len(pairs):,} pairs dropped, because a line is empty: {counts}"]
