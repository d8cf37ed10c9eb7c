"""Settings and presets of the translation recipe, and the paper's Table 4 beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, final

from partialsgd.lab.training import settings as shared
from partialsgd.lab.training.settings import LevelOptions, Settings

Preset: TypeAlias = Literal["laptop", "iwslt14", "wmt17"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The corpus and its tokenizer."""

    preset: Preset = "laptop"
    """The defaults of the other settings: "laptop" is a small network for generated phrases.
    "iwslt14" and "wmt17" are the paper's (its Table 4) and need --data."""
    data: str | None = None
    """A folder with train, valid and test files in two languages, such as train.de and train.en, plain or .gz.
    By default phrases are generated from the Unicode locale data."""
    source: str = "en"
    """The language to translate from."""
    target: str = "de"
    """The language to translate into."""
    size: int = 20_000
    """Generated phrase pairs for training."""
    valid_size: int = 500
    """Generated phrase pairs for validation."""
    test_size: int = 500
    """Generated phrase pairs for the test."""
    corpus_seed: int = 0
    """The seed of the generated phrases; --seed does not change them."""
    vocabulary: int = 2000
    """The size of the tokenizer's vocabulary, shared by both languages."""
    longest: int = 128
    """The largest number of tokens in a sentence; pairs with a longer one are left out."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The Transformer."""

    norm: Literal["post", "pre"] = "post"
    """LayerNorm after the residual sum (Marian's class, the paper's choice) or before it (MBart's class)."""
    layers: int = 2
    """Blocks of the encoder, and of the decoder."""
    d_model: int = 128
    """The width of the network and of its embeddings."""
    ffn: int = 256
    """Hidden units of the feed-forward networks."""
    heads: int = 4
    """Attention heads."""
    tie: bool = True
    """Tie the decoder's input and output embeddings. The encoder always has its own."""
    dropout: float = 0.1
    """Dropout of embeddings, attention outputs and feed-forward outputs."""
    query_key: bool = True
    """With --nest width, narrow queries and keys too, as the paper does.
    With --no-query-key a smaller level is a network of its own class, which `export --format transformers` needs."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """The loss, AdamW and the learning-rate schedule."""

    max_tokens: int = 1000
    """Tokens in a batch, counted on the longer side with padding."""
    label_smoothing: float = 0.1
    """The share of the target's probability that is spread over all tokens."""
    lr: float = 3e-3
    """The peak learning rate, at the end of the warm-up."""
    warm_up: int = 200
    """Steps in which the learning rate rises linearly."""
    warmup_init_lr: float = 0.0
    """The learning rate of the first step."""
    schedule: Literal["linear", "inverse-sqrt"] = "linear"
    """The learning rate after the warm-up: linear to 0 at the last step, or the inverse square root of the step."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.98
    """AdamW's decay of the second moment."""
    eps: float = 1e-9
    """AdamW's epsilon."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""


@dataclass(frozen=True, kw_only=True)
class EarlierRunOptions:
    """A finished run to start from or to learn from."""

    start: str | None = None
    """A finished run of the same sizes whose full network gives the initial weights, before nesting.
    With --nest low-rank, --init svd and --alone core this is Pufferfish's warm start."""
    teacher: str | None = None
    """A finished run whose full network is the teacher: its probabilities are learned besides the labels.
    This is Hinton et al. (2015) at temperature 1."""
    teacher_weight: float = 0.5
    """The teacher's share of the loss; 1 ignores the labels."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The beam search, and BLEU during training."""

    beam: int = 5
    """Hypotheses of the beam search."""
    lenpen: float = 1.0
    """The length penalty: a hypothesis is scored by its log-probability divided by its length to this power."""
    look_bleu: int = 0
    """Validation pairs that each level translates greedily at every evaluation, for BLEU during training."""


