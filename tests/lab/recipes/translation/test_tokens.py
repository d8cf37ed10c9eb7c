"""Numbers give back their text, whatever it is; equal text gives equal numbers, in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from partialsgd._util import files
from partialsgd.lab.recipes.translation import phrases, tokens
from partialsgd.lab.recipes.translation.corpus import Corpus, corpus_hash
from partialsgd.lab.recipes.translation.tokens import (
    EOS,
    PAD,
    SPECIAL,
    UNK,
    decode_all,
    encode_all,
    train,
    train_cached,
)

SIZE = 600
CORPUS = phrases.generate(size=1500, valid=20, test=20)
TOKENIZER = train(CORPUS, SIZE)


def texts(corpus: Corpus, split: str = "train") -> list[str]:
    return [text for pair in corpus.splits[split] for text in pair]


@pytest.mark.parametrize("languages", [("en", "de"), ("ar", "ja")])
def test_all_text_of_a_corpus_comes_back(languages: tuple[str, str]) -> None:
    corpus = phrases.generate(*languages, size=300, valid=50, test=50)
    tokenizer = train(corpus, SIZE)
    for split in corpus.splits:
        assert decode_all(tokenizer, encode_all(tokenizer, texts(corpus, split))) == texts(corpus, split)


@given(st.lists(st.text(), max_size=4))
@example(["", " ", "  a  b ", "\n\t\r\n", "</s>", "<pad> <unk>", "a</s>b", "▁a Ġ", "\u2028\u00a0\u202f", "e\u0301 é"])
@example(["12,345.67 €", "日本語 中文", "🤷🏽‍♀️ 👨‍👩‍👧", "\x00\x7f\ufeff\uffff", " , . ! 's n't"])
def test_any_text_comes_back(lines: list[str]) -> None:
    ids = encode_all(TOKENIZER, lines)
    assert decode_all(TOKENIZER, ids) == lines
    for line in ids:
        assert line[-1] == EOS and not {PAD, EOS, UNK} & set(line[:-1])


def test_words_become_few_tokens_and_each_digit_one() -> None:
    (line,) = encode_all(TOKENIZER, ["vor 20123 Tagen und 7 Jahren"])
    said = [TOKENIZER.id_to_token(number) for number in line]
    assert said == ["vor", "Ġ2", "0", "1", "2", "3", "ĠTagen", "Ġund", "Ġ7", "ĠJahren", "</s>"]


def test_other_processes_make_the_same_corpus_and_tokenizer_with_other_hashes_threads_and_places() -> None:
    code = (
        "from partialsgd.lab.recipes.translation import corpus, phrases, tokens;from partialsgd._util import files;"
        "made = phrases.generate(size=1500, valid=20, test=20);"
        f"print(corpus.corpus_hash(made), files.sha256(tokens.train(made, {SIZE}).to_str()))"
    )
    others = (
        {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "fr_FR.UTF-8", "TOKENIZERS_PARALLELISM": "false"},
        {"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C.UTF-8", "RAYON_NUM_THREADS": "5"},
    )
    for other in others:
        run = [sys.executable, "-c", code]
        said = subprocess.run(run, env={**os.environ, **other}, check=True, capture_output=True, text=True).stdout
        assert said.split() == [corpus_hash(CORPUS), files.sha256(TOKENIZER.to_str())]


def test_it_is_a_tokenizer_json_for_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"] == "BPE"
    names: dict[str, Any] = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **names)
    assert (fast.pad_token_id, fast.eos_token_id, fast.unk_token_id) == (PAD, EOS, UNK)
    lines = [*texts(CORPUS, "test"), "a , b . don 't"]
    assert fast(lines)["input_ids"] == encode_all(TOKENIZER, lines)
    assert fast.batch_decode(fast(lines)["input_ids"], skip_special_tokens=True) == lines
    padded = fast(lines[:2], padding=True)["input_ids"]
    assert padded[0][-1] in (PAD, EOS) and len(padded[0]) == len(padded[1])


def counted(text: str = "made\r\nonce\n") -> tuple[list[int], Callable[[], str]]:
    calls: list[int] = []

    def make() -> str:
        calls.append(1)
        return text

    return calls, make


@pytest.mark.parametrize("damage", [b"x", b"\xff\xfe", "flipped", *range(0, 70, 7)])
def test_a_damaged_or_truncated_file_is_made_anew(tmp_path: Path, damage: bytes | str | int) -> None:
    calls, make = counted()
    tokens.cached_text("name", make, tmp_path)
    whole = (tmp_path / "name").read_bytes()
    flipped = whole[:-2] + b"!" + whole[-1:]
    content = damage if isinstance(damage, bytes) else whole[:damage] if isinstance(damage, int) else flipped
    (tmp_path / "name").write_bytes(content)
    assert tokens.cached_text("name", make, tmp_path) == "made\r\nonce\n"
    assert len(calls) == 2 and (tmp_path / "name").read_bytes() == whole


def test_the_default_folder_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    tokens.cached_text("name", counted()[1])
    assert (tmp_path / "elsewhere" / "partialsgd" / "name").is_file()
    for number, ignored in enumerate(("", "relative/path")):  # the XDG standard tells to ignore both
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        tokens.cached_text(f"{number}", counted()[1])
        assert (tmp_path / ".cache" / "partialsgd" / f"{number}").is_file()


def test_special_tokens_have_fixed_numbers_and_no_text() -> None:
    assert (PAD, EOS, UNK) == (0, 1, 2) and TOKENIZER.get_vocab_size() == SIZE
    assert [TOKENIZER.id_to_token(number) for number in range(3)] == list(SPECIAL) == ["<pad>", "</s>", "<unk>"]
    (line,) = encode_all(TOKENIZER, ["in 3 days"])
    assert decode_all(TOKENIZER, [[EOS, *line, PAD, PAD], [EOS], []]) == ["in 3 days", "", ""]


def test_a_vocabulary_is_learnt_from_the_training_text_alone_and_has_room_for_the_bytes() -> None:
    once = Corpus("en", "de", {"train": [("good day", "Tschüs")], "valid": [], "test": []})
    assert train(once, 5000).get_vocab_size() == tokens.SMALLEST == 259  # what occurs once is not learnt
    twice = Corpus("en", "de", {"train": [("good", "good")], "valid": [], "test": []})
    assert train(twice, 5000).get_vocab_size() == 259 + 3
    other = Corpus("en", "de", {**CORPUS.splits, "valid": [("zzzz zzzz", "zzzz")] * 999, "test": []})
    assert train(other, SIZE).to_str() == TOKENIZER.to_str()
    for size in (258, 0, -1):
        with pytest.raises(ValueError, match=f"vocabulary must be a whole number of at least 259, got {size}"):
            train(CORPUS, size)


def test_a_tokenizer_is_trained_once_for_its_text_size_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(corpus: Corpus, size: int) -> Tokenizer:
        calls.append(size)
        return train(corpus, size)

    monkeypatch.setattr(tokens, "train", counted)
    first, second = (train_cached(CORPUS, SIZE, tmp_path) for _ in range(2))
    assert first.to_str() == second.to_str() == TOKENIZER.to_str()
    assert encode_all(second, ["a</s>"]) == encode_all(TOKENIZER, ["a</s>"])
    train_cached(Corpus("fr", "it", {"train": CORPUS.splits["train"], "valid": [], "test": []}), SIZE, tmp_path)
    assert len(calls) == 1  # the training text decides, not what it is called
    train_cached(CORPUS, SIZE + 1, tmp_path)
    train_cached(Corpus("en", "de", {**CORPUS.splits, "train": CORPUS.splits["train"][1:]}), SIZE, tmp_path)
    monkeypatch.setattr(tokens.tokenizers, "__version__", "99")
    train_cached(CORPUS, SIZE, tmp_path)
    monkeypatch.setattr(tokens, "_WORDS", r"\s+")
    train_cached(CORPUS, SIZE, tmp_path)
    assert len(calls) == 5 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_or_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    calls, make = counted()
    (tmp_path / "file").write_text("in the way of a folder")
    assert tokens.cached_text("name", make, tmp_path / "file") == "made\r\nonce\n"
    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
        assert tokens.cached_text("name", make, tmp_path) == "made\r\nonce\n"
    assert len(calls) == 2 and [file.name for file in tmp_path.iterdir()] == ["file"]


def test_without_a_home_there_is_no_cache_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    calls, make = counted()
    assert [tokens.cached_text("without a home", make) for _ in range(2)] == ["made\r\nonce\n"] * 2
    assert len(calls) == 2 and not list(tmp_path.iterdir())
