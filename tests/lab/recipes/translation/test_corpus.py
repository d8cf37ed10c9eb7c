"""A corpus has one digest, which everything in it decides."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

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
    join_bpe,
    join_moses,
    read_folder,
    share_alone,
)

CORPUS = Corpus(
    "en", "de", {"train": [("a b", "c"), ("d", "e")], "valid": [("f", "g")], "test": [("h", "i")]}, ("a note",)
)


def with_split(split: str, pairs: list[Pair]) -> Corpus:
    return replace(CORPUS, splits={**CORPUS.splits, split: pairs})


@pytest.mark.parametrize(
    "other",
    [
        replace(CORPUS, source="fr"),
        replace(CORPUS, target="fr"),
        with_split("train", [("a ", "bc"), ("d", "e")]),
        with_split("train", [("d", "e"), ("a b", "c")]),
        with_split("valid", [("f", "g"), ("h", "i")]),
        replace(CORPUS, splits={**CORPUS.splits, "valid": [("h", "i")], "test": [("f", "g")]}),
        replace(CORPUS, splits={**CORPUS.splits, "train": [*CORPUS.splits["train"], ("f", "g")], "valid": []}),
    ],
)
def test_another_corpus_has_another_corpus_hash(other: Corpus) -> None:
    assert corpus_hash(other) != corpus_hash(CORPUS)


def test_an_equal_corpus_has_the_same_digest_whatever_its_notes() -> None:
    reordered = {split: list(CORPUS.splits[split]) for split in reversed(SPLITS)}
    assert corpus_hash(replace(CORPUS, splits=reordered, notes=())) == corpus_hash(CORPUS)


def test_a_text_is_not_taken_for_the_name_of_a_split() -> None:
    later = {"train": [("a", "valid")], "valid": [("x", "valid"), ("p", "q")], "test": []}
    earlier = {"train": [("a", "valid"), ("valid", "x")], "valid": [("p", "q")], "test": []}
    assert corpus_hash(replace(CORPUS, splits=later)) != corpus_hash(replace(CORPUS, splits=earlier))


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


def test_lines_are_paired(tmp_path: Path) -> None:
    assert read_folder(written(tmp_path), "de", "en") == Corpus("de", "en", PAIRS, ())
    backwards = read_folder(str(tmp_path), "en", "de")
    assert backwards.splits == {split: [(b, a) for a, b in pairs] for split, pairs in PAIRS.items()}


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_names_may_hold_the_pair_and_valid_may_be_dev(tmp_path: Path, pair: str) -> None:
    for name, text in TEXT.items():
        split, language = name.replace("valid", "dev").split(".")
        (tmp_path / f"{split}.{pair}.{language}").write_text(text)
        (tmp_path / f"{split}.de-fr.{language}").write_text("of another pair\n")
    assert read_folder(tmp_path, "de", "en").splits == PAIRS


def test_a_language_may_have_a_region(tmp_path: Path) -> None:
    for name, text in TEXT.items():
        compressed = gzip.compress(text.encode())
        (tmp_path / f"{name.replace('.de', '.de-AT').replace('.en', '.en-GB')}.gz").write_bytes(compressed)
    assert read_folder(tmp_path, "de-AT", "en-GB").splits == PAIRS


def test_what_fairseq_leaves_is_read(tmp_path: Path) -> None:
    """BPE in all splits over Moses' tokens, the codes beside them, and the steps in between in tmp."""
    lines = {
        "train.de": "gu@@ ten tag , wel@@ t .\ner sagt : &quot; ja &quot; .\n",
        "train.en": "hel@@ lo , world .\nhe &apos;s say@@ ing yes .\n",
        "valid.de": "ja , n@@ ein .\n",
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
        "valid": [("ja, nein.", "yes, don't.")],
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


def test_other_ends_of_lines_and_marks(tmp_path: Path) -> None:
    """Windows' ends and byte-order mark go; Unicode's separators stay within a line; the last end may be missing."""
    changes: dict[str, str | bytes | None] = {
        "train.de": "\ufeffeins\r\nzwei\u2028drei\x85vier\x0bfünf\r\nsechs",
        "train.en": "one\ntwo\nsix\n",
    }
    pairs = read_folder(written(tmp_path, changes), "de", "en").splits["train"]
    assert pairs == [("eins", "one"), ("zwei\u2028drei\x85vier\x0bfünf", "two"), ("sechs", "six")]


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


@pytest.mark.parametrize(("longer", "shorter"), [("de", "en"), ("en", "de")])
def test_files_of_unequal_length_are_refused(tmp_path: Path, longer: str, shorter: str) -> None:
    written(tmp_path, {f"valid.{longer}": "a\nb\nc\n", f"valid.{shorter}": "a\nb\n"})
    message = (
        f"{tmp_path}/valid.{longer} has 3 lines and valid.{shorter} has 2, so line 3 of valid.{longer} has no partner; "
        "line n of one file must be the translation of line n of the other"
    )
    refused(tmp_path, message)


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


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gzip.compress(b"Zw" * 99)[:-9], id="cut"),
        pytest.param(b"plain", id="plain"),
        pytest.param(gzip.compress(b"a\n")[:-3] + b"abc", id="wrong end"),
    ],
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, data: bytes) -> None:
    written(tmp_path, {"test.de": None, "test.de.gz": data})
    refused(tmp_path, f"{tmp_path}/test.de.gz is not a whole gzip file: ")


