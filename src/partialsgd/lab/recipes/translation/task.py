"""Translation as the loop trains it: sentences in, sentences out, at every size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.translation import earlier, folder, losses, model, nearest, phrases, scores, tokens
from partialsgd.lab.recipes.translation.batches import Ids, TokenBatch, TokenBatches, in_order
from partialsgd.lab.recipes.translation.corpus import Corpus, digest
from partialsgd.lab.recipes.translation.earlier import NONE, Networks
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.recipes.translation.teachers import Teacher
from partialsgd.lab.recipes.translation.work import Work
from partialsgd.lab.training import data_hash as digests
from partialsgd.lab.training import rates
from partialsgd.lab.training.task import Batches, Numbers, Split
from partialsgd.nested import Nested

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SAMPLES = 3  # phrases that are shown, translated by each level
_TIMED = 9  # sentences whose latency is taken


def build(settings: Translation) -> TranslationTask:
    """Corpus, tokenizer and a family of networks with fresh weights, or with those of the run to start with."""
    corpus = corpus_of(settings)
    tokenizer = tokens.tokenizer_of(corpus, settings.vocabulary)
    given = earlier.networks(settings, tokenizer)
    torch.manual_seed(settings.seed)
    plain = model.build(settings, tokenizer.get_vocab_size())
    if "start" in given:
        plain.load_state_dict(given["start"].state_dict())
    return TranslationTask(settings, corpus, tokenizer, model.family(plain, settings), given)


def corpus_of(settings: Translation) -> Corpus:
    """The user's folder, or phrases that are made."""
    if settings.data is None and settings.preset != "laptop":
        raise ValueError(f"the preset {settings.preset} is for its corpus: give the folder with --data")
    if settings.data is not None:
        return folder.read(settings.data, settings.source, settings.target)
    sizes = {"size": settings.size, "valid": settings.valid_size, "test": settings.test_size}
    return phrases.generate(settings.source, settings.target, **sizes, seed=settings.corpus_seed)


