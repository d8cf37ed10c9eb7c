"""A nested model comes back as it was saved, to the bit, at every level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, Nested, OutputSum, Width, export, nest
from partialsgd.export import files, spec_json
from partialsgd.export.checkpoints import restore
from partialsgd.nested.example_inputs import tensors_of
from partialsgd.nested.nested import unwrap_nested
from partialsgd.nested.specs import Spec
from tests.nested.checks import built, untouched
from tests.zoo import CASES, ZOO, again, specs_for

# Every kind of nesting on some network, and what is particular to others: packed and grouped heads, two stacks.
SOME = [(name, kind) for name, kind in CASES if name in ("mlp", "resnet18", "encoder", "bert")] + [
    *(("gpt2", "query_key"), ("gpt2", "low_rank"), ("llama", "query_key"), ("t5", "depth_and_rank")),
    *(("marian", "depth_and_width"), ("t5_gated", "widths"), ("vit", "depth_even")),
]


def trained(name: str, kind: str) -> Nested:
    """A nested model whose BatchNorm has seen batches at each level, in evaluation."""
    network, _, nested = built(name, kind)
    for level in nested.levels:
        with nested.at(level), torch.no_grad():
            nested(**network.inputs(4))
    return nested.eval()


def reload(nested: Nested, name: str, kind: str, directory: Path) -> Nested:
    is_hugging_face = hasattr(nested.model, "config")
    given = specs_for(ZOO[name])[kind] if "sum" in kind else {}
    return export.load(directory, None if is_hugging_face else ZOO[name].build(), **given)


def require_equal(one: Nested, two: Nested, inputs: dict[str, Any]) -> None:
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name
    assert (one.levels, one.norms, one.nested_by) == (two.levels, two.norms, two.nested_by)
    for level in one.levels:
        assert dict(one.mask(level)) == dict(two.mask(level))
        with one.at(level), two.at(level), torch.no_grad():
            outputs = [list(tensors_of(nested(**inputs))) for nested in (one, two)]
        assert outputs[0] and all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize(("name", "kind"), SOME)
def test_a_nested_model_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    nested = trained(name, kind)
    export.save(nested, tmp_path)
    with monkeypatch.context() as patch:  # weights that are overwritten are not computed
        patch.setattr(torch.linalg, "svd", None)
        patch.setattr(torch, "argsort", None)
        back = reload(nested, name, kind, tmp_path)
    assert back.training  # as built
    assert back.specs == nested.specs
    require_equal(nested, back.eval(), ZOO[name].inputs(3))


def test_ties_are_stored_once(tmp_path: Path) -> None:
    nested = trained("t5", "width")
    export.save(nested, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        keys = set(file.keys())
    tied = json.loads((tmp_path / "config.json").read_text())["state"]["tied"]
    assert set(tied) == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert set(tied.values()) == {"shared.weight"} <= keys
    assert keys | set(tied) == set(nested.model.state_dict())
    weights = sum(p.numel() * p.element_size() for p in nested.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < weights + 40_000  # names and record
    model = export.load(tmp_path).model
    assert model.lm_head.weight is model.shared.weight is model.encoder.embed_tokens.weight


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_a_loaded_nested_model_trains_on_and_is_saved_again(tmp_path: Path) -> None:
    nested = nest(mlp(), LowRank(1 / 2, where="0"))
    export.save(nested, tmp_path)
    back = export.load(tmp_path, mlp())
    with back.at("core"):
        back(torch.ones(2, 6)).sum().backward()
    torch.optim.SGD(back.parameters(), 0.1).step()
    export.save(back, tmp_path)
    require_equal(back, export.load(tmp_path, mlp()), {"input": torch.ones(2, 6)})
    back.extract("core", example=torch.ones(2, 6))


def test_an_output_sum_comes_back(tmp_path: Path) -> None:
    def wide_and_deep() -> nn.Module:
        return OutputSum(mlp(), nn.Linear(6, 3))

    for given in ({}, {"spec": LowRank(1 / 2, where="core.0")}):
        nested = nest(wide_and_deep(), **given)
        export.save(nested, tmp_path)
        x = torch.ones(2, 6)
        back = export.load(tmp_path, wide_and_deep())
        assert back.specs == nested.specs
        for level in nested.levels:
            with nested.at(level), back.at(level):
                assert torch.equal(nested(x), back(x))
    with pytest.raises(ValueError, match="not the one saved"):
        export.load(tmp_path, mlp())


def test_a_layer_sum_needs_its_function_again(tmp_path: Path) -> None:
    spec = LayerSum("0", again, core="new")
    nested = nest(mlp(), spec)
    export.save(nested, tmp_path)
    with pytest.raises(ValueError, match=r"level 'core' has a LayerSum, whose `make` is a function.*spec=…"):
        export.load(tmp_path, mlp())
    for other in (LayerSum("2", again, core="new"), LayerSum("0", again), LowRank(1 / 2)):
        with pytest.raises(ValueError, match="the level 'core' was saved with"):
            export.load(tmp_path, mlp(), spec=other)
    with pytest.raises(ValueError, match=r"make the levels \['small'\], the checkpoint has \['core'\]"):
        export.load(tmp_path, mlp(), levels={"small": spec})
    back = export.load(tmp_path, mlp(), levels={"core": spec})
    assert back.specs == {"core": (spec,)}
    require_equal(nested, back, {"input": torch.ones(2, 6)})


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    export.save(nest(mlp(), Width(1 / 2)), tmp_path)
    with pytest.raises(ValueError, match=r"Sequential, which only its own code can build"):
        export.load(tmp_path)
    wider = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ValueError, match=r"not the one saved: '0.rows1' is 5×6 in the model and 4×6 in the checkpoint"):
        export.load(tmp_path, wider)
    with pytest.raises(ValueError, match=r"not the one saved: .*Sequential was saved, .*Linear was given"):
        export.load(tmp_path, nn.Linear(6, 3))
    export.save(nest(nn.Sequential(mlp()), Depth("0", keep=2)), tmp_path / "depth")
    with pytest.raises(ValueError, match=r"Sequential was saved, .*ReLU was given, and pattern '0' matches no"):
        export.load(tmp_path / "depth", nn.ReLU())
    with pytest.raises(ValueError, match="nested already"):
        export.load(tmp_path, nest(mlp(), Width(1 / 2)).model)
    assert export.load(tmp_path, mlp()).levels == ("core", "full")


def test_metrics_survive_and_wrong_ones_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    nested = nest(mlp(), Width(1 / 2))
    with pytest.raises(ValueError, match="no level 'small'; there are 'core', 'full'"):
        export.save(nested, tmp_path / "new", metrics={"small": {}})
    with pytest.raises(TypeError, match=r"metrics\['core'\]\['loss'\] must be a number, got 'low'"):
        export.save(nested, tmp_path / "new", metrics={"core": {"loss": "low"}})
    assert not (tmp_path / "new").exists()
    numbers = {"loss": torch.tensor(0.25), "bleu": 30, "c_norm": float("inf"), "worst": float("nan")}
    export.save(nested, tmp_path, metrics={"core": numbers, "full": {"loss": 0.1}})
    text = (tmp_path / "config.json").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    kept = {"core": {"loss": 0.25, "bleu": 30, "c_norm": "inf", "worst": "nan"}, "full": {"loss": 0.1}}
    assert (record["metrics"], record["levels"], record["format"]) == (kept, ["core", "full"], 1)
    export.load(tmp_path, mlp())


def test_a_wrapped_nested_model_is_found_and_a_plain_model_is_not(tmp_path: Path) -> None:
    nested = nest(mlp(), Width(1 / 2))
    assert unwrap_nested(nn.DataParallel(nested)) is nested
    assert unwrap_nested(torch.compile(nested, backend="eager")) is nested
    with pytest.raises(TypeError, match=r"as ps.nest.* returns it; got a Sequential"):
        export.save(nested.model, tmp_path)


def test_saving_and_loading_leave_the_nested_model_and_the_generator_alone(tmp_path: Path) -> None:
    nested = trained("bert", "low_rank")
    with untouched(nested):
        export.save(nested, tmp_path)
        export.load(tmp_path)


SPECS: list[Spec] = [
    LowRank(1 / 32),
    LowRank((0.1, 1 / 3), where="*.fc1", exclude=("head",), ratios={"*.fc1": (0.2, 0.4)}, init="matched"),
    Width(1 / 3),
    Width(1, hidden=("*.fc1", "*.fc2"), query_key=True, order="gradient"),
    Width((0.25, 0.5), hidden=(("*.up", "*.down"), ("*.fc1", "*.gate", "*.fc2")), exclude="x"),
    Depth("layers", keep=1),
    Depth("layers", keep=1.0),
    Depth(("a.layers", "b.layers"), keep=(0.5, 3), pick="even"),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_spec_comes_back(spec: Spec) -> None:
    written = json.dumps(spec_json.levels_as_json({"core": (spec,), "none": ()}))
    levels = spec_json.levels_from_json(json.loads(written))
    assert levels == {"core": (spec,), "none": ()}
    assert repr(levels["core"]) == repr((spec,)), "one block is not all of them"


def test_a_checkpoint_from_before_a_field_of_a_spec_is_restored_and_one_of_another_spec_is_not(tmp_path: Path) -> None:
    def made(full: str = "sum") -> Nested:
        return nest(nn.Sequential(nn.Linear(6, 8)), LowRank(1 / 2, where="0", full=full))

    nested = made()
    export.save(nested, tmp_path / "new")
    record, tensors = files.read(tmp_path / "new")
    del record["specs"]["core"][0]["full"], record["digest"]
    files.write(tmp_path / "old", record, tensors)
    other = made()
    restore(other, tmp_path / "old")
    assert all(map(torch.equal, other.parameters(), nested.parameters()))
    with pytest.raises(ValueError, match="its levels are"):
        restore(made("own"), tmp_path / "old")
