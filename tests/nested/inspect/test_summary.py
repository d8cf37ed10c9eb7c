"""The summary and the drawing of a nested model, with numbers counted by hand."""

from __future__ import annotations

import re

from torch import nn

from partialsgd import Depth, LayerSum, LowRank, OutputSum, Width, nest
from tests.zoo import again, encoder, gpt2, mlp


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_one_box_a_level_the_smallest_innermost_and_every_line_as_long() -> None:
    nested = nest(network(), Width((1 / 4, 1 / 2)))
    counts = {"1/4": 2 * 7 + 3 * 3, "1/2": 4 * 7 + 3 * 5, "full": 8 * 7 + 3 * 9}
    lines = nested.draw().splitlines()
    assert len(lines) == 2 * 3 and len({len(line) for line in lines}) == 1
    whole = counts["full"]
    for depth, level in enumerate(("full", "1/2", "1/4")):
        share = f"{counts[level] / whole:.0%}"
        assert lines[depth].startswith("│  " * depth + f"┌─ {level}: {counts[level]:,} parameters ({share}) ")
        assert lines[depth].endswith("┐" + " │" * depth)
        assert lines[-1 - depth].startswith("│  " * depth + "└") and lines[-1 - depth].endswith("┘" + " │" * depth)
    assert lines[0].count("┌") == 1


def test_the_summary_has_a_line_for_each_layer_nested_or_not_and_why() -> None:
    nested = nest(gpt2(), [LowRank(1 / 4, exclude="mlp"), Width(1 / 2, exclude="h.1"), Depth("h", keep=2)])
    lines = nested.summary().splitlines()
    assert lines[0] == "GPT2LMHeadModel: levels core < full"

    def line(name: str) -> str:
        found = [text.strip() for text in lines if text.split()[0] == name]
        assert len(found) == 1, (name, found)
        return re.sub(r"\s+", " ", found[0])

    assert line("transformer.h") == "transformer.h Depth core has blocks [0, 1] of 3"
    assert line("transformer.h.0.attn.c_attn") == "transformer.h.0.attn.c_attn LowRank rank 4 of 16 (16 → 48)"
    assert line("transformer.h.0.mlp.c_fc") == "transformer.h.0.mlp.c_fc Width 12 of 25 units (16 → 25)"
    assert line("transformer.h.2.mlp.c_proj") == "transformer.h.2.mlp.c_proj Width 12 of 25 inputs (25 → 16)"
    assert line("lm_head") == "lm_head - not nested: its weight is tied to 'transformer.wte.weight'"
    assert "not nested" in line("transformer.h.1.mlp.c_fc") and "exclude" in line("transformer.h.1.mlp.c_fc")
    counts = {level: sum(p.numel() for p in nested.extract(level).parameters()) for level in nested.levels}
    assert lines[-1].strip() == f"core: {counts['core']:,} parameters, full: {counts['full']:,} parameters"


def test_a_layer_is_in_the_summary_once() -> None:
    for spec in (LowRank(1 / 4), Width(1 / 2), LayerSum("2", again)):
        nested = nest(mlp(), spec)
        names = [line.split()[0] for line in nested.summary().splitlines()[1:-1]]
        assert len(names) == len(set(names)) and set(names) == set(nested.nested_modules()) | set(nested.skipped)


def test_sums_and_norms_say_what_they_are() -> None:
    said = nest(mlp(), Width(1 / 2)).summary()
    assert re.search(r"3 +norms +one for each of core, full", said)
    assert re.search(r"3 +norms +one for all levels", nest(mlp(), Width(1 / 2), norms="shared").summary())
    assert re.search(r"2 +LayerSum +old \(Linear\) \+ new \(Linear\), core = new",
                     nest(mlp(), LayerSum("2", again, core="new")).summary())  # fmt: skip
    wide_and_deep = nest(nn.ModuleDict({"sum": OutputSum(network(), nn.Linear(6, 3))}))
    assert re.search(r"sum +OutputSum +core \(Sequential\) \+ extension \(Linear\)", wide_and_deep.summary())
    assert nest(OutputSum(network(), nn.Linear(6, 3))).summary().splitlines()[1].split()[:3] == [
        "the", "model", "OutputSum",
    ]  # fmt: skip


def test_looking_draws_no_random_numbers_and_knows_every_level() -> None:
    nested = nest(encoder(), Depth("layers", keep=(1, 2)))
    with nested.at("1"):
        assert nested.draw().count("parameters") == 3 and nested.level == "1"
    assert repr(nested).startswith("Nested(\n  levels=('1', '2', 'full'), level='full'")
