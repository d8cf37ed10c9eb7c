"""Text ↔ numbers: one byte-pair encoding for both languages.

It works on bytes, so every text has numbers, none is unknown, and the numbers give back exactly that text. A
vocabulary of characters would lose those that it has not seen, and one that marks words by "▁" repeated spaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from partialsgd.lab.recipes.translation import kept
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.training.settings import require_at_least

try:
    import tokenizers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError as error:
    raise ImportError("to translate, tokenizers is needed: pip install partialsgd[lab]") from error

SPECIAL = ("<pad>", "</s>", "<unk>")
PAD, EOS, UNK = range(3)
"""Their numbers. A sentence ends with EOS, and with EOS the decoder starts, as in fairseq; UNK never occurs."""
SMALLEST = 256 + len(SPECIAL)
"""The smallest vocabulary: the bytes."""

# A space belongs to the word after it. A digit is a token of its own: a number is read and written digit by digit.
_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def train(corpus: Corpus, size: int) -> Tokenizer:
    """A vocabulary of `size` tokens, or fewer where the training text has no more; from equal text the same bytes."""
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
    return ready(tokenizer.to_str())


def tokenizer_of(corpus: Corpus, size: int, cache: str | os.PathLike[str] | None = None) -> Tokenizer:
    """The same, kept in the folder `cache` for the next time; by default in ~/.cache/partialsgd."""
    key = kept.key("tokenizer", tokenizers.__version__, _untrained().to_str(), str(size), *_lines(corpus))
    return ready(kept.text(f"tokenizer-{key}", lambda: train(corpus, size).to_str(), cache))


def ready(text: str) -> Tokenizer:
    """The tokenizer that the text of a `tokenizer.json` describes. "</s>" in a sentence is four characters, not EOS."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True  # which the file does not hold
    return tokenizer


def encode_all(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """The numbers of each line, EOS the last."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(lines))]


def decode_all(tokenizer: Tokenizer, ids: Iterable[Sequence[int]]) -> list[str]:
    """The text of each; PAD and EOS have none."""
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
