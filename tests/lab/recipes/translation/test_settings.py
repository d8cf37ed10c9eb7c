"""The presets are the paper's Table 4, and what makes no sense is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partialsgd.lab.recipes.translation.settings import PRESETS, Translation, table_4

# The paper's Table 4, written down once more, WMT17 then IWSLT14.
PAPER: dict[str, tuple[Any, Any]] = {
    "beta1": (0.9, 0.9), "beta2": (0.98, 0.98), "eps": (1e-9, 1e-9), "heads": (8, 4), "d_model": (512, 512),
    "ffn": (2048, 1024), "layers": (6, 6), "dropout": (0.1, 0.3), "label_smoothing": (0.1, 0.1), "lr": (7e-4, 5e-4),
    "epochs": (22, 30), "max_tokens": (18_000, 12_000), "tie": (False, True), "ratio": (("1/32",), ("1/32",)),
    "warmup_init_lr": (1e-7, 0.0), "warm_up": (4000, 4000), "weight_decay": (0.0, 1e-4), "norm": ("post", "post"),
    "source": ("en", "de"), "target": ("de", "en"), "nest": ("low-rank", "low-rank"), "init": ("zero", "zero"),
    "method": ("alternating", "alternating"),
}  # fmt: skip


def test_the_papers_presets_are_its_table_and_the_first_is_the_default() -> None:
    for name, values in PAPER.items():
        assert tuple(getattr(PRESETS[preset], name) for preset in ("wmt17", "iwslt14")) == values, name
    assert {name: settings.preset for name, settings in PRESETS.items()} == {name: name for name in PRESETS}
    assert PRESETS["laptop"] == Translation()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "d_model must be even and a multiple of heads; got d_model 128 and heads 3"),
        ({"ratio": ()}, 'ratio is empty; give the share that a smaller level keeps, or set nest to "none"'),
        ({"ratio": ("2",)}, r"ratio must be in \(0, 1\], got '2'"),
        ({"source": "de"}, "source and target are both 'de'; give two languages"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"eps": -1e-9}, r"eps must be in \[0, inf\), got -1e-09"),
        ({"vocabulary": 258}, "vocabulary must be a whole number of at least 259, got 258"),
        ({"beam": 0}, "beam must be a whole number of at least 1"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        (
            {"start": "runs/a"},
            """start is 'runs/a', which init="zero" would overwrite; use init="svd" or "matched\"""",
        ),
        ({"teacher_weight": 0.0}, r"teacher_weight must be in \(0, 1\], got 0.0; for 0 omit teacher"),
        ({"teacher_weight": 1.5}, r"teacher_weight must be in \(0, 1\], got 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PRESETS["laptop"], **changes)


def test_a_start_is_kept_by_whatever_reads_the_weights() -> None:
    for kept in ({"init": "svd"}, {"init": "matched"}, {"nest": "none"}, {"nest": "width"}, {"nest": "depth"}):
        assert replace(PRESETS["laptop"], start="runs/a", **kept).start == "runs/a"


def test_the_printed_table_has_every_line_of_the_papers_and_agrees_with_the_presets() -> None:
    said_otherwise = {"criterion", "optimizer", "partitioned_linear_module_name", "task", "warmup_init_lr"}
    for preset in ("iwslt14", "wmt17"):
        rows = {row.parameter: row for row in table_4(PRESETS[preset])}
        assert len(rows) == 26  # lines of the paper's table
        for name, row in rows.items():
            assert row.paper == row.ours or name in said_otherwise or float(row.paper) == float(row.ours), name
        assert float(rows["warmup_init_lr"].ours) == {"iwslt14": 0.0, "wmt17": 1e-7}[preset]
    assert rows["dropout"].paper == "0.1" and table_4(PRESETS["iwslt14"])[8].paper == "0.3"


def test_the_printed_table_shows_what_was_changed() -> None:
    changed = replace(
        PRESETS["iwslt14"], heads=8, ratio=("1/8", "1/4"), nest="width", method="alternating(lr={'core': 0.5})"
    )
    rows = {row.parameter: (row.paper, row.ours) for row in table_4(changed)}
    assert rows["encoder_attention_heads"] == rows["decoder_attention_heads"] == ("4", "8")
    assert rows["small_ratio"] == ("0.03125", "0.125, 0.25")
    assert rows["partitioned_linear_module_name"][1] == "PartitionedLinear"
    assert rows["alternate_lr_coef"] == ("1.0", "alternating(lr={'core': 0.5})")


def test_the_laptop_is_shown_beside_iwslt14_and_one_network_has_no_ratio() -> None:
    rows = {row.parameter: row for row in table_4(replace(PRESETS["laptop"], nest="none"))}
    assert rows["max_epoch"].paper == "30" and rows["max_epoch"].ours == str(PRESETS["laptop"].epochs)
    assert rows["small_ratio"].ours == rows["partitioned_linear_module_name"].ours == "none"
