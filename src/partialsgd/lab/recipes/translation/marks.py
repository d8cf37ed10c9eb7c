"""Undo preprocessing in a corpus: BPE marks, and the spaces and escapes of Moses' tokeniser.

This is done when a corpus is read, not when a translation is scored, so that a model reads and writes plain text and
scores do not depend on how the corpus was prepared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

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


def has_bpe(lines: Sequence[str]) -> bool:
    """True if at least 1 % of the lines have a word split as by subword-nmt: "lang@@ uage"."""
    looked = lines[:_LOOK_AT]
    return sum("@@ " in line for line in looked) * 100 >= max(len(looked), 1)


def join_bpe(line: str) -> str:
    return _BPE.sub("", line)


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
        return _around(_QUOTES[word], opened, is_genitive)
    if all(mark in "([{¿¡" or unicodedata.category(mark) == "Sc" for mark in word):
        return True, False
    if all(mark in ",.?!:;\\%}])" for mark in word):
        return language == "fr" and word in {*"?!:;\\%"}, True
    if language == "en" and word[0] == "'" and word[1:2].isalpha():
        return False, True  # it 's
    is_elided = language in _ELIDING and word[-1] == "'" and word[-2:-1].isalpha()  # l' homme
    return True, not (is_elided and words[place + 1 : place + 2] and words[place + 1][0].isalpha())


def _around(quote: str, opened: set[str], is_genitive: bool) -> tuple[bool, bool]:
    """The spaces around a quotation mark: it opens and closes in turn."""
    if quote in opened:
        opened.remove(quote)
        return False, True
    if is_genitive:
        return False, True
    opened.add(quote)
    return True, False


def _unescape(line: str) -> str:
    if "@" in line:
        line = f" {line} ".replace(" @-@ ", "-")
    if "&" in line:
        for escape, mark in _ESCAPES.items():
            line = line.replace(escape, mark)
    return line
