"""The translation recipe as a task for the loop: corpus, tokenizer, network, loss, scores and export."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.translation import losses, model, phrases, scores, tokens
from partialsgd.lab.recipes.translation.corpus import Corpus, corpus_hash, read_folder
from partialsgd.lab.recipes.translation.losses import TranslationFlops
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.recipes.translation.tokens import Ids, TokenBatch, TokenBatches, in_order, longer_side
from partialsgd.lab.training.recipe_tools import hash_texts, inverse_sqrt, linear, with_teacher
from partialsgd.lab.training.task import ExportDetails, Numbers, Split, fill_template
from partialsgd.method import Method
from partialsgd.nested import Nested
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPLITS = {"valid": "validation", "test": "test"}
_SAMPLES = 3  # test phrases shown with the translation of each level
_BUDGET_PAIRS = 256  # training pairs that decide what units are worth
_TIMED = 9  # sentences whose latency is measured
_PACKAGES = {
    "safetensors": "torch transformers tokenizers safetensors",
    "onnx": "onnxruntime tokenizers numpy",
    "transformers": "torch transformers",
}
_DYNAMIC = {"input_ids": {1: "source"}, "attention_mask": {1: "source"}, "decoder_input_ids": {1: "target"}}


def build(settings: Translation) -> TranslationTask:
    """Read the corpus, train the tokenizer, and make the network with fresh weights or those of --start."""
    corpus = read_corpus(settings)
    tokenizer = tokens.train_cached(corpus, settings.vocabulary)
    options = [option for option in settings.earlier_runs if getattr(settings, option) is not None]
    earlier = {option: model.load_full_network(option, settings, tokenizer) for option in options}
    torch.manual_seed(settings.seed)  # after the networks of earlier runs, which draw random numbers
    plain = model.build(settings, tokenizer.get_vocab_size())
    if "start" in earlier:
        plain.load_state_dict(earlier["start"].state_dict())
    example: dict[str, Tensor] | None = None
    budget_losses: list[Callable[[], Tensor]] = []
    if settings.level_budget is not None:
        example, budget_losses = _for_budget(plain, corpus, tokenizer, settings)
    network = model.nest(plain, settings, example, budget_losses)
    return TranslationTask(settings, corpus, tokenizer, network, earlier)


def _for_budget(
    plain: nn.Module, corpus: Corpus, tokenizer: Tokenizer, settings: Translation
) -> tuple[dict[str, Tensor], list[Callable[[], Tensor]]]:
    """Return example inputs, and functions for the loss of the network on some batches of training pairs."""
    sides = (tokens.encode_all(tokenizer, side) for side in zip(*corpus.splits["train"][:_BUDGET_PAIRS], strict=True))
    pairs = [pair for pair in zip(*sides, strict=True) if longer_side(pair) <= settings.longest]
    batches = list(tokens.in_order(pairs, settings.max_tokens))

    def loss(batch: TokenBatch) -> Tensor:
        return losses.cross_entropy(losses.run(plain, batch).logits, batch["labels"]) / batch["labels"].numel()

    return {name: batches[0][name][:2] for name in losses.INPUTS}, [partial(loss, batch) for batch in batches]


def read_corpus(settings: Translation) -> Corpus:
    """Read the folder of --data, or generate phrases."""
    if settings.data is None and settings.preset != "laptop":
        raise ValueError(f"the preset {settings.preset} needs its corpus; give the folder with --data")
    if settings.data is not None:
        return read_folder(settings.data, settings.source, settings.target)
    sizes = {"size": settings.size, "valid": settings.valid_size, "test": settings.test_size}
    return phrases.generate(settings.source, settings.target, **sizes, seed=settings.corpus_seed)


def make_optimizer(network: nn.Module, settings: Translation) -> torch.optim.AdamW:
    """AdamW with decoupled weight decay of all parameters alike, as fairseq's Adam."""
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
    """A Transformer that learns to translate at every level."""

    unit = "tokens"
    score = "BLEU"
    formats = ("safetensors", "onnx", "transformers")

    def __init__(
        self,
        settings: Translation,
        corpus: Corpus,
        tokenizer: Tokenizer,
        network: Nested,
        earlier: model.Networks = MappingProxyType({}),
    ) -> None:
        self.settings, self.corpus, self.tokenizer = settings, corpus, tokenizer
        self.use(network)
        options = {"max_tokens": settings.max_tokens, "seed": settings.seed, "longest": settings.longest}
        self.batches = TokenBatches(self._ids("train"), **options)
        self._fitting = {split: self._fitting_pairs(split) for split in ("valid", "test")}
        teacher = earlier.get("teacher")
        self._teacher = None if teacher is None else losses.Teacher(teacher, settings.teacher_weight)
        self._earlier_hashes = [f"{option}:{model.weights_hash(plain)}" for option, plain in earlier.items()]

    def use(self, network: Nested) -> None:
        self.network, self._flops = network, TranslationFlops(network)
        self.optimizers: Sequence[torch.optim.Optimizer] = [make_optimizer(network, self.settings)]

    @property
    def signature(self) -> str | None:
        return scores.signature(self.corpus.target)

    def notes(self) -> list[str]:
        sizes = map(len, self.corpus.splits.values())
        notes = ["{:,} training, {:,} validation and {:,} test pairs".format(*sizes), *self.corpus.notes]
        longest, limit = self.settings.longest, min(self.settings.longest, self.settings.max_tokens)
        if left_out := self.batches.left_out:
            notes.append(f"{left_out:,} training pairs with more than {limit} tokens are left out")
        for split, fitting in self._fitting.items():
            if left_out := len(self.corpus.splits[split]) - len(fitting):
                pairs = f"{left_out:,} {_SPLITS[split]} pairs with more than {longest} tokens"
                notes.append(f"{pairs} are left out of loss and perplexity; BLEU counts them, cut to {longest}")
        if seen := len(set(self.corpus.splits["test"]) & set(self.corpus.splits["train"])):
            notes.append(f"{seen:,} test pairs are also in the training data")
        return notes

    def data_hash(self) -> str:
        texts = hash_texts(corpus_hash(self.corpus), self.tokenizer.to_str())
        return " ".join([texts, *self._earlier_hashes])

    def learning_rate(self, t: int, total: int) -> float:
        initial = self.settings.warmup_init_lr / self.settings.lr
        if self.settings.schedule == "linear":
            return linear(t, total, self.settings.warm_up, initial)
        return inverse_sqrt(t, self.settings.warm_up, initial)

    def loss(self, model: nn.Module, batch: TokenBatch, g: GradientPass) -> Tensor:
        g.outputs = logits = losses.run(model, batch).logits
        labels, teacher = batch["labels"], g.teacher
        loss = losses.cross_entropy(logits, labels, self.settings.label_smoothing)
        if teacher is not None:  # the method distills from a larger level
            distilled = losses.distillation(logits, getattr(teacher, "logits", teacher), labels)
            loss = with_teacher(loss, distilled, self.settings.taught_share)
        return loss if self._teacher is None else self._teacher.mix(loss, logits, batch)

    def quick_eval(self, level: str) -> Numbers:
        with self.network.at(level):
            numbers = losses.likelihood(self.network.model, self._valid)
            if not self.settings.look_bleu:
                return numbers
            sources, references = zip(*self.corpus.splits["valid"][: self.settings.look_bleu], strict=True)
            greedy = scores.translate(self.network.model, self.tokenizer, sources, beam=1)
            return {**numbers, "BLEU": scores.bleu(greedy, references, self.corpus.target)["BLEU"]}

    def selection_score(self, evaluations: Mapping[str, Numbers]) -> float:
        """The mean loss of the levels, negated."""
        return -statistics.fmean(numbers["loss"] for numbers in evaluations.values())

    def scores(self, level: str, split: Split) -> Numbers:
        """Loss and perplexity, and BLEU and chrF of a beam search."""
        sources, references = zip(*self.corpus.splits[split], strict=True)
        with self.network.at(level):
            numbers = losses.likelihood(self.network.model, self._in_order(split))
            translations = self.translate(self.network.model, sources)
        return {**numbers, **scores.bleu(translations, references, self.corpus.target)}

    def extras(self, method: Method) -> dict[str, Any]:
        """The BLEU signature, the baseline without a network, sample translations and notes on the data."""
        sources, references = zip(*self.corpus.splits["test"], strict=True)
        copied = scores.bleu(scores.copy_nearest(self.corpus.splits["train"], sources), references, self.corpus.target)
        return {
            "signature": self.signature,
            "nearest": f"BLEU {copied['BLEU']:.1f} for {scores.NEAREST_PHRASE}",
            "samples": self._samples(),
            "notes": self.notes(),
        }

    def flops(self, level: str, batch: TokenBatch) -> int:
        """FLOPs of the level, and of the teacher's forward pass if there is one."""
        sentences, source = batch["input_ids"].shape
        shape = (sentences, source, batch["decoder_input_ids"].shape[1])
        return self._flops(level, shape) + (self._teacher.flops(shape) if self._teacher is not None else 0)

    def example(self) -> dict[str, Tensor]:
        return {name: self._valid[0][name][:2] for name in losses.INPUTS}

    def latency(self, extracted: nn.Module) -> float:
        """The median time to translate one sentence, after one warm-up sentence.

        Every level writes as many tokens as the reference has: one that stops early would seem fast.
        """
        times = []
        settings = self.settings
        for source, reference in self.corpus.splits["valid"][: _TIMED + 1]:
            length = min(len(tokens.encode_all(self.tokenizer, [reference])[0]), settings.longest)
            start = time.perf_counter()
            scores.translate(
                extracted, self.tokenizer, [source], beam=settings.beam, lenpen=settings.lenpen, length=length
            )
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:] or times)

    def sidecar_files(self) -> dict[str, str]:
        return {model.TOKENIZER: self.tokenizer.to_str(pretty=True)}

    def export_details(self, level: str, format: str) -> ExportDetails:
        settings, is_original = self.settings, level == self.network.levels[-1] and self.settings.alone in (None, FULL)
        data = "phrases generated from the Unicode locale data"
        if settings.data is not None:
            data = f"the sentences in `{Path(settings.data).name}`"
        templates = Path(__file__).parent / "templates"
        smaller = "" if is_original or settings.nest not in ("low-rank", "width") else f"{settings.nest}.py.txt"
        values: dict[str, object] = {"text": repr(self.corpus.splits["test"][0][0]), "longest": settings.longest}
        values["smaller"] = smaller and (templates / smaller).read_text(encoding="utf-8")
        return ExportDetails(
            about=f"Translates {settings.source} to {settings.target}; trained on {data}.",
            packages=_PACKAGES[format],
            code=fill_template(templates / f"{format}.py.txt", **values),
            files=_auto_tokenizer(self.tokenizer) if format == "transformers" else {},
            dynamic=_DYNAMIC,
        )

    def translate(self, network: nn.Module, lines: Sequence[str]) -> list[str]:
        """Translate with the nested model at its current level, or with an extracted one."""
        beam, lenpen = self.settings.beam, self.settings.lenpen
        return scores.translate(network, self.tokenizer, lines, beam=beam, lenpen=lenpen)

    def _ids(self, split: str) -> list[Ids]:
        sides = (tokens.encode_all(self.tokenizer, side) for side in zip(*self.corpus.splits[split], strict=True))
        return list(zip(*sides, strict=True))

    def _fitting_pairs(self, split: str) -> list[Ids]:
        """The pairs that are not too long for the network."""
        pairs = self._ids(split)
        fitting = [pair for pair in pairs if longer_side(pair) <= self.settings.longest]
        if not fitting:
            raise ValueError(
                f"longest is {self.settings.longest}, and each of the {len(pairs):,} {_SPLITS[split]} pairs has more "
                "tokens, so that nothing could be scored; increase --longest"
            )
        return fitting

    def _in_order(self, split: str) -> list[TokenBatch]:
        return list(in_order(self._fitting[split], self.settings.max_tokens))

    @cached_property
    def _valid(self) -> list[TokenBatch]:
        return self._in_order("valid")

    def _samples(self) -> list[dict[str, str]]:
        pairs = self.corpus.splits["test"][:_SAMPLES]
        rows = [{"source": source, "reference": reference} for source, reference in pairs]
        for level in self.network.levels:
            with self.network.at(level):
                translations = self.translate(self.network.model, [source for source, _ in pairs])
            for row, text in zip(rows, translations, strict=True):
                row[level] = text
        return rows


def _auto_tokenizer(tokenizer: Tokenizer) -> dict[str, str]:
    """The files from which `AutoTokenizer.from_pretrained` loads the tokenizer."""
    transformers: Any = import_module("transformers")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
    with TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        return {file.name: file.read_text(encoding="utf-8") for file in Path(folder).iterdir()}
