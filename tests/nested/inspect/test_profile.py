"""The cost of a level, counted by hand, and the text that shows a nested model; looking changes nothing."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, OutputSum, Width, nest
from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.inspect import flops
from tests.nested.checks import untouched
from tests.zoo import ZOO, again, gpt2, mlp, specs_for


def test_the_numbers_are_those_of_the_formulas() -> None:
    nested = nest(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), Width((1 / 4, 1 / 2)))
    rows = nested.profile(torch.randn(5, 6), repeats=1).rows
    assert [row.level for row in rows] == ["1/4", "1/2", "full"]
    for row, hidden in zip(rows, (2, 4, 8), strict=True):
        multiply_adds = 5 * (6 * hidden + hidden * 3)
        assert row.parameters == 7 * hidden + 2 * hidden + 3 * (hidden + 1)
        assert row.share == row.parameters / rows[-1].parameters
        assert row.forward == 2 * multiply_adds
        assert row.training == 2 * row.forward + 2 * 5 * hidden * 3, "not of the input, but of the hidden layer"
        assert row.multiply_adds == multiply_adds + 2 * 5 * hidden, "BatchNorm in the paper's count"
        assert 0 < row.latency < 1
    assert rows[-1].share == 1.0


def test_low_rank_by_hand() -> None:
    nested = nest(nn.Sequential(nn.Linear(32, 32, bias=False)), LowRank(1 / 8, where="0"))
    core, full = nested.profile(torch.randn(100, 32)).rows
    assert core.parameters == 2 * 4 * 32 and full.parameters == 32 * 32  # VU goes into W
    assert core.forward == 2 * 100 * (4 * 32 + 32 * 4)
    assert full.forward == 2 * 100 * 32 * 32 + 2 * 4 * 32 * 32


COSTS = [
    ("resnet18", "width"), ("resnet18", "low_rank"), ("encoder", "low_rank"), ("encoder", "depth"), ("gpt2", "widths"),
    ("bert", "query_key"), ("gpt2", "query_key"), ("llama", "query_key"), ("t5", "depth"), ("t5_gated", "ranks"),
    ("marian", "depth_and_width"), ("vit", "low_rank"), ("mlp", "layer_sum_new"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), COSTS)
def test_a_small_level_costs_exactly_what_it_costs_alone(name: str, kind: str) -> None:
    """Forward and training, as torch and as the paper count."""
    network = ZOO[name]
    nested, inputs = nest(network.build().double(), **specs_for(network)[kind]), network.inputs(3)
    for level in nested.levels[:-1]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # statistics that were never updated
            plain = extract_level(nested.model, level, {})
        with nested.at(level):
            assert flops.count(nested.model, **inputs) == flops.count(plain, **inputs)
        assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in nested.parameters(level=level))


@pytest.mark.parametrize("level", ["core", "full"])
@pytest.mark.parametrize("training", [True, False])
def test_profiling_changes_nothing(level: str, training: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).train(training)
    nested, x = nest(model, Width(1 / 2)), torch.randn(5, 6)
    nested(x).sum().backward()
    nested.model[2].eval()
    with nested.at(level):
        with untouched(nested):
            nested.profile(x)
        assert nested.level == level
    nested(x).sum().backward()  # no tensor of inference mode was left behind


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_text_of_a_profile_and_the_drawing_name_every_level_with_its_size() -> None:
    nested = nest(network(), Width((1 / 4, 1 / 2)))
    counts = {"1/4": 2 * 7 + 3 * 3, "1/2": 4 * 7 + 3 * 5, "full": 8 * 7 + 3 * 9}
    drawn, lines = nested.draw(), str(nested.profile(torch.randn(2, 6), repeats=0)).splitlines()
    for line, (level, parameters) in zip(lines[1:], counts.items(), strict=True):
        share = parameters / counts["full"]
        assert line.split()[:3] == [level, f"{parameters}", f"{share:.1%}"] and " ms (" in line
        assert f"{level}: {parameters} parameters ({share:.0%})" in drawn
    assert len({len(line) for line in drawn.splitlines()}) == 1, "boxes inside boxes"


def test_the_summary_has_a_line_for_each_layer_nested_or_not_and_why() -> None:
    nested = nest(gpt2(), [LowRank(1 / 4, exclude="mlp"), Width(1 / 2, exclude="h.1"), Depth("h", keep=2)])
    lines = [re.sub(r"\s+", " ", line.strip()) for line in nested.summary().splitlines()]
    assert lines[0] == "GPT2LMHeadModel: levels core < full"
    names = [line.split()[0] for line in lines[1:-1]]
    assert len(names) == len(set(names)) and set(names) == set(nested.nested_modules()) | set(nested.skipped)
    assert set(lines) >= {
        "transformer.h Depth core has blocks [0, 1] of 3",
        "transformer.h.0.attn.c_attn LowRank rank 4 of 16 (16 → 48)",
        "transformer.h.0.mlp.c_fc Width 12 of 25 units (16 → 25)",
        "transformer.h.2.mlp.c_proj Width 12 of 25 inputs (25 → 16)",
        "transformer.h.1.mlp.c_fc - not nested: its hidden units belong to an excluded layer too",
        "lm_head - not nested: its weight is tied to 'transformer.wte.weight'",
    }
    counts = {level: sum(p.numel() for p in nested.extract(level).parameters()) for level in nested.levels}
    assert lines[-1] == f"core: {counts['core']:,} parameters, full: {counts['full']:,} parameters"


def test_sums_and_norms_say_what_they_are() -> None:
    for nested, line in (
        (nest(mlp(), Width(1 / 2)), r"3 +norms +one for each of core, full"),
        (nest(mlp(), Width(1 / 2), norms="shared"), r"3 +norms +one for all levels"),
        (nest(mlp(), LayerSum("2", again, core="new")), r"2 +LayerSum +old \(Linear\) \+ new \(Linear\), core = new"),
        (nest(OutputSum(network(), nn.Linear(6, 3))), r"the model +OutputSum +core \(Sequential\) \+ extension"),
    ):
        assert re.search(line, nested.summary())