def optimizer_of(network: nn.Module, settings: Translation) -> torch.optim.AdamW:
    """The decay of weights is decoupled and for all parameters alike, as in fairseq's Adam."""
    return torch.optim.AdamW(
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


@final
class TranslationTask:
    """A corpus, a tokenizer and a family that learns to translate."""

    unit = "tokens"
    score = "BLEU"

    def __init__(
        self, settings: Translation, corpus: Corpus, tokenizer: Tokenizer, network: Nested, given: Networks = NONE
    ) -> None:
        self.settings, self.corpus, self.tokenizer, self.network = settings, corpus, tokenizer, network
        self.optimizers: Sequence[torch.optim.Optimizer] = [optimizer_of(network, settings)]
        batches = TokenBatches(
            self._ids("train"), max_tokens=settings.max_tokens, seed=settings.seed, longest=settings.longest
        )
        self.batches: Batches = batches
        self._left_out = batches.left_out
        self._work = Work(network)
        self._teacher = Teacher(given["teacher"], settings.teacher_weight) if "teacher" in given else None
        self._read = [f"{option}:{earlier.digest(plain)}" for option, plain in given.items()]

    def notes(self) -> list[str]:
        sizes = "{:,} pairs to train with, {:,} to validate, {:,} to test".format(
            *map(len, self.corpus.splits.values())
        )
        too_long = f"{self._left_out:,} training pairs have more than {self.settings.longest} pieces and were left out"
        again = f"{self._seen:,} pairs of the test data are also in the training data"
        said = [sizes, *self.corpus.notes, *([too_long] if self._left_out else [])]
        return [*said, again] if self._seen else said

    def digest(self) -> str:
        return " ".join([digests.of_texts(digest(self.corpus), self.tokenizer.to_str()), *self._read])

    def rate(self, t: int, total: int) -> float:
        initial = self.settings.warmup_init_lr / self.settings.lr
        if self.settings.schedule == "linear":
            return rates.linear(total, self.settings.warm_up, initial)(t)
        return rates.inverse_sqrt(self.settings.warm_up, initial)(t)

    def loss(self, model: nn.Module, batch: TokenBatch, g: GradientPass) -> Tensor:
        g.outputs = losses.run(model, batch)
        logits, labels = g.outputs.logits, batch["labels"]
        if g.teacher is not None:  # the family's own, where the method distills
            loss = losses.distilled(logits, g.teacher.logits, labels)
        else:
            loss = losses.cross_entropy(logits, labels, self.settings.label_smoothing)
        return loss if self._teacher is None else self._teacher.mixed(loss, logits, batch)

    def glance(self, level: str) -> Numbers:
        with self.network.at(level):
            numbers = losses.likelihood(self.network.model, self._valid)
            return numbers | self._greedy() if self.settings.look_bleu else numbers

    def merit(self, glances: Mapping[str, Numbers]) -> float:
        return -statistics.fmean(numbers["loss"] for numbers in glances.values())

    def scores(self, level: str, split: Split) -> Numbers:
        sources, references = zip(*self.corpus.splits[split], strict=True)
        with self.network.at(level):
            numbers = losses.likelihood(self.network.model, self._in_order(split))
            return {
                **numbers,
                **scores.bleu(self.translate(self.network.model, sources), references, self.corpus.target),
            }

    def extras(self) -> dict[str, Any]:
        sources, references = zip(*self.corpus.splits["test"], strict=True)
        copied = scores.bleu(nearest.copied(self.corpus.splits["train"], sources), references, self.corpus.target)
        return {
            "signature": scores.signature(self.corpus.target),
            "nearest": f"BLEU {copied['BLEU']:.1f} for {nearest.RULE}",
            "samples": self._samples(),
            "notes": self.notes(),
        }

    def flops(self, level: str, batch: TokenBatch) -> int:
        """The forward pass of a teacher counts: it is run for each pass of the family."""
        sentences, source = batch["input_ids"].shape
        shape = (sentences, source, batch["decoder_input_ids"].shape[1])
        return self._work(level, shape) + (self._teacher.flops(shape) if self._teacher is not None else 0)

    def example(self) -> dict[str, Tensor]:
        return {name: self._valid[0][name][:2] for name in losses.INPUTS}

    def seconds(self, plain: nn.Module) -> float:
        """The median over single sentences, each translated by itself; one more warms up."""
        times = [self._seconds(plain, source) for source, _ in self.corpus.splits["valid"][: _TIMED + 1]]
        return statistics.median(times[1:] or times)

    def translate(self, network: nn.Module, lines: Sequence[str]) -> list[str]:
        """By the network as it is: the family's model at its level, or one that was taken out."""
        beam, lenpen = self.settings.beam, self.settings.lenpen
        return scores.translate(network, self.tokenizer, lines, beam=beam, lenpen=lenpen)

    def _greedy(self) -> Numbers:
        sources, references = zip(*self.corpus.splits["valid"][: self.settings.look_bleu], strict=True)
        said = scores.translate(self.network.model, self.tokenizer, sources, beam=1)
        return {"BLEU": scores.bleu(said, references, self.corpus.target)["BLEU"]}

    def _ids(self, split: str) -> list[Ids]:
        sources, targets = zip(*self.corpus.splits[split], strict=True)
        pairs = zip(tokens.encode_all(self.tokenizer, sources), tokens.encode_all(self.tokenizer, targets), strict=True)
        return list(pairs)

    def _in_order(self, split: str) -> list[TokenBatch]:
        """The pairs that the network can read whole."""
        fitting = [pair for pair in self._ids(split) if max(map(len, pair)) <= self.settings.longest]
        return [batch for _, batch in in_order(fitting, self.settings.max_tokens)]

    @cached_property
    def _seen(self) -> int:
        return len(set(self.corpus.splits["test"]) & set(self.corpus.splits["train"]))

    @cached_property
    def _valid(self) -> list[TokenBatch]:
        return self._in_order("valid")

    def _samples(self) -> list[dict[str, str]]:
        pairs = self.corpus.splits["test"][:_SAMPLES]
        rows = [{"source": source, "reference": reference} for source, reference in pairs]
        for level in self.network.levels:
            with self.network.at(level):
                said = self.translate(self.network.model, [source for source, _ in pairs])
            for row, text in zip(rows, said, strict=True):
                row[level] = text
        return rows

    def _seconds(self, plain: nn.Module, source: str) -> float:
        start = time.perf_counter()
        self.translate(plain, [source])
        return time.perf_counter() - start
