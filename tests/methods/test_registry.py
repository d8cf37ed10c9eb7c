"""A method is four files, is made from its settings, and gets its rules when it is bound to a model."""

from __future__ import annotations

import ast
import inspect
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import partialsgd
from partialsgd import Context, Method, methods, nest
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import Run, assert_same_bits
from tests.methods.laws import ALL, IDENTITIES, OF_LEVELS, of_test_file
from tests.methods.training import sgd_of
from tests.training import family

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


SETTINGS = {
    (name, setting): parameter.annotation.removesuffix(" | None")
    for name in methods.NAMES
    for setting, parameter in inspect.signature(getattr(methods, name)).parameters.items()
}
NUMBERS = [setting for setting, kind in SETTINGS.items() if kind in ("int", "float")]
FLAGS = [setting for setting, kind in SETTINGS.items() if kind == "bool"]
BOUNDS = [("guarded", "bound"), ("independent_subnets", "bound")]
"""Bounds of a criterion, which may be infinite: nothing exceeds them."""
OTHERS = {"independent_subnets": {"repartition": "criterion"}, "alternating": {"order": "criterion"}}
"""Without which some of their numbers have no meaning."""


def make(name: str, **settings):
    parts = {"compose": 2, "guarded": 1, "scaled_by_alpha": 1}.get(name, 0)
    return getattr(methods, name)(*[methods.dropout()] * parts, **OTHERS.get(name, {}) | settings)


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_a_number_is_finite_no_truth_value_and_may_come_from_numpy(name: str, setting: str) -> None:
    large = [] if (name, setting) in BOUNDS else [math.inf, 1e39, 10**400]
    for wrong in (*large, math.nan, -math.inf, -1, True, np.bool_(True), "3", 1j, torch.ones(2)):
        with pytest.raises((ValueError, TypeError), match=setting):
            make(name, **{setting: wrong})
    default = inspect.signature(getattr(methods, name)).parameters[setting].default
    number = {"until": 2000, "every": 10, "bound": 2.0, "measure_every": 5}[setting] if default is None else default
    for other in (array := np.asarray(number), array[()], torch.from_numpy(array)):
        assert make(name, **{setting: other}).name == make(name, **{setting: number}).name


@pytest.mark.parametrize(("name", "setting"), FLAGS)
def test_a_flag_is_true_or_false(name: str, setting: str) -> None:
    for wrong in ("false", 1, 0.0, None):
        with pytest.raises(TypeError, match=f"{setting} must be True or False, got {wrong!r}"):
            make(name, **{setting: wrong})
    assert make(name, **{setting: np.bool_(True)}).name == make(name, **{setting: True}).name


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