@final
@dataclass(frozen=True, kw_only=True)
class Translation(
    DataOptions, ModelOptions, LevelOptions, EarlierRunOptions, OptimizerOptions, SearchOptions, Settings
):
    """Train a Transformer, and the smaller ones inside it, to translate."""

    recipe: ClassVar[str] = "translation"
    next_commands: ClassVar[tuple[str, ...]] = ('echo "three days" | partialsgd translate {run} --level {level}',)
    requires: ClassVar[tuple[str, ...]] = ("babel", "sacrebleu", "sklearn", "tokenizers", "transformers")
    paths: ClassVar[tuple[str, ...]] = ("data", "start", "teacher")
    earlier_runs: ClassVar[tuple[str, ...]] = ("start", "teacher")

    epochs: int = 5
    threads: int | None = 1
    ratio: tuple[str, ...] = ("1/16",)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("size", "valid_size", "test_size", "longest", "layers", "d_model", "ffn", "heads", "max_tokens")
        for name in (*counts, "beam"):
            shared.require_at_least(name, getattr(self, name), 1)
        shared.require_at_least("warm_up", self.warm_up, 0)
        shared.require_at_least("look_bleu", self.look_bleu, 0)
        shared.require_at_least("vocabulary", self.vocabulary, 259)  # 256 bytes and three special tokens
        for name in ("dropout", "label_smoothing", "beta1", "beta2"):
            shared.require_in(name, getattr(self, name), 0, 1)
        for name in ("eps", "weight_decay", "warmup_init_lr"):
            shared.require_in(name, getattr(self, name), 0, float("inf"))
        shared.require_positive("lr", self.lr)
        shared.require_at_least("corpus_seed", self.corpus_seed, 0)
        shared.require_in("lenpen", self.lenpen, -100, 100)
        if not 0 < self.teacher_weight <= 1:
            raise ValueError(f"teacher_weight must be in (0, 1], got {self.teacher_weight}; for 0 omit teacher")
        if self.d_model % self.heads or self.d_model % 2:
            raise ValueError(
                f"d_model must be even and a multiple of heads; got d_model {self.d_model} and heads {self.heads}"
            )
        if self.start is not None and self.nest == "low-rank" and self.init == "zero":
            raise ValueError(f'start is {self.start!r}, which init="zero" would overwrite; use init="svd" or "matched"')
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}; give two languages")

    def ordinary_sizes(self) -> list[dict[str, Any]]:
        """Narrower networks: d_model and, in proportion, the feed-forward layers."""
        step = math.lcm(self.heads, 2)
        widths = range(step, self.d_model, step)
        return [{"d_model": width, "ffn": max(1, round(self.ffn * width / self.d_model))} for width in widths]

    def comments(self) -> list[str]:
        """The paper's Table 4 beside these settings."""
        return as_lines(self)


_SIZES: dict[str, Any] = {"layers": 6, "d_model": 512, "longest": 1024, "ratio": ("1/32",), "threads": None}
_PAPER: dict[str, Any] = {**_SIZES, "warm_up": 4000, "schedule": "inverse-sqrt"}

PRESETS: dict[str, Translation] = {
    "laptop": Translation(),
    "iwslt14": Translation(
        preset="iwslt14",
        source="de",
        target="en",
        **_PAPER,
        vocabulary=10_000,
        ffn=1024,
        dropout=0.3,
        lr=5e-4,
        epochs=30,
        max_tokens=12_000,
        weight_decay=1e-4,
    ),
    "wmt17": Translation(
        preset="wmt17",
        **_PAPER,
        vocabulary=40_000,
        heads=8,
        ffn=2048,
        lr=7e-4,
        epochs=22,
        max_tokens=18_000,
        warmup_init_lr=1e-7,
        tie=False,
    ),
}


class Row(NamedTuple):
    """One line of the table."""

    parameter: str
    """The name of fairseq's option."""
    paper: str
    """The paper's value for the preset's data; for the preset "laptop", its value for IWSLT14."""
    ours: str
    remark: str = ""


