"""Names, aliases and patterns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd.parameters import Parameters, unwrap
from partialsgd.testing.problems import Tied


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 2), nn.Linear(2, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["head"], ["head.weight", "head.bias"]),
        (["fc1.bias"], ["encoder.0.fc1.bias", "encoder.1.fc1.bias"]),
        (["*.fc2"], [f"encoder.{k}.fc2.{p}" for k in (0, 1) for p in ("weight", "bias")]),
        (["encoder.1"], [f"encoder.1.fc{k}.{p}" for k in (1, 2) for p in ("weight", "bias")]),
        (["1"], [f"encoder.1.fc{k}.{p}" for k in (1, 2) for p in ("weight", "bias")]),
        (["head.weight", "fc[2].weight"], ["encoder.0.fc2.weight", "encoder.1.fc2.weight", "head.weight"]),
    ],
)
def test_patterns_match_names_suffixes_and_modules(patterns: list[str], expected: list[str]) -> None:
    assert list(Parameters(Model()).match(patterns)) == expected


def test_a_pattern_given_as_a_string_is_one_pattern() -> None:
    assert Parameters(Model()).match("head") == Parameters(Model()).match(["head"])


def test_a_pattern_or_name_that_matches_nothing_names_the_closest() -> None:
    with pytest.raises(ValueError, match=r"'\*\.fc3'.*'fc1'|'\*\.fc3'.*'fc2'"):
        Parameters(Model()).match(["*.fc3"])
    with pytest.raises(ValueError, match=r"'decoder'.*'encoder'"):
        Parameters(Model()).match(["head", "decoder"])
    with pytest.raises(KeyError, match=r"'head\.wieght'.*head\.weight"):
        Parameters(Model())["head.wieght"]


def test_a_tied_parameter_is_one_and_answers_to_all_its_names() -> None:
    model = Tied()
    parameters = Parameters(model)
    assert parameters["head.weight"] is parameters["embedding.weight"] is model.embedding.weight
    assert parameters.canonical("head.weight") == "embedding.weight"
    assert parameters.aliases("head.weight") == ("embedding.weight", "head.weight")
    assert len(parameters) == len(list(model.parameters()))
    assert parameters.match(["head"]) == ("embedding.weight",)


def test_wrappers_leave_no_trace_in_names() -> None:
    model = Model()
    model.encoder[0] = torch.compile(model.encoder[0], backend="eager")
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    assert unwrap(wrapped) is model
    assert list(Parameters(wrapped)) == [n.replace("._orig_mod", "") for n, _ in model.named_parameters()]
    assert "encoder.0.fc1.weight" in Parameters(wrapped)
