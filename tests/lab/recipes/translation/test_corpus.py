"""A corpus has one digest, which everything in it decides."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacremoses import MosesDetokenizer

from partialsgd.lab.recipes.translation.corpus import (
    MOSES,
    SPLITS,
    Corpus,
    Pair,
    corpus_hash,
    has_bpe,
    join_moses,
    read_folder,
    share_alone,
)

CORPUS = Corpus(
    "en", "de", {"train": [("a b", "c"), ("d", "e")], "valid": [("f", "g")], "test": [("h", "i")]}, ("a note",)
)


TEXT = {
    "train.de": "Guten Tag, Welt.\nWie geht's?\nGut.\n",
    "train.en": "Hello, world.\nHow are you?\nWell.\n",
    "valid.de": "Ja, nein.\n",
    "valid.en": "Yes, no.\n",
    "test.de": "Zwölf Äpfel.\n",
    "test.en": "Twelve apples.\n",
}
PAIRS = {
    "train": [("Guten Tag, Welt.", "Hello, world."), ("Wie geht's?", "How are you?"), ("Gut.", "Well.")],
    "valid": [("Ja, nein.", "Yes, no.")],
    "test": [("Zwölf Äpfel.", "Twelve apples.")],
}


def written(folder: Path, changes: dict[str, str | bytes | None] | None = None) -> Path:
    """The folder with these files; None leaves one out."""
    for name, text in {**TEXT, **(changes or {})}.items():
        if text is not None:
            (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def test_what_fairseq_leaves_is_read(tmp_path: Path) -> None:
    """BPE in all splits over Moses' tokens, the codes beside them, and the steps in between in tmp."""
    lines = {
        "train.de": "gu@@ ten tag , wel@@ t .\ner sagt : &quot; ja &quot; .\n",
        "train.en": "hel@@ lo , world .\nhe &apos;s say@@ ing yes .\n",
        "valid.de": "ja , n@@ ein a@@b . x@@\n",
        "valid.en": "yes , don &apos;t .\n",
        "test.de": "zwölf äp@@ fel .\n",
        "test.en": "twelve ap@@ ples .\n",
    }
    written(tmp_path, {**lines, "code": "#version: 0.2\n", "bpe.code": "e n\n"})
    (tmp_path / "tmp").mkdir()
    written(tmp_path / "tmp", {"train.tags.de-en.de": "<doc>"})
    found = read_folder(tmp_path, "de", "en")
    assert found.splits == {
        "train": [("guten tag, welt.", "hello, world."), ('er sagt: "ja".', "he's saying yes.")],
        "valid": [("ja, nein a@@b. x", "yes, don't.")],
        "test": [("zwölf äpfel.", "twelve apples.")],
    }
    assert found.notes == tuple(
        f"{language}: {note}"
        for language in ("de", "en")
        for note in (
            "the words that BPE had cut (@@) were joined",
            "looks Moses-tokenised (100% of commas and last full stops stand alone) and was detokenised",
        )
    )


def test_one_language_may_be_tokenised_and_the_other_not(tmp_path: Path) -> None:
    tokenised = {"train.de": "Ja , nein .\nA &amp; B\n.\n", "valid.de": "Ja , 1 .\n", "test.de": "Oh !\n"}
    found = read_folder(written(tmp_path, {**tokenised, "test.en": "A , b & &amp;\n"}), "de", "en")
    assert [source for source, _ in found.splits["train"]] == ["Ja, nein.", "A & B", "."]
    assert found.splits["test"] == [("Oh!", "A , b & &amp;")]
    assert [note[:9] for note in found.notes] == ["de: looks"]


def test_pairs_with_an_empty_line_are_dropped_and_counted_by_file(tmp_path: Path) -> None:
    changes: dict[str, str | bytes | None] = {
        "train.de": "a\n\nc\n \t\ne\n\n",
        "train.en": "A\nB\n\n\u2003\nE\nF\n",
        "valid.de": "a\nb\n",
        "valid.en": "A\n\n",
    }
    found = read_folder(written(tmp_path, changes), "de", "en")
    assert found.splits["train"] == [("a", "A"), ("e", "E")]
    assert found.splits["valid"] == [("a", "A")]
    assert found.notes == (
        "train: 4 of 6 pairs dropped, because a line is empty: 2 in train.de, 1 in train.en, 1 in both",
        "valid: 1 of 2 pairs dropped, because a line is empty: 1 in valid.en",
    )


