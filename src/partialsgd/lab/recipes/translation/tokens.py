"""Tokenizer and batches: one byte-level BPE for both languages, and batches of sentences of similar length.

Working on bytes, the tokenizer encodes every text without unknown tokens and decodes it exactly."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor

from partialsgd._util import files, randomness
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
        fitting = [pair for pair in pairs if _longer(pair) <= limit]
        if not fitting:
            raise ValueError(
                f"none of the {len(pairs)} pairs has at most {limit} tokens on both sides; increase longest "
                f"({longest}) and max_tokens ({max_tokens})"
            )
        self.left_out = len(pairs) - len(fitting)
        self._seed = seed
        shuffled = [fitting[place] for place in _shuffle(randomness.key(seed, "composition"), len(fitting))]
        self._rows = _Rows(sorted(shuffled, key=_lengths), max_tokens)
        self._epoch, self._order = -1, list[int]()

    def __len__(self) -> int:
        return len(self._rows.bounds)

    def units(self, epoch: int, index: int) -> int:
        """The number of target tokens in a batch, including EOS."""
        return self._rows.tokens(self._place(epoch, index))

    def make(self, epoch: int, index: int) -> TokenBatch:
        return self._rows.batch(self._place(epoch, index))

    def _place(self, epoch: int, index: int) -> int:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, _shuffle(randomness.key(self._seed, "order", epoch), len(self))
        return self._order[index]


def in_order(pairs: Sequence[Ids], max_tokens: int) -> Iterator[tuple[list[int], TokenBatch]]:
    """All pairs in batches, shortest first, with their indices in `pairs`; one that is too long has its own batch."""
    require_at_least("max_tokens", max_tokens, 1)
    if not pairs:
        return
    places = sorted(range(len(pairs)), key=lambda place: _lengths(pairs[place]))
    rows = _Rows([pairs[place] for place in places], max_tokens)
    for index, (start, stop) in enumerate(rows.bounds):
        yield places[start:stop], rows.batch(index)


@final
class _Rows:
    """Pairs sorted by length, concatenated in one tensor for each side, and the bounds of the batches."""

    def __init__(self, pairs: Sequence[Ids], max_tokens: int) -> None:
        self.bounds = _batch_bounds([_longer(pair) for pair in pairs], max_tokens)
        self._sides = [_Side([pair[side] for pair in pairs]) for side in (0, 1)]

    def tokens(self, index: int) -> int:
        start, stop = self.bounds[index]
        return self._sides[1].ends[stop] - self._sides[1].ends[start]

    def batch(self, index: int) -> TokenBatch:
        (sources, is_source), (labels, is_target) = (
            side.padded(*self.bounds[index], fill) for side, fill in zip(self._sides, (PAD, NO_LABEL), strict=True)
        )
        inputs = torch.full_like(labels, PAD)
        inputs[:, 0] = EOS
        inputs[:, 1:] = torch.where(is_target[:, 1:], labels[:, :-1], PAD)
        return {
            "input_ids": sources,
            "attention_mask": is_source.long(),
            "decoder_input_ids": inputs,
            "labels": labels,
        }


@final
class _Side:
    def __init__(self, lines: Sequence[Sequence[int]]) -> None:
        self._flat = torch.frombuffer(array("i", chain.from_iterable(lines)), dtype=torch.int32)
        self._lengths = torch.tensor([len(line) for line in lines], dtype=torch.int32)
        self.ends = list(accumulate(map(len, lines), initial=0))

    def padded(self, start: int, stop: int, fill: int) -> tuple[Tensor, Tensor]:
        """The lines as a padded matrix, and a mask that is true on their tokens."""
        lengths = self._lengths[start:stop, None]
        is_token = torch.arange(int(lengths.max()), dtype=torch.int32) < lengths
        ids = torch.full(is_token.shape, fill)
        return ids.masked_scatter_(is_token, self._flat[self.ends[start] : self.ends[stop]].long()), is_token


def _longer(pair: Ids) -> int:
    return max(len(pair[0]), len(pair[1]))


def _lengths(pair: Ids) -> tuple[int, int]:
    """The sort key: the longer side decides how many rows fit, the other one how much is padded."""
    return _longer(pair), len(pair[0])


def _batch_bounds(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Bounds of batches over sorted lengths: as many rows as fit, where a batch costs rows × its longest row."""
    starts = [0]
    for place, length in enumerate(lengths):
        if place > starts[-1] and (place + 1 - starts[-1]) * length > max_tokens:
            starts.append(place)
    return list(pairwise([*starts, len(lengths)]))


def _shuffle(key: int, count: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=randomness.generator(key)).tolist()
    return order
