"""The tokenizer: one byte-level BPE for both languages.

Working on bytes, it encodes every text without unknown tokens and decodes it exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from partialsgd._util import files
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.training.settings import require_at_least

try:
    import tokenizers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError as error:
    raise ImportError("translation needs tokenizers: pip install partialsgd[lab]") from error

SPECIAL = ("<pad>", "</s>", "<unk>")
PAD, EOS, UNK = range(3)
"""Ids of the special tokens. A sentence ends with EOS, and the decoder starts with it, as in fairseq. UNK never
occurs."""
SMALLEST = 256 + len(SPECIAL)
"""The smallest vocabulary: the bytes and the special tokens."""

# A space belongs to the word after it. Digits are separate tokens, so that numbers are read digit by digit.
_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def train(corpus: Corpus, size: int) -> Tokenizer:
    """Learn a vocabulary of at most `size` tokens from the training text. Equal text gives an equal tokenizer."""
    require_at_least("the size of the vocabulary", size, SMALLEST)
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(corpus), trainer)
    return from_json(tokenizer.to_str())


def train_cached(corpus: Corpus, size: int, cache: str | os.PathLike[str] | None = None) -> Tokenizer:
    """Like `train`, but cached in a folder, by default ~/.cache/partialsgd, by a hash of the training text."""
    key = files.sha256("tokenizer", tokenizers.__version__, _untrained().to_str(), str(size), *_lines(corpus))
    return from_json(cached_text(f"tokenizer-{key}", lambda: train(corpus, size).to_str(), cache))


def from_json(text: str) -> Tokenizer:
    """Load the text of a tokenizer.json. "</s>" in a sentence is encoded as four characters, not as EOS."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True  # the file does not store it
    return tokenizer


def encode_all(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """Encode lines as ids; each ends with EOS."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(lines))]


def decode_all(tokenizer: Tokenizer, ids: Iterable[Sequence[int]]) -> list[str]:
    """Decode ids as text, without PAD and EOS."""
    return tokenizer.decode_batch([list(line) for line in ids], skip_special_tokens=True)


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    return tokenizer


def _lines(corpus: Corpus) -> Iterator[str]:
    return (text for pair in corpus.splits["train"] for text in pair)


def cached_text(name: str, make: Callable[[], str], folder: str | os.PathLike[str] | None = None) -> str:
    """Return a cached text, or make and cache it. A damaged file is made again; a read-only cache is no error."""
    file = (_cache_folder() if folder is None else Path(folder)) / name
    with suppress(OSError, UnicodeDecodeError):
        checksum, _, text = file.read_bytes().decode().partition("\n")
        if checksum == files.sha256(text):
            return text
    text = make()
    with suppress(OSError):
        files.write_text(file, f"{files.sha256(text)}\n{text}")
    return text


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "partialsgd"
