"""Which parameters belong together."""

from __future__ import annotations

import pytest
from torch import nn

from partialsgd.meters.groups import block_of, grouped
from partialsgd.parameters import Parameters


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("encoder.layers.3.fc1.weight", "encoder.layers.3"),
        ("0.weight", "0"),
        ("model.embed.weight", "model.embed"),
        ("head.bias", "head"),
        ("scale", "scale"),
        ("blocks.1.inner.2.weight", "blocks.1"),
    ],
)
def test_a_numbered_block_is_a_group(name: str, group: str) -> None:
    assert block_of(name) == group


def test_patterns_name_groups_and_the_rest_is_in_none() -> None:
    parameters = Parameters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)))
    of = grouped(parameters, {"ends": ["0", "2"]})
    assert [of(name) for name in ("0.weight", "1.weight", "2.bias")] == ["ends", None, "ends"]
    assert grouped(parameters, {"one": "1"})("1.bias") == "one", "one pattern is one pattern"
    with pytest.raises(ValueError, match="matches no parameter"):
        grouped(parameters, {"ends": ["7"]})
    with pytest.raises(ValueError, match=r"'1\.weight' is in two groups, 'a' and 'b'"):
        grouped(parameters, {"a": ["1"], "b": ["*.weight"]})
