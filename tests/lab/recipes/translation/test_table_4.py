"""The paper's Table 4 beside the settings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from partialsgd.lab.recipes.translation.settings import PRESETS, table_4


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
    method = "alternating(lr={'core': 0.5})"
    changed = replace(PRESETS["iwslt14"], heads=8, ratio=("1/8", "1/4"), nest="width", method=method)
    rows = {row.parameter: (row.paper, row.ours) for row in table_4(changed)}
    assert rows["encoder_attention_heads"] == rows["decoder_attention_heads"] == ("4", "8")
    assert rows["small_ratio"] == ("0.03125", "0.125, 0.25")
    assert rows["partitioned_linear_module_name"][1] == "PartitionedLinear"
    assert rows["alternate_lr_coef"] == ("1.0", "alternating(lr={'core': 0.5})")


def test_settings_and_the_table_need_no_torch() -> None:
    code = "import sys, partialsgd.lab.recipes.translation.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_laptop_is_shown_beside_iwslt14_and_one_network_has_no_ratio() -> None:
    rows = {row.parameter: row for row in table_4(replace(PRESETS["laptop"], nest="none"))}
    assert rows["max_epoch"].paper == "30" and rows["max_epoch"].ours == str(PRESETS["laptop"].epochs)
    assert rows["small_ratio"].ours == rows["partitioned_linear_module_name"].ours == "none"
