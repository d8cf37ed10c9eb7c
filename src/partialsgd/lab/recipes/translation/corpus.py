"""A parallel corpus: pairs of sentences in two languages in three splits, read as plain text from a folder.

The folder has `train.de`, `train.en`, `valid.de`, …, a sentence a line, plain or gzipped, as fairseq's preparation
scripts write it; its `code`, `bpe.code` and `tmp` are ignored. BPE marks, and the spaces and escapes of Moses'
tokeniser, are undone here, so that a model reads and writes plain text and scores do not depend on the preparation.
"""

from __future__ import annotations

import gzip
import os
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from partialsgd._util.files import sha256

Pair: TypeAlias = tuple[str, str]

SPLITS = ("train", "valid", "test")
Place: TypeAlias = tuple[str, str]
"""A split and a language."""

_NAME = re.compile(r"(?P<split>train|valid|dev|test)(\.(?P<pair>[\w-]+))?\.(?P<language>(?!gz$)[\w-]+)(\.gz)?")
MOSES = 0.9
"""Text is taken for Moses-tokenised if at least this share of its marks stand alone."""
_LOOK_AT = 10_000  # lines: enough to know

_BPE = re.compile(r"@@( |$)")
_ESCAPES = {
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&apos;": "'",
    "&#91;": "[",
    "&#93;": "]",
    "&amp;": "&",  # the last, because Moses escapes it first
}
_QUOTES = {"'": "'", '"': '"', "``": "``", "`": "`", "''": "''", "„": '"', "“": '"'}
_ELIDING = {"fr", "it", "ga"}


@final
@dataclass(frozen=True)
class Corpus:
    """The splits of a corpus. Their text is never tokenised, so that scores are computed on text as people write it."""

    source: str
    """The language code or locale of the first sentence of each pair."""
    target: str
    splits: dict[str, list[Pair]]
    """The pairs of "train", "valid" and "test"."""
    notes: tuple[str, ...] = ()
    """Lines for the user: what was dropped, joined or left out, with counts."""


def corpus_hash(corpus: Corpus) -> str:
    """Hash the languages and all text."""
    parts = [corpus.source, corpus.target]
    for split in SPLITS:
        pairs = corpus.splits[split]
        parts += [split, str(len(pairs)), *(text for pair in pairs for text in pair)]
    return sha256(*parts)


def read_folder(folder: str | os.PathLike[str], source: str, target: str) -> Corpus:
    """Read the corpus of a folder as plain text: BPE and Moses' tokenisation are undone, with a note.

    A pair in which a line is empty is dropped, with a note. `dev` is another name of `valid`, and `train.de-en.de`
    of `train.de`.
    """
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
    files: dict[Place, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name and path.is_file() and name["pair"] in (None, f"{source}-{target}", f"{target}-{source}"):
            split = "valid" if name["split"] == "dev" else name["split"]
            files.setdefault((split, name["language"]), []).append(path)
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


def _lines(file: Path) -> list[str]:
    """Only a line feed ends a line: other separators of Unicode may stand in a sentence."""
    data = file.read_bytes()
    try:
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]  # without the mark that may open a file
        line, byte = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ValueError(
            f"{file}, line {line}, byte {byte}: 0x{error.object[error.start]:02x} is not UTF-8; convert the file, "
            "for instance with iconv"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file: {error}") from error
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


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
    if has_bpe(lines["train", language]):
        for split in SPLITS:
            lines[split, language] = [_BPE.sub("", line) for line in lines[split, language]]
        notes.append(f"{language}: the words that BPE had cut (@@) were joined")
    share = share_alone(lines["train", language])
    if share >= MOSES:
        for split in SPLITS:
            lines[split, language] = [join_moses(line, language) for line in lines[split, language]]
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


def has_bpe(lines: Sequence[str]) -> bool:
    """True if at least 1 % of the lines have a word split as by subword-nmt: "lang@@ uage"."""
    looked = lines[:_LOOK_AT]
    return sum("@@ " in line for line in looked) * 100 >= max(len(looked), 1)


def share_alone(lines: Sequence[str]) -> float:
    """The share of commas and of final full stops that stand alone, " , ".

    Moses' tokeniser leaves none at a word, and no language is written with a space before most of them.
    """
    alone = attached = 0
    for line in lines[:_LOOK_AT]:
        words = line.split()
        marks = [word for word in words if word[-1] == ","] + [word for word in words[-1:] if word[-1] == "."]
        alone += sum(len(mark) == 1 for mark in marks)
        attached += sum(mark[-2:-1].isalnum() for mark in marks)
    return alone / max(alone + attached, 1)


def join_moses(line: str, language: str) -> str:
    """Detokenise a line as Moses' detokeniser does: some words take no space before or after them."""
    words = _unescape(line).split()
    parts: list[str] = []
    is_apart, opened = False, set[str]()
    for place, word in enumerate(words):
        before, after = (True, True) if word.isalnum() else _spaces(words, place, language, opened)
        parts += [" ", word] if before and is_apart else [word]
        is_apart = after
    return "".join(parts)


def _spaces(words: Sequence[str], place: int, language: str, opened: set[str]) -> tuple[bool, bool]:
    """True for a space before a word, and for one after it; `opened` holds the quotation marks that are open."""
    word = words[place]
    if word in _QUOTES:
        is_genitive = language == "en" and word == "'" and words[max(place - 1, 0)][-1] == "s"  # the students '
        if is_genitive and "'" not in opened:
            return False, True
        opened ^= {_QUOTES[word]}  # a quotation mark opens and closes in turn
        return _QUOTES[word] in opened, _QUOTES[word] not in opened
    if all(mark in "([{¿¡" or unicodedata.category(mark) == "Sc" for mark in word):
        return True, False
    if all(mark in ",.?!:;\\%}])" for mark in word):
        return language == "fr" and word in {*"?!:;\\%"}, True
    if language == "en" and word[0] == "'" and word[1:2].isalpha():
        return False, True  # it 's
    is_elided = language in _ELIDING and word[-1] == "'" and word[-2:-1].isalpha()  # l' homme
    return True, not (is_elided and words[place + 1 : place + 2] and words[place + 1][0].isalpha())


def _unescape(line: str) -> str:
    if "@" in line:
        line = f" {line} ".replace(" @-@ ", "-")
    if "&" in line:
        for escape, mark in _ESCAPES.items():
            line = line.replace(escape, mark)
    return line
