"""A method is four files, is made from its settings, and gets its rules when it is bound to a model."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import partialsgd
from partialsgd import Context, Method, methods, nest
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import Run, assert_same_bits
from tests.families import family
from tests.methods.laws import ALL, IDENTITIES, OF_LEVELS, of_test_file
from tests.methods.training import sgd_of

SOURCE = Path(partialsgd.__file__).parent
ROOT = SOURCE.parents[1]
UNBOUND = ["alternating", "block_coordinate", "freezing", "independent_subnets", "layerwise", "meprop", "only"]
WRAPPERS = {
    "itself": lambda method: method,
    "compose": lambda method: methods.compose(method, methods.random_mask()),
    "guarded": methods.guarded,
    "scaled_by_alpha": methods.scaled_by_alpha,
}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


@pytest.mark.parametrize("name", methods.NAMES)
def test_a_method_has_its_file_its_line_its_tests_and_its_page(name: str) -> None:
    for file in (
        SOURCE / f"methods/{name}.py",
        ROOT / f"tests/methods/test_{name}.py",
        ROOT / f"docs/methods/{name}.md",
    ):
        assert file.is_file()
    assert all(method.name.partition("(")[0] == name for method in ALL[name].values())


def test_the_registry_is_the_only_file_that_must_name_every_method() -> None:
    """A file that names all of them is a table, to which a new method would have to be added."""
    words = [re.compile(rf"\b{name}\b") for name in methods.NAMES]
    files = [file for folder in (SOURCE, ROOT / "tests") for file in folder.rglob("*.py")]
    tables = {file for file in files if all(word.search(file.read_text(encoding="utf-8")) for word in words)}
    assert tables == {SOURCE / "methods/__init__.py"}
    tree = ast.parse((SOURCE / "methods/__init__.py").read_text(encoding="utf-8"))
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    imported = [node.names[0].asname for node in lines if str(node.module).startswith("partialsgd.methods.")]
    assert tuple(sorted(map(str, imported))) == methods.NAMES


def test_the_methods_of_levels_are_those_that_need_a_nested_model() -> None:
    assert set(OF_LEVELS) == {"alternating", "only", "slimmable", "sandwich"}
    outer = nn.ModuleDict({"inner": family(), "head": nn.Linear(3, 3)})
    assert methods.alternating().bind(outer).name == methods.alternating().bind(family()).name, "found inside"
    two = nn.ModuleList([family(), nest(mlp(), levels={})])
    with pytest.raises(TypeError, match=r"of one nested model, .* ModuleList has 2"):
        methods.alternating().bind(two)


@pytest.mark.parametrize("name", UNBOUND)
def test_a_method_is_called_without_the_model_and_says_so(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) takes its settings only; PartialSGD binds it to the model"):
        getattr(methods, name)(family())


@pytest.mark.parametrize("name", UNBOUND)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_without_a_model_it_has_no_rules_and_with_another_it_is_refused(name: str, wrap) -> None:
    method = wrap(getattr(methods, name)())
    model, other = (family(), family()) if name in OF_LEVELS else (mlp(), mlp())
    with pytest.raises(RuntimeError, match="has no rules before it is bound to a model"):
        method.branches_at(Context(0, 0, Parameters(model), {}))
    sgd = sgd_of(model, method)
    again = sgd_of(model, sgd.method)
    assert again.method is sgd.method and sgd.method.name.startswith(method.name.partition("(")[0])
    with pytest.raises(ValueError, match="was bound to another model; make a new method"):
        sgd_of(other, sgd.method)


def test_rules_beside_build_would_be_lost_and_are_refused() -> None:
    for change in ({"mask": lambda context: context.mask}, {"structural": True}, {"combine": "mean"}):
        with pytest.raises(ValueError, match="build makes all rules of the method"):
            replace(methods.freezing(), **change)
    assert Method(build=lambda model: Method(name="made"), name="mine").bind(mlp()).name == "made"


@pytest.mark.parametrize("name", methods.NAMES)
def test_settings_that_make_no_sense_are_refused_before_a_model_is_known(name: str) -> None:
    for settings, message in of_test_file(name, "REFUSED_SETTINGS", []):
        with pytest.raises(ValueError, match=message):
            getattr(methods, name)(**settings)


@pytest.mark.parametrize(("name", "identity"), IDENTITIES, ids=lambda value: getattr(value, "name", value))
def test_the_identity_setting_of_a_method_is_plain_training_to_the_bit(name: str, identity: Method) -> None:
    """Parameters, buffers, Adam's state and the global generator, in one pass a step."""
    refused = of_test_file(name, "REFUSED_PROBLEMS", {}).get("", ())
    for problem in (problem for problem in PROBLEMS if problem.name not in refused):
        runs = [Run(problem, torch.optim.Adam, method, False) for method in (methods.plain(), identity)]
        for t in range(5):
            for run in runs:
                torch.manual_seed(t)
                assert run.step(t).backwards == 1
        assert_same_bits(*(run.tensors() for run in runs))


def test_what_is_not_a_method_is_named() -> None:
    for build in (
        lambda: methods.guarded(methods.sam),
        lambda: methods.guarded(methods.sam(), fallback="plain"),
        lambda: methods.compose(methods.sam(), "dropout"),
    ):
        with pytest.raises(TypeError, match=r"must be a Method, got .*methods\.sam\(\)"):
            build()


def test_a_pattern_that_is_a_string_is_one_pattern() -> None:
    for make in (
        methods.random_mask,
        methods.dropout,
        methods.dynamic_pruning,
        methods.ac_dc,
        methods.dynamic_sparsity,
    ):
        assert make(where="0.weight").name == make(where=["0.weight"]).name