def test_a_missing_split_is_refused_with_what_is_there(tmp_path: Path) -> None:
    written(tmp_path, {"valid.en": None, "notes.txt": "x"})
    there = "test.de, test.en, train.de, train.en, valid.de"
    refused(tmp_path, f"{tmp_path} has no valid.en, plain or .gz; it has {there}")


def test_a_missing_language_is_refused_with_what_is_there(tmp_path: Path) -> None:
    written(tmp_path)
    there = ", ".join(sorted(TEXT))
    refused(tmp_path, f"{tmp_path} has no files in 'fr', such as train.fr; it has {there}", target="fr")
    refused(tmp_path, f"{tmp_path} has no files in 'fr', such as train.fr; it has {there}", source="fr")


def test_a_folder_without_a_corpus_or_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.de").mkdir()
    refused(tmp_path, f"{tmp_path} has no files in 'de', such as train.de; it has none of that kind")
    refused(tmp_path / "x", f"there is no folder {tmp_path}/x: give one with train.de, train.en and so on")


@pytest.mark.parametrize("twin", ["valid.de.gz", "dev.de", "valid.de-en.de"])
def test_two_files_for_one_split_are_refused(tmp_path: Path, twin: str) -> None:
    written(tmp_path, {twin: gzip.compress(b"x\n")})
    names = " and ".join(sorted(["valid.de", twin]))
    refused(tmp_path, f"{tmp_path} has {names}, and only one can be the valid split: remove the others")


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_a_split_without_a_pair_is_refused(tmp_path: Path, text: str) -> None:
    written(tmp_path, {"test.de": text, "test.en": text})
    refused(tmp_path, f"{tmp_path}/test.de and test.en have no pair of lines that are not empty")


def test_two_languages_are_needed(tmp_path: Path) -> None:
    refused(written(tmp_path), "source and target are both 'de': choose two languages", target="de")


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


def test_moses_is_known_by_marks_that_stand_alone() -> None:
    """Not by dots within an abbreviation or a number, not by an ellipsis, not by French question marks."""
    assert share_alone(["so , 1,000 of them .", "dr. no , mr. x ...", "x ,"]) == 1.0 >= MOSES
    assert share_alone(["So, 1,000 of them.", "Vraiment ? Oui !", "Dr. No ..."]) == 0.0
    assert share_alone(["a , b, c"]) == 0.5 < MOSES
    assert share_alone(["a, b", *["a , b ."] * 5]) == 10 / 11 >= MOSES
    assert share_alone(["no marks at all", "", "。"]) == share_alone([]) == 0.0


def test_bpe_is_known_by_its_marks_in_a_hundredth_of_the_lines() -> None:
    assert has_bpe(["a", *["lang@@ uage"] * 1, *["b"] * 98])
    assert not has_bpe(["lang@@ uage", *["b"] * 100])
    assert not has_bpe(["an address @@home", "x@@"]) and not has_bpe([])


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1), st.data())
def test_cut_words_are_joined_again(words: list[str], data: st.DataObject) -> None:
    places = [data.draw(st.integers(0, len(word) - 1)) for word in words]
    cut = [f"{word[:k]}@@ {word[k:]}" if k else word for word, k in zip(words, places, strict=True)]
    assert join_bpe(" ".join(cut)) == " ".join(words)


def test_a_mark_at_the_end_of_a_line_goes() -> None:
    assert join_bpe("a langu@@") == "a langu"
    assert join_bpe("a@@b c") == "a@@b c"
