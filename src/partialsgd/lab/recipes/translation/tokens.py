"""Tokenizer and batches: one byte-level BPE for both languages, and batches of sentences of similar length.

Working on bytes, the tokenizer encodes every text without unknown tokens and decodes it exactly."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias, final

import tokenizers
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from partialsgd._util import files
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.training.batch_plan import permutation
from partialsgd.lab.training.settings import require_at_least

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
    folder = folder or _cache_folder()
    if folder is None:
        return make()
    file = Path(folder) / name
    with suppress(OSError, UnicodeDecodeError):
        checksum, _, text = file.read_bytes().decode().partition("\n")
        if checksum == files.sha256(text):
            return text
    text = make()
    with suppress(OSError):
        files.write_text(file, f"{files.sha256(text)}\n{text}")
    return text


def _cache_folder() -> Path | None:
    """~/.cache/partialsgd, or the place that XDG_CACHE_HOME names; None for a user without a home."""
    caches, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME") or os.environ.get("USERPROFILE", "")
    if os.path.isabs(caches):
        return Path(caches) / "partialsgd"
    return Path(home) / ".cache" / "partialsgd" if os.path.isabs(home) else None


Ids: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""The ids of a source and of its target; each ends with EOS."""
TokenBatch: TypeAlias = dict[str, Tensor]
"""int64 tensors input_ids, attention_mask, decoder_input_ids, and labels, which are −100 on padding."""

NO_LABEL = -100


@final
class TokenBatches:
    """The training batches. The seed decides which pairs share a batch, (seed, epoch) the order of the batches.

    As in fairseq, `max_tokens` limits the number of sentences times the longest sentence, source or target. Pairs
    longer than that, or than `longest`, are left out.
    """

    def __init__(self, pairs: Sequence[Ids], *, max_tokens: int, seed: int, longest: int) -> None:
        for name, value in {"max_tokens": max_tokens, "longest": longest}.items():
            require_at_least(name, value, 1)
        limit = min(max_tokens, longest)
        fitting = [pair for pair in pairs if longer_side(pair) <= limit]
        if not fitting:
            raise ValueError(
                f"none of the {len(pairs)} pairs has at most {limit} tokens on both sides; increase longest "
                f"({longest}) and max_tokens ({max_tokens})"
            )
        self.left_out = len(pairs) - len(fitting)
        self._seed = seed
        shuffled = [fitting[place] for place in permutation(len(fitting), seed, "composition")]
        compact = ((array("i", source), array("i", target)) for source, target in sorted(shuffled, key=_lengths))
        self._pairs: list[Ids] = list(compact)
        self._bounds = _batch_bounds(self._pairs, max_tokens)
        self._epoch, self._order = -1, list[int]()

    def __len__(self) -> int:
        return len(self._bounds)

    def units(self, epoch: int, index: int) -> int:
        """The number of target tokens in a batch, including EOS."""
        return sum(len(target) for _, target in self._batch(epoch, index))

    def make(self, epoch: int, index: int) -> TokenBatch:
        return _padded_batch(self._batch(epoch, index))

    def _batch(self, epoch: int, index: int) -> list[Ids]:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self), self._seed, "order", epoch).tolist()
        return self._pairs[self._bounds[self._order[index]]]


def in_order(pairs: Sequence[Ids], max_tokens: int) -> Iterator[TokenBatch]:
    """All pairs in batches, shortest first; one that is too long has its own batch."""
    require_at_least("max_tokens", max_tokens, 1)
    by_length = sorted(pairs, key=_lengths)
    return (_padded_batch(by_length[bounds]) for bounds in _batch_bounds(by_length, max_tokens))


def _padded_batch(pairs: Sequence[Ids]) -> TokenBatch:
    sources, labels = (
        pad_sequence([torch.tensor(pair[side]) for pair in pairs], batch_first=True, padding_value=padding)
        for side, padding in enumerate((PAD, NO_LABEL))
    )
    inputs = torch.full_like(labels, EOS)
    inputs[:, 1:] = labels[:, :-1].where(labels[:, 1:] != NO_LABEL, PAD)
    mask = (sources != PAD).long()
    return {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": inputs, "labels": labels}


def longer_side(pair: Ids) -> int:
    return max(len(pair[0]), len(pair[1]))


def _lengths(pair: Ids) -> tuple[int, int]:
    """The sort key: the longer side decides how many rows fit, the other one how much is padded."""
    return longer_side(pair), len(pair[0])


def _batch_bounds(pairs: Sequence[Ids], max_tokens: int) -> list[slice]:
    """Bounds of batches over sorted pairs: as many as fit, where a batch costs its rows × its longest row."""
    if not pairs:
        return []
    starts = [0]
    for place, pair in enumerate(pairs):
        if place > starts[-1] and (place + 1 - starts[-1]) * longer_side(pair) > max_tokens:
            starts.append(place)
    return [slice(*bounds) for bounds in pairwise([*starts, len(pairs)])]
