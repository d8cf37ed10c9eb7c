"""Translations by beam search: what is found, in which order, and what is left as it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd.lab.recipes.translation import model, scores, tokens
from partialsgd.nested import Nested
from tests.lab.recipes.translation.tiny import settings, tokenizer

LINES = ["one", "two two two two", "six one", "one two six one two", ""]


def network(longest: int = 32, *, ends: float = 0.0, **changes: object) -> Nested:
    torch.manual_seed(1)
    told = settings(longest=longest, layers=1, **changes)
    nested = model.nest(model.build(told, tokenizer().get_vocab_size()), told)
    with torch.no_grad():  # fresh networks repeat the last token, whatever it was
        for parameter in nested.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn_like(parameter)
        nested.model.get_buffer("final_logits_bias")[0, tokens.EOS] = ends
    return nested


def log_probabilities(plain: nn.Module, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Score every next token after the target, without a cache and alone."""
    logits = plain(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[1, *target]]), use_cache=False)
    return torch.log_softmax(logits.logits[0, -1], -1)


@torch.no_grad()
def beam_search(plain: nn.Module, source: Sequence[int], beam: int, lenpen: float, longest: int) -> list[int]:
    """The definition: of all continuations the best stay; an end counts if it is among them; enough ends, and done."""
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        next_ = [
            (score + value, [*target, token])
            for score, target in alive
            for token, value in enumerate(log_probabilities(plain, source, target).tolist())
        ]
        best = sorted(next_, key=lambda pair: -pair[0])[: 2 * beam]
        over = [pair for pair in best[:beam] if pair[1][-1] == tokens.EOS or length == longest]
        ended += [(score / (length**lenpen), target) for score, target in over]
        alive = [pair for pair in best if pair[1][-1] != tokens.EOS][:beam]
        if len(ended) >= beam:
            break
    target = max(ended, key=lambda pair: pair[0])[1]
    return target[:-1] if target[-1] == tokens.EOS else target


@pytest.mark.parametrize(("beam", "lenpen"), [(1, 1.0), (3, 1.0), (3, 0.0)])
def test_the_search_is_the_search_by_definition(beam: int, lenpen: float) -> None:
    nested = network(ends=10).eval()  # so that some end soon and others late
    said = scores.translate(nested.model, tokenizer(), LINES, beam=beam, lenpen=lenpen)
    for line, text in zip(LINES[:-1], said, strict=False):
        source = tokens.encode_all(tokenizer(), [line])[0]
        found = beam_search(nested.model, source, beam, lenpen, scores.length_limit(len(source), 32))
        assert text == tokens.decode_all(tokenizer(), [found])[0]


def test_lines_come_back_in_their_order_whatever_the_batches() -> None:
    nested = network(ends=10)
    whole = scores.translate(nested.model, tokenizer(), LINES, beam=2)
    assert len(set(whole)) > 3 and whole[-1] == ""
    alone = [scores.translate(nested.model, tokenizer(), [line], beam=2)[0] for line in LINES]
    small = scores.translate(nested.model, tokenizer(), LINES, beam=2, max_tokens=1)
    assert whole == alone == small


def test_a_level_translates_as_what_is_taken_out_of_it() -> None:
    nested = network(ratio=("1/8",), init="svd")
    plain = nested.extract("core")
    whole = scores.translate(nested.model, tokenizer(), LINES)
    with nested.at("core"):
        core = scores.translate(nested.model, tokenizer(), LINES)
    assert core == scores.translate(plain, tokenizer(), LINES) != whole


def test_translating_is_repeatable_and_leaves_modes_buffers_gradients_and_noise() -> None:
    nested = network(dropout=0.5).train()
    nested.model.get_submodule("model.decoder").eval()
    before = [m.training for m in nested.modules()], torch.get_rng_state()
    buffers = {name: b.clone() for name, b in nested.named_buffers()}
    model: Any = nested.model
    told = model.generation_config.to_dict()
    once = scores.translate(nested.model, tokenizer(), LINES)
    assert scores.translate(nested.model, tokenizer(), LINES) == once
    assert [m.training for m in nested.modules()] == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert all(torch.equal(b, buffers[name]) for name, b in nested.named_buffers())
    assert all(p.grad is None for p in nested.parameters())
    assert model.generation_config.to_dict() == told

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    nested.model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        scores.translate(nested.model, tokenizer(), LINES)
    assert [m.training for m in nested.modules()] == before[0]


def test_a_line_that_is_too_long_is_cut_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="1 lines have more than 8 tokens and are truncated"):
        assert len(scores.translate(network(longest=8).model, tokenizer(), ["one " * 20])) == 1
    with pytest.warns(UserWarning, match="2 lines have more than 3 tokens"):
        cut = scores._truncate([[5, 6, 7, 1], [5, 6, 1], [9, 8, 7, 6, 1]], 3)
    assert cut == [[5, 6, 1], [5, 6, 1], [9, 8, 1]]  # each still ends


def test_bleu_is_of_whole_words_and_cased() -> None:
    references = ["der Hund beißt den Mann .", "am 3. März 2020"]
    assert scores.bleu(references, references, "de") == {"BLEU": pytest.approx(100), "chrF": pytest.approx(100)}
    assert scores.bleu([r.lower() for r in references], references, "de")["BLEU"] < 60
    one_wrong = scores.bleu(["der Hund beißt den Mann .", "am 4. März 2020"], references, "de")["BLEU"]
    # of 1-grams 10 of 11 are right, then 7 of 9, 5 of 7 and 3 of 5: 13a cuts off the dot after a number
    assert one_wrong == pytest.approx(100 * (10 / 11 * 7 / 9 * 5 / 7 * 3 / 5) ** (1 / 4))


TRAIN = [
    ("3 apples", "3 Äpfel"),
    ("3 apples and 2 pears", "3 Äpfel und 2 Birnen"),
    ("March 3, 2020", "3. März 2020"),
    ("3 apples", "drei Äpfel"),
]


@pytest.mark.parametrize(
    ("target", "tokenizer"), [("de", "13a"), ("pt_BR", "13a"), ("zh_Hant", "zh"), ("ja", "char"), ("th-TH", "char")]
)
def test_bleu_counts_words_where_there_are_spaces_and_characters_elsewhere(target: str, tokenizer: str) -> None:
    assert re.match(rf"nrefs:1\|case:mixed\|.*\|tok:{tokenizer}\|.*version:", scores.signature(target))
    one_wrong = scores.bleu(["3日と5時間前に"], ["3日と6時間前に"], target)["BLEU"]
    assert one_wrong < 10 if tokenizer == "13a" else one_wrong > 20


def test_the_translation_of_the_nearest_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    nearest = {
        "3 apples": "3 Äpfel",  # of two that are equally near the first
        "7 apples and 2 pears": "3 Äpfel und 2 Birnen",
        "March 9, 2020": "3. März 2020",
        "nothing in common": "3 Äpfel",  # all are equally far
        "": "3 Äpfel",
    }
    assert scores.copy_nearest(TRAIN, list(nearest)) == list(nearest.values())
    in_order = [("dog bites man", "1"), ("man bites dog", "2")]
    assert scores.copy_nearest(in_order, ["a man bites dog", "a dog bites man"]) == ["2", "1"]
    with pytest.raises(ValueError, match="no training phrases"):
        scores.copy_nearest([], ["a"])
    monkeypatch.setattr(scores, "_LARGEST_SEARCH", 4)
    pairs = [(f"number {n}", str(n)) for n in range(10)]
    assert set(scores.copy_nearest(pairs, [source for source, _ in pairs])) == {"0", "2", "5", "7"}, "evenly spaced"