def refused(folder: Path, message: str, source: str = "de", target: str = "en") -> None:
    with pytest.raises((ValueError, FileNotFoundError), match="^" + re.escape(message)):
        read_folder(folder, source, target)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"gut\nz\xfcrich\n", "line 2, byte 2: 0xfc"),
        (b"\xef\xbb\xbfa\nb\nab\xe2\x28\n", "line 3, byte 3: 0xe2"),
        ("ä\n".encode() + b"\xc3", "line 2, byte 1: 0xc3"),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(
    tmp_path: Path, data: bytes, place: str, is_compressed: bool
) -> None:
    name = "test.de.gz" if is_compressed else "test.de"
    written(tmp_path, {"test.de": None, name: gzip.compress(data) if is_compressed else data})
    refused(tmp_path, f"{tmp_path}/{name}, {place} is not UTF-8; convert the file, for instance with iconv")


@pytest.mark.parametrize("twin", ["valid.de.gz", "dev.de", "valid.de-en.de"])
def test_two_files_for_one_split_are_refused(tmp_path: Path, twin: str) -> None:
    written(tmp_path, {twin: gzip.compress(b"x\n")})
    names = " and ".join(sorted(["valid.de", twin]))
    refused(tmp_path, f"{tmp_path} has {names}, and only one can be the valid split: remove the others")


# What the detokeniser looks at, and words: of these every line is made.
WORDS = (
    *("it", "&apos;s", "students", "&apos;", "&quot;", "``", "''", "`", "„", "“", "(", ")", "[", "]", "&#91;", "&#93;"),
    *(",", ".", "?", "!", ":", ";", "%", "...", "?!", "\\", "{", "}", "¿", "¡", "$", "€", "$(", "12", "3.5", "Straße"),
    *("l&apos;", "homme", "d&apos;", "1&apos;", "&lt;b&gt;", "&amp;", "&amp;apos;", "&#124;", "@-@", "é", "-", "--"),
    *("x,", "M.", "&apos;12", "'", '"', "s", "'t"),
)


@pytest.mark.parametrize("language", ["en", "de", "fr", "it"])
@given(words=st.lists(st.sampled_from(WORDS), max_size=14))
def test_a_line_is_joined_as_by_moses(language: str, words: list[str]) -> None:
    if language == "fr":  # where Moses has a space before these even after an opening mark
        words = [word for word in words if word not in {*"?!:;%\\"}]
    assert join_moses(" ".join(words), language) == MosesDetokenizer(lang=language).detokenize(words)


def test_everything_but_the_notes_decides_the_hash() -> None:
    """Also where a text is spelled like the name of a split."""

    def hashed(**splits: list[Pair]) -> str:
        return corpus_hash(replace(CORPUS, splits={**CORPUS.splits, **splits}))

    same = replace(CORPUS, splits={split: list(CORPUS.splits[split]) for split in reversed(SPLITS)}, notes=())
    assert corpus_hash(same) == corpus_hash(CORPUS)
    hashes = [
        corpus_hash(CORPUS),
        corpus_hash(replace(CORPUS, source="fr")),
        corpus_hash(replace(CORPUS, target="fr")),
        hashed(train=[("a ", "bc"), ("d", "e")]),
        hashed(train=[("d", "e"), ("a b", "c")]),
        hashed(valid=[("f", "g"), ("h", "i")]),
        hashed(valid=[("h", "i")], test=[("f", "g")]),
        hashed(train=[*CORPUS.splits["train"], ("f", "g")], valid=[]),
        hashed(train=[("a", "valid")], valid=[("x", "valid"), ("p", "q")], test=[]),
        hashed(train=[("a", "valid"), ("valid", "x")], valid=[("p", "q")], test=[]),
    ]
    assert len(set(hashes)) == len(hashes)


