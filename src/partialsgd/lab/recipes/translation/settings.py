"""The settings of the translation recipe, and the paper's (Table 4) beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, final

from partialsgd.lab.training.settings import Settings, ratio_of, require_at_least

Preset: TypeAlias = Literal["laptop", "iwslt14", "wmt17"]


@final
@dataclass(frozen=True, kw_only=True)
class Translation(Settings):
    """A Transformer and the smaller ones inside it learn to translate."""

    recipe: ClassVar[str] = "translation"

    preset: Preset = "laptop"
    """Where the other settings start: for two CPU cores and the embedded corpus, or the paper's (its Table 4)."""
    data: str | None = None
    """A folder with train, valid and test in two languages, like train.de and train.en, plain or .gz. By default
    phrases are made from the Unicode locale data."""
    source: str = "en"
    """The language to translate from."""
    target: str = "de"
    """The language to translate into."""
    size: int = 20_000
    """Pairs of phrases to train with, where they are made."""
    valid_size: int = 500
    """Pairs for validation, where they are made."""
    test_size: int = 500
    """Pairs for the test, where they are made."""
    corpus_seed: int = 0
    """Of the phrases that are made. The seed of the training does not change them."""
    vocabulary: int = 2000
    """Pieces of words, of both languages together, that the tokenizer learns; at most."""
    longest: int = 128
    """Pieces in a sentence; pairs with a longer one are left out."""

    norm: Literal["post", "pre"] = "post"
    """Where a block normalises: after the sum (Marian's class, the paper's choice) or before it (MBart's)."""
    layers: int = 2
    """Blocks of the encoder, and as many of the decoder."""
    d_model: int = 128
    """The width of the network, and of its embeddings."""
    ffn: int = 256
    """Hidden units of the feed-forward networks."""
    heads: int = 4
    """Of each attention."""
    tie: bool = True
    """The decoder reads and writes with one table of embeddings. The encoder always has its own."""

    dropout: float = 0.1
    """Share of the outputs of embeddings, attention and feed-forward networks set to zero in training."""
    label_smoothing: float = 0.1
    """Share of the target's probability that is spread over all pieces."""
    teacher: str | None = None
    """A finished run whose whole network teaches: what it finds probable is learnt beside the labels (Hinton et al.,
    2015, at temperature 1)."""
    teacher_weight: float = 0.5
    """The share of the loss that is the teacher's: 1 is without the labels."""
    lr: float = 3e-3
    """The largest learning rate of AdamW, reached at the end of the warm-up."""
    beta1: float = 0.9
    """How slowly AdamW forgets gradients."""
    beta2: float = 0.98
    """How slowly AdamW forgets their squares."""
    eps: float = 1e-9
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.0
    """Decoupled: the weights shrink by this times the learning rate at each step."""
    warm_up: int = 200
    """Steps in which the learning rate grows linearly."""
    schedule: Literal["linear", "inverse-sqrt"] = "linear"
    """How it falls after the warm-up: along a line to 0 at the last step, or with the root of the steps."""
    warmup_init_lr: float = 0.0
    """The learning rate of the first step."""
    max_tokens: int = 1000
    """Pieces in a batch, on the longer side, padding included."""
    epochs: int = 5
    """Passes over the training data."""
    threads: int | None = 1
    """Of torch, on a CPU. A network this small gains little by a second one, and loses much where others compute.
    Stored: other numbers give other bits."""

    nest: Literal["low-rank", "width", "depth", "none"] = "low-rank"
    """What a smaller level has less of: ranks or units of the feed-forward networks and of query and key, or
    blocks. "none" is one network by itself."""
    ratio: tuple[str, ...] = ("1/16",)
    """The share that a smaller level has; several give as many levels."""
    alone: str | None = None
    """Take this level out of the family and train it by itself, from the start that it has there."""
    init: Literal["zero", "svd", "matched"] = "zero"
    """How low rank starts: "zero" as the smallest level, the others as an ordinary network."""
    start: str | None = None
    """A finished run of the same sizes, whose whole network this one starts as, before it is nested. With --nest
    low-rank, --init svd and --alone core it is Pufferfish's warm start."""

    beam: int = 5
    """Hypotheses that the search keeps."""
    lenpen: float = 1.0
    """A hypothesis is scored by its log-probability over its length to this power."""
    look_bleu: int = 0
    """Validation pairs that each level translates greedily at every evaluation, for BLEU along the training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_sizes(self)
        _require_numbers(self)
        if not self.ratio and self.nest != "none":
            raise ValueError('ratio is empty; give the share that the smaller level has, or nest="none"')
        for ratio in self.ratio:
            ratio_of(ratio)
        if self.start is not None and self.nest == "low-rank" and self.init == "zero":
            raise ValueError(
                f'start is {self.start!r}, which init="zero" would overwrite; give init="svd" or "matched"'
            )
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}; give two languages")


def _require_sizes(settings: Translation) -> None:
    counts = ("size", "valid_size", "test_size", "longest", "layers", "d_model", "ffn", "heads", "max_tokens", "beam")
    for name in counts:
        require_at_least(name, getattr(settings, name), 1)
    require_at_least("warm_up", settings.warm_up, 0)
    require_at_least("look_bleu", settings.look_bleu, 0)
    require_at_least("vocabulary", settings.vocabulary, 259)  # the bytes, and three signs
    if settings.d_model % settings.heads or settings.d_model % 2:
        raise ValueError(
            f"d_model must be even and a multiple of heads, got d_model {settings.d_model} and heads {settings.heads}"
        )


def _require_numbers(settings: Translation) -> None:
    for name in ("dropout", "label_smoothing", "beta1", "beta2"):
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), got {getattr(settings, name)}")
    if not 0 < settings.teacher_weight <= 1:
        raise ValueError(f"teacher_weight must be in (0, 1], got {settings.teacher_weight}; for none leave teacher out")
    if not settings.lr > 0:
        raise ValueError(f"lr must be positive, got {settings.lr}")
    for name in ("eps", "weight_decay", "warmup_init_lr"):
        if not getattr(settings, name) >= 0:
            raise ValueError(f"{name} must not be negative, got {getattr(settings, name)}")


_PAPER: dict[str, Any] = {
    "layers": 6,
    "d_model": 512,
    "vocabulary": 10_000,
    "longest": 1024,
    "warm_up": 4000,
    "schedule": "inverse-sqrt",
    "threads": None,
    "ratio": ("1/32",),
}

PRESETS: dict[str, Translation] = {
    "laptop": Translation(),
    "iwslt14": Translation(
        preset="iwslt14",
        source="de",
        target="en",
        **_PAPER,
        heads=4,
        ffn=1024,
        dropout=0.3,
        lr=5e-4,
        epochs=30,
        max_tokens=12_000,
        weight_decay=1e-4,
        warmup_init_lr=0.0,
        tie=True,
    ),
    "wmt17": Translation(
        preset="wmt17",
        source="en",
        target="de",
        **{**_PAPER, "vocabulary": 40_000},
        heads=8,
        ffn=2048,
        dropout=0.1,
        lr=7e-4,
        epochs=22,
        max_tokens=18_000,
        weight_decay=0.0,
        warmup_init_lr=1e-7,
        tie=False,
    ),
}


def of_preset(name: str, **changes: Any) -> Translation:
    """The settings of a preset, with some of them changed."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)
