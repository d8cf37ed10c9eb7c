"""Translation by beam search, and its scores: BLEU and chrF, and a baseline that needs no network."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from partialsgd.lab.recipes.translation.corpus import Pair
from partialsgd.lab.recipes.translation.tokens import EOS, PAD, decode_all, encode_all
from partialsgd.lab.training.recipe_tools import evaluation_mode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZE = {"zh": "zh", "yue": "zh", **dict.fromkeys(("ja", "th", "lo", "km", "my"), "char")}
"""sacrebleu's tokenisation for languages that are written without spaces between words."""

NEAREST_PHRASE = "the translation of the training phrase with the largest cosine of tf-idf over n-grams of 1 to 4 words"
_LARGEST_SEARCH = 200_000
"""Training pairs that the baseline searches; of a larger corpus this many, evenly spaced."""


def translate(
    network: nn.Module,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    beam: int = 5,
    lenpen: float = 1.0,
    max_tokens: int = 4000,
    length: int | None = None,
) -> list[str]:
    """Translate lines by beam search; empty lines stay empty. `length` is the number of tokens of every translation.

    A batch has at most `max_tokens` tokens over all hypotheses. Lines longer than the network can read are truncated,
    with a warning.
    """
    network_: Any = network
    longest = network_.config.max_position_embeddings
    sources = _truncate(encode_all(tokenizer, lines), longest)
    translated: list[list[int]] = [[] for _ in sources]
    with evaluation_mode(network):
        for places in _batches([len(source) for source in sources], max_tokens // beam, longest):
            best = _search(network_, [sources[i] for i in places], beam, lenpen, length)
            for place, ids in zip(places, best, strict=True):
                translated[place] = ids
    texts = decode_all(tokenizer, translated)
    return [text if line.strip() else "" for text, line in zip(texts, lines, strict=True)]


def bleu(hypotheses: Sequence[str], references: Sequence[str], target: str) -> dict[str, float]:
    """sacrebleu's corpus BLEU and chrF for a target language; cased, tokenised as 13a where words have spaces."""
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"BLEU": _bleu(target), "chrF": CHRF()}
    return {name: float(metric.corpus_score(hypotheses, [references]).score) for name, metric in metrics.items()}


def _bleu(target: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=_TOKENIZE.get(re.split("[-_]", target)[0], "13a"))


def signature(target: str) -> str:
    """sacrebleu's signature, to be published with the BLEU."""
    metric = _bleu(target)
    metric.corpus_score(["a"], [["a"]])  # the signature includes the number of references
    return str(metric.get_signature())


def length_limit(source: int, longest: int) -> int:
    """The largest number of tokens in a translation. It depends on the line, not on the others in its batch."""
    rounded = -(-source // 8) * 8
    return min(rounded + rounded // 2 + 10, longest)


def _batches(lengths: Sequence[int], max_tokens: int, longest: int) -> Iterator[list[int]]:
    """Indices of lines of similar length with equal limits, longest first, so that too large a batch fails at once."""
    by_length = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    for _, group in groupby(by_length, key=lambda i: length_limit(lengths[i], longest)):
        alike = list(group)
        while alike:
            count = max(max_tokens // lengths[alike[0]], 1)
            yield alike[:count]
            alike = alike[count:]


@torch.no_grad()
def _search(
    network: Any, sources: Sequence[Sequence[int]], beam: int, lenpen: float, length: int | None = None
) -> list[list[int]]:
    ids = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True, padding_value=PAD)
    ids = ids.to(network.device)
    limit = length_limit(len(sources[0]), network.config.max_position_embeddings) + 1  # plus the start token
    lengths = {"max_length": limit} if length is None else {"max_length": length + 1, "min_length": length + 1}
    generated = network.generate(
        input_ids=ids,
        attention_mask=(ids != PAD).long(),
        num_beams=beam,
        length_penalty=lenpen if beam > 1 else 1.0,  # transformers refuses others for a greedy search
        early_stopping=beam > 1,
        do_sample=False,
        **lengths,
    )
    with_special_tokens: list[list[int]] = generated.tolist()
    return with_special_tokens


def _truncate(sources: list[list[int]], longest: int) -> list[list[int]]:
    long = sum(len(source) > longest for source in sources)
    if long:
        warnings.warn(f"{long} lines have more than {longest} tokens and are truncated; split them", stacklevel=3)
    return [source if len(source) <= longest else [*source[: longest - 1], EOS] for source in sources]


def copy_nearest(train: Sequence[Pair], lines: Sequence[str]) -> list[str]:
    """The baseline without a network: for each line the target of the nearest training source."""
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not train:
        raise ValueError("there are no training phrases to copy from")
    count = min(len(train), _LARGEST_SEARCH)
    pairs = [train[i * len(train) // count] for i in range(count)]
    words = r"\w+|[^\w\s]"  # words and punctuation marks, as BLEU counts them
    vectorizer = TfidfVectorizer(token_pattern=words, ngram_range=(1, 4), lowercase=False, dtype=np.float32)
    sources, queries = vectorizer.fit_transform([source for source, _ in pairs]), vectorizer.transform(lines)
    block = 64  # lines at once: a dense row has one number for each training pair
    nearest = [(queries[k : k + block] @ sources.T).toarray().argmax(axis=1) for k in range(0, len(lines), block)]
    return [pairs[int(place)][1] for places in nearest for place in places]