def test_lines_are_paired_whatever_the_files_are_called(tmp_path: Path) -> None:
    assert read_folder(written(tmp_path), "de", "en") == Corpus("de", "en", PAIRS, ())
    backwards = read_folder(str(tmp_path), "en", "de")
    assert backwards.splits == {split: [(b, a) for a, b in pairs] for split, pairs in PAIRS.items()}
    for pair in ("de-en", "en-de"):
        folder = tmp_path / pair
        folder.mkdir()
        for name, text in TEXT.items():
            split, language = name.replace("valid", "dev").split(".")
            (folder / f"{split}.{pair}.{language}").write_text(text)
            (folder / f"{split}.de-fr.{language}").write_text("of another pair\n")
            region = {"de": "de-AT", "en": "en-GB"}[language]
            (folder / f"{split}.{region}.gz").write_bytes(gzip.compress(text.encode()))
        assert read_folder(folder, "de", "en").splits == read_folder(folder, "de-AT", "en-GB").splits == PAIRS


def test_other_ends_of_lines_and_marks(tmp_path: Path) -> None:
    """Windows' ends and byte-order mark go; Unicode's separators stay within a line; the last end may be missing."""
    german = "\ufeffeins\r\nzwei\u2028drei\x85vier\x0bfünf\r\nsechs"
    pairs = read_folder(written(tmp_path, {"train.de": german, "train.en": "one\ntwo\nsix\n"}), "de", "en")
    assert pairs.splits["train"] == [("eins", "one"), ("zwei\u2028drei\x85vier\x0bfünf", "two"), ("sechs", "six")]


WHOLE_GZIP = gzip.compress(b"Zw" * 99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"valid.de": "a\nb\nc\n", "valid.en": "a\nb\n"},
            "/valid.de has 3 lines and valid.en has 2, so line 3 of valid.de has no partner; "
            "line n of one file must be the translation of line n of the other",
        ),
        ({"valid.de": "a\n", "valid.en": "a\nb\n"}, "/valid.en has 2 lines and valid.de has 1, so line 2 of valid.en"),
        ({"test.de": None, "test.de.gz": WHOLE_GZIP[:-9]}, "/test.de.gz is not a whole gzip file: "),
        ({"test.de": None, "test.de.gz": b"plain"}, "/test.de.gz is not a whole gzip file: "),
        ({"test.de": None, "test.de.gz": WHOLE_GZIP[:-3] + b"abc"}, "/test.de.gz is not a whole gzip file: "),
        ({"test.de": "", "test.en": ""}, "/test.de and test.en have no pair of lines that are not empty"),
        ({"test.de": "\n\n", "test.en": "\n\n"}, "/test.de and test.en have no pair of lines that are not empty"),
        (
            {"valid.en": None, "notes.txt": "x"},
            " has no valid.en, plain or .gz; it has test.de, test.en, train.de, train.en, valid.de",
        ),
    ],
)
def test_files_that_are_no_corpus_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(written(tmp_path, changes), f"{tmp_path}{message}")


def test_a_missing_language_or_folder_is_refused_with_what_is_there(tmp_path: Path) -> None:
    refused(tmp_path / "x", f"there is no folder {tmp_path}/x: give one with train.de, train.en and so on")
    (tmp_path / "train.fr").mkdir()
    refused(tmp_path, f"{tmp_path} has no files in 'de', such as train.de; it has none of that kind")
    written(tmp_path)
    there = ", ".join(sorted(TEXT))
    refused(tmp_path, f"{tmp_path} has no files in 'fr', such as train.fr; it has {there}", target="fr")
    refused(tmp_path, f"{tmp_path} has no files in 'fr', such as train.fr; it has {there}", source="fr")


def test_moses_is_known_by_marks_that_stand_alone_and_bpe_by_its_marks() -> None:
    """Not by dots within an abbreviation or a number, not by an ellipsis, not by French question marks."""
    assert share_alone(["so , 1,000 of them .", "dr. no , mr. x ...", "x ,"]) == 1.0 >= MOSES
    assert share_alone(["So, 1,000 of them.", "Vraiment ? Oui !", "Dr. No ..."]) == 0.0
    assert share_alone(["a , b, c"]) == 0.5 < MOSES
    assert share_alone(["a, b", *["a , b ."] * 5]) == 10 / 11 >= MOSES
    assert share_alone(["no marks at all", "", "。"]) == share_alone([]) == 0.0
    assert has_bpe(["a", "lang@@ uage", *["b"] * 98]) and not has_bpe(["lang@@ uage", *["b"] * 100])
    assert not has_bpe(["an address @@home", "x@@"]) and not has_bpe([])
