"""The paper's Table 4 beside the settings of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.settings import parse_ratio


class Row(NamedTuple):
    """One line of the table."""

    parameter: str
    """The name of fairseq's option."""
    paper: str
    """The paper's value for the preset's data; for the preset "laptop", its value for IWSLT14."""
    ours: str
    remark: str = ""


_Ours: TypeAlias = Callable[[Translation], object]

_MODULES = {"low-rank": "PartitionedRankLinear", "width": "PartitionedLinear"}


def _ratio(settings: Translation) -> object:
    return "none" if settings.nest == "none" else ", ".join(f"{parse_ratio(ratio):g}" for ratio in settings.ratio)


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
    (
        "partitioned_linear_module_name",
        ("PartitionedLinear or PartitionedRankLinear",),
        lambda s: _MODULES.get(s.nest, s.nest),
        "width or low-rank",
    ),
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