_Ours: TypeAlias = Callable[[Translation], object]

_MODULES = {"width": "PartitionedLinear", "low-rank": "PartitionedRankLinear"}


def _module(settings: Translation) -> object:
    return _MODULES.get(settings.nest, settings.nest)


def _ratio(settings: Translation) -> object:
    return (
        "none" if settings.nest == "none" else ", ".join(f"{shared.parse_ratio(ratio):g}" for ratio in settings.ratio)
    )


# The parameter, its value for WMT17 and for IWSLT14 (one if they are the same), ours, and a remark.
_TABLE: tuple[tuple[str, tuple[str, ...], _Ours, str], ...] = (
    ("adam_betas", ("(0.9, 0.98)",), lambda s: (s.beta1, s.beta2), ""),
    ("adam_eps", ("1e-09",), lambda s: s.eps, ""),
    ("alternate_lr_coef", ("1.0",), lambda s: s.method if "lr=" in s.method else "1.0", "set by the method"),
    ("criterion", ("label_smoothed_cross_entropy",), lambda s: "the same", "the mean over the tokens of a step"),
    ("decoder_attention_heads", ("8", "4"), lambda s: s.heads, ""),
    ("decoder_embed_dim", ("512",), lambda s: s.d_model, ""),
    ("decoder_ffn_embed_dim", ("2048", "1024"), lambda s: s.ffn, ""),
    ("decoder_layers", ("6",), lambda s: s.layers, ""),
    ("dropout", ("0.1", "0.3"), lambda s: s.dropout, "none in attention or after ReLU, fairseq's default"),
    ("encoder_attention_heads", ("8", "4"), lambda s: s.heads, ""),
    ("encoder_embed_dim", ("512",), lambda s: s.d_model, ""),
    ("encoder_ffn_embed_dim", ("2048", "1024"), lambda s: s.ffn, ""),
    ("encoder_layers", ("6",), lambda s: s.layers, ""),
    ("label_smoothing", ("0.1",), lambda s: s.label_smoothing, "over all tokens; fairseq: over the wrong ones"),
    ("lr", ("0.0007", "0.0005"), lambda s: s.lr, "the peak"),
    ("lr_scheduler", ("inverse_sqrt",), lambda s: s.schedule.replace("-", "_"), "counts the steps of all levels"),
    ("max_epoch", ("22", "30"), lambda s: s.epochs, ""),
    ("max_tokens", ("18000", "12000"), lambda s: s.max_tokens, "sentences × the longest of the batch"),
    ("optimizer", ("adam_for_partitioned_model",), lambda s: "AdamW", "moves nothing outside the level"),
    ("partitioned_linear_module_name", (" or ".join(_MODULES.values()),), _module, "width or low-rank"),
    ("share_decoder_input_output_embed", ("False", "True"), lambda s: s.tie, "the encoder has its own"),
    ("small_ratio", ("0.03125",), _ratio, ""),
    ("task", ("translation_with_partitioned_model",), lambda s: s.recipe, ""),
    ("warmup_init_lr", ("1e-07", "-1"), lambda s: s.warmup_init_lr, "-1 is 0 in fairseq"),
    ("warmup_updates", ("4000",), lambda s: s.warm_up, ""),
    ("weight_decay", ("0.0", "0.0001"), lambda s: s.weight_decay, "decoupled"),
)


def table_4(settings: Translation) -> list[Row]:
    """Every line of the paper's Table 4 for the preset's data, with the value of these settings."""
    column = 0 if settings.preset == "wmt17" else -1
    return [Row(name, values[column], str(ours(settings)), remark) for name, values, ours, remark in _TABLE]


def as_lines(settings: Translation) -> list[str]:
    """The table as lines of text, in columns."""
    rows = [("the paper's Table 4", "paper", "here", ""), *table_4(settings)]
    widths = [*(max(len(row[k]) for row in rows) for k in range(3)), 0]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
