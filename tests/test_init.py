"""The public face: its names, what it imports, and in which direction imports go."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import partialsgd
from partialsgd import methods

SOURCE = Path(partialsgd.__file__).parent

# What a method must be given.
ARGUMENTS = {
    "method": methods.sam(),
    "first": methods.sam(),
    "second": methods.random_mask(),
}

# A module may import from the tiers before its own, or from its own.
TIERS = [
    ["_util"],
    ["parameters"],
    ["masks", "vectors"],
    ["perturbations"],
    ["method"],
    ["optimizers"],
    ["engine"],
    ["nested"],
    ["meters", "theory"],
    ["methods"],
    ["distributed"],
    ["export", "logging"],
    ["integrations"],
    ["testing"],
    ["lab"],
    ["__main__"],
]


def test_all_is_exact_and_every_name_is_documented() -> None:
    assert sorted(partialsgd.__all__, key=str.lower) == sorted(set(partialsgd.__all__), key=str.lower)
    assert len(partialsgd.__all__) <= 35
    for name in partialsgd.__all__:
        value = getattr(partialsgd, name)
        assert name == "__version__" or inspect.getdoc(value), f"{name} is not documented"
    public = {n for n in vars(partialsgd) if not n.startswith("_")} - set(partialsgd.__all__)
    assert public <= {*(tier for tiers in TIERS for tier in tiers), "annotations", "import_module", "TYPE_CHECKING"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = partialsgd.nothing


def test_the_registry_says_what_the_functions_say() -> None:
    for name, summary in methods.SUMMARIES.items():
        function = getattr(methods, name)
        assert inspect.getdoc(function).splitlines()[0] == summary
        wanted = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        assert function(*(ARGUMENTS[argument] for argument in wanted)).name.partition("(")[0] == name
    assert tuple(methods.SUMMARIES) == methods.NAMES
    with pytest.raises(AttributeError, match="there is no method 'adam'"):
        _ = methods.adam


def test_a_method_is_not_hidden_by_its_file() -> None:
    code = (
        "import partialsgd.methods.sam, partialsgd as ps;"
        "from partialsgd.methods.top_k import top_k;"
        "assert callable(ps.methods.sam) and callable(ps.methods.top_k) and callable(ps.methods.sam)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_and_the_registry_does_not_import_torch() -> None:
    code = "import sys, partialsgd, partialsgd.methods; partialsgd.methods.SUMMARIES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_imports_go_one_way() -> None:
    tier_of = {module: k for k, tier in enumerate(TIERS) for module in tier}
    files = [f for f in SOURCE.rglob("*.py") if f.parent != SOURCE or f.stem != "__init__"]
    assert {f.relative_to(SOURCE).parts[0].removesuffix(".py") for f in files} == set(tier_of)
    for file in files:
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for imported in imports_of(file):
            assert tier_of[imported] <= tier_of[own], f"{file.name} must not import {imported}"


def imports_of(file: Path) -> set[str]:
    """The modules of the package that a file imports when it runs; imports for annotations do not count."""
    imported = set()
    tree = ast.parse(file.read_text())
    for_types = {n for node in ast.walk(tree) if _is_type_checking(node) for n in ast.walk(node)}
    for node in set(ast.walk(tree)) - for_types:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("partialsgd"):
            parts = node.module.split(".")[1:]
            imported |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("partialsgd.")}
    return imported


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_nothing_outside_the_lab_imports_it() -> None:
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).parts[0] not in ("lab", "__main__.py"):
            assert "partialsgd.lab" not in file.read_text() and "lab" not in imports_of(file), file


def test_the_root_of_the_package_stays_small() -> None:
    modules = {file.stem for file in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 8, modules


METER_AND_GUARD = '''
import torch
import partialsgd as ps


class Distances:
    """A meter: how far the gradient at the perturbed point is from the gradient at x, at every second step."""

    def requests(self, context: ps.Context, trained: ps.Branch) -> list[ps.GradientRequest]:
        return [ps.GradientRequest(trained)] if context.count_and_check_due("distances", 2) else []

    def measure(self, pair: ps.GradientPair) -> float:
        squares = [(pair.at_x[name] - g).square().sum() for name, g in pair.at_perturbed.items()]
        return float(torch.stack(squares).sum().sqrt()) / pair.perturbation_norm


def is_far(pair: ps.GradientPair) -> bool:
    return pair.perturbation_norm > limit


def mask(context: ps.Context) -> ps.Mask:
    return ps.masks.only(context.parameters, ["weight"])


def perturb(context: ps.Context) -> ps.Perturbation:
    return ps.perturbations.drop_outside(context.mask)


meter: ps.Meter = Distances()
model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
for limit, moves in ((1e9, {"weight"}), (-1.0, {"weight", "bias"})):
    method = ps.Method(mask, perturb, guard=ps.Guard(every=1, refuses=is_far, fallback=ps.Method()))
    sgd = ps.PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method, meter=meter)

    def closure() -> torch.Tensor:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    steps: list[ps.Step] = [sgd.step(closure) for _ in range(4)]
    assert [len(step.measurements) for step in steps] == [1, 0, 1, 0]
    assert all({name for name, entry in step.mask.items() if entry} == moves for step in steps)
'''


def test_a_meter_and_a_guard_are_written_with_public_names_only() -> None:
    subprocess.run([sys.executable, "-c", METER_AND_GUARD], check=True)


def test_the_core_needs_torch_safetensors_and_the_standard_library_only() -> None:
    """Extras are imported inside the functions that use them; a recipe is used with those of its extra."""
    allowed = set(sys.stdlib_module_names) | {"torch", "safetensors", "partialsgd"}
    lab = {"accelerate", "babel", "jinja2", "markupsafe", "rich", "tokenizers", "transformers"}
    extras = {"testing": {"pytest"}, "lab": lab, "integrations": {"accelerate", "lightning", "transformers"}}
    for file in SOURCE.rglob("*.py"):
        allowed_here = allowed | extras.get(file.relative_to(SOURCE).parts[0], set())
        for node in ast.parse(file.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {n.split(".")[0] for n in names if n} <= allowed_here, file


def test_version_is_the_installed_one() -> None:
    assert importlib.metadata.version("partialsgd") == partialsgd.__version__
