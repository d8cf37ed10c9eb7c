"""Translations by beam search, and how good they are: BLEU and chrF of the text as a reader sees it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from partialsgd._util.snapshots import Modes
from partialsgd.lab.recipes.translation.tokens import EOS, PAD, decode_all, encode_all

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WITHOUT_SPACES = {"zh": "zh", "yue": "zh", **dict.fromkeys(("ja", "th", "lo", "km", "my"), "char")}
"""Languages whose words have no spaces between them, and how sacrebleu counts in them."""

Progress = Callable[[int, int], None]
"""Called with the number of lines done, and of all."""


def translate(
    network: nn.Module,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    beam: int = 5,
    lenpen: float = 1.0,
    max_tokens: int = 4000,
    progress: Progress | None = None,
) -> list[str]:
    """The lines in the other language, by a beam search that keeps `beam` hypotheses; empty lines stay empty.

    A batch has at most `max_tokens` tokens, counted once for each hypothesis. A line that is longer than the network
    can read is cut, with a warning.
    """
    network_: Any = network
    longest = network_.config.max_position_embeddings
    sources = _cut(encode_all(tokenizer, lines), longest)
    found: list[list[int]] = [[] for _ in sources]
    done = 0
    modes = Modes(network)
    network.eval()
    try:
        for places in _alike([len(source) for source in sources], max_tokens // beam, longest):
            for place, ids in zip(places, _search(network_, [sources[i] for i in places], beam, lenpen), strict=True):
                found[place] = ids
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
    finally:
        modes.restore()
    said = decode_all(tokenizer, found)
    return [text if line.strip() else "" for text, line in zip(said, lines, strict=True)]


def bleu(hypotheses: Sequence[str], references: Sequence[str], target: str) -> dict[str, float]:
    """Corpus BLEU and chrF of text in the target language, of sacrebleu: cased; 13a where words have spaces."""
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"BLEU": _bleu(target), "chrF": CHRF()}
    return {name: float(metric.corpus_score(hypotheses, [references]).score) for name, metric in metrics.items()}


def _bleu(target: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=_WITHOUT_SPACES.get(re.split("[-_]", target)[0], "13a"))


def signature(target: str) -> str:
    """How sacrebleu computed BLEU, to be published with it."""
    metric = _bleu(target)
    metric.corpus_score(["a"], [["a"]])  # it knows the number of references then
    return str(metric.get_signature())


def room(source: int, longest: int) -> int:
    """How many tokens a translation may have. It depends on the line alone, not on those that share its batch."""
    eights = -(-source // 8) * 8
    return min(eights + eights // 2 + 10, longest)


def _alike(lengths: Sequence[int], max_tokens: int, longest: int) -> Iterator[list[int]]:
    """Places of about equally long lines with equal room, the longest first: too large a batch fails at once."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        is_full = batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens
        if is_full or (batch and room(lengths[place], longest) != room(lengths[batch[0]], longest)):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@torch.no_grad()
def _search(network: Any, sources: Sequence[Sequence[int]], beam: int, lenpen: float) -> list[list[int]]:
    ids = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True, padding_value=PAD)
    ids = ids.to(network.device)
    generated = network.generate(
        input_ids=ids,
        attention_mask=(ids != PAD).long(),
        num_beams=beam,
        length_penalty=lenpen if beam > 1 else 1.0,  # of one hypothesis there is no best
        early_stopping=beam > 1,
        do_sample=False,
        max_length=room(len(sources[0]), network.config.max_position_embeddings) + 1,  # and the start
    )
    found: list[list[int]] = generated.tolist()  # with the start, the end and what fills up; none of them has a text
    return found


def _cut(sources: list[list[int]], longest: int) -> list[list[int]]:
    long = sum(len(source) > longest for source in sources)
    if long:
        warnings.warn(f"{long} lines have more than {longest} pieces and are cut: split them", stacklevel=3)
    return [source if len(source) <= longest else [*source[: longest - 1], EOS] for source in sources]
