"""A new training from the whole network of an earlier run: exactly its weights, or refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partialsgd as ps
from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.translation import model as earlier_runs
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import NotThere
from partialsgd.nested.layers.low_rank import LowRankLayer
from tests.lab.made_runs import TINY, made_run

FAMILIES: dict[str, dict[str, Any]] = {
    "low rank": {},
    "low rank beside weights of its own": {"full": "own"},
    "width": {"nest": "width", "norm": "pre"},
    "depth": {"nest": "depth", "layers": 2, "ratio": ("1/2",)},
    "none": {"nest": "none", "tie": False},
    "full alone": {"alone": "full"},
}


def ended(path: Path, **changes: Any) -> Run:
    """Make a finished run, of which only the best checkpoint is read."""
    run = made_run(path, "translation", **changes)
    run.write_json("summary.json", {})
    shutil.rmtree(run.last)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of a low-rank family."""
    return ended(tmp_path_factory.mktemp("runs") / "family")


def told(**changes: Any) -> Translation:
    return Translation(**{**TINY["translation"], **changes})


def merged(run: Run) -> dict[str, torch.Tensor]:
    """The weights of the layers of low rank as the paper adds them: W + VU."""
    network = ps.export.load(run.best)
    layers = network.nested_modules().items()
    return {
        f"{name}.weight": layer.W + layer.V0 @ layer.U0 for name, layer in layers if isinstance(layer, LowRankLayer)
    }


def test_the_whole_network_starts_with_the_weights_of_the_run_merged(run: Run) -> None:
    settings = told(start=str(run.path), nest="none", seed=5, dropout=0.4, beam=3)
    started: Any = build(settings).network.model
    saved, found = ps.export.load(run.best).model.state_dict(), started.state_dict()
    dense = merged(run)
    assert set(dense) <= set(found) and len(dense) == 4 * 2 + 2  # one block on each side, and its cross attention
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, dense.get(name, saved.get(name)), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(found[name], saved[name]) for name in found if name not in dense)
    assert (started.config.dropout, started.generation_config.num_beams) == (0.4, 3)  # of this training


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_computes_what_the_full_level_of_the_run_computes(tmp_path: Path, family: dict[str, Any]) -> None:
    run = ended(tmp_path / "run", **family)
    task = build(told(**{**family, "start": str(run.path), "nest": "none", "full": "sum", "alone": None}))
    example: Any = task.example()
    expected = ps.export.load(run.best).eval()(**example).logits
    torch.testing.assert_close(task.network.eval()(**example).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_core_from_the_svd_is_the_best_of_its_rank(run: Run) -> None:
    """Pufferfish: the whole network first, then U √S and √S V of its layers, and the rest as it is."""
    settings = told(start=str(run.path), nest="low-rank", init="svd", alone="core", ratio=("1/4",))
    core = build(settings).network.model
    for name, weight in merged(run).items():
        pair: Any = core.get_submodule(name.removesuffix(".weight"))
        assert isinstance(pair, nn.Sequential)
        (rank, _), product = pair[0].weight.shape, pair[1].weight @ pair[0].weight
        assert rank == 16 // 4
        values = torch.linalg.svdvals(weight.detach())
        torch.testing.assert_close(torch.linalg.svdvals(product.detach())[:rank], values[:rank], rtol=1e-4, atol=1e-5)
        error = torch.linalg.matrix_norm(weight - product)  # by Eckart, Young and Mirsky no other is nearer
        torch.testing.assert_close(error, values[rank:].norm(), rtol=1e-4, atol=1e-5)
    kept = "model.encoder.layers.0.self_attn.v_proj.weight"
    assert torch.equal(core.get_parameter(kept), ps.export.load(run.best).model.get_parameter(kept))


@pytest.mark.parametrize("full", ["sum", "own"])
def test_a_started_family_is_the_run_at_its_full_level_and_its_svd_at_the_core(run: Run, full: str) -> None:
    settings = told(start=str(run.path), init="svd", full=full)
    network = build(settings).network
    assert {name.rpartition(".")[2] for name, _ in network.named_parameters()} >= {
        "own_weight" if full == "own" else "W"
    }
    alone = build(told(start=str(run.path), init="svd", alone="core")).network.eval()
    example: Any = build(told()).example()
    torch.testing.assert_close(
        network.eval()(**example).logits, ps.export.load(run.best).eval()(**example).logits, rtol=1e-4, atol=1e-4
    )
    with network.at("core"):
        torch.testing.assert_close(network(**example).logits, alone(**example).logits)


def test_without_a_start_the_draw_is_as_ever_and_with_one_the_data_digest_says_so(run: Run) -> None:
    plain, taught = build(told(seed=3)), build(told(seed=3, teacher=str(run.path)))
    for (name, one), two in zip(plain.network.named_parameters(), taught.network.parameters(), strict=True):
        assert torch.equal(one, two), name  # reading another network has drawn from another stream
    both = build(told(start=str(run.path), teacher=str(run.path), init="svd")).data_hash().split()
    assert both[0] == plain.data_hash() and [part.partition(":")[0] for part in both[1:]] == ["start", "teacher"]
    assert both[1].partition(":")[2] == both[2].partition(":")[2] == earlier_runs.weights_hash(_whole(run))


def test_a_digest_is_of_every_weight(run: Run) -> None:
    one = _whole(run)
    before = earlier_runs.weights_hash(one)
    with torch.no_grad():
        one.get_parameter("model.decoder.layers.0.fc2.bias")[-1] += 1e-3
    assert earlier_runs.weights_hash(one) != before == earlier_runs.weights_hash(_whole(run))


def _whole(run: Run) -> nn.Module:
    task: Any = build(told())
    return earlier_runs.load_full_network("teacher", told(teacher=str(run.path)), task.tokenizer)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"d_model": 32}, "--start: .*family has d_model 16, and this training has d_model 32; use the same"),
        ({"layers": 2}, "--start: .*family has layers 1, and this training has layers 2"),
        ({"ffn": 32}, "has ffn 24, and this training has ffn 32"),
        ({"heads": 4}, "has heads 2, and this training has heads 4"),
        ({"norm": "pre"}, "has norm post, and this training has norm pre"),
        ({"tie": False}, "has tie True, and this training has tie False"),
        ({"longest": 30}, "has longest 40, and this training has longest 30"),
        ({"target": "fr"}, "has target de, and this training has target fr"),
        (
            {"vocabulary": 290},
            r"the tokenizer of .*family \(300 tokens, hash \w{8}\) is not that of these data \(290 tokens, hash ",
        ),
        ({"corpus_seed": 1}, r"\(300 tokens, .*\) is not that of these data \(300 tokens, .*same data and --vocab"),
    ],
)
def test_another_network_is_no_start(run: Run, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build(told(start=str(run.path), init="svd", **changes))


@pytest.mark.parametrize("option", ["start", "teacher"])
def test_what_is_no_whole_network_at_its_end_is_refused(tmp_path: Path, option: str) -> None:
    def refused(path: Path, why: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=f"--{option}: {why}"):
            build(told(nest="none", **{option: str(path)}))

    refused(tmp_path / "nothing", ".*nothing is not a run: it has no config.json", NotThere)
    core = ended(tmp_path / "core", alone="core")
    refused(core.path, ".*core trained only the level 'core', but its full network is needed; .*--nest none")
    going = made_run(tmp_path / "going", "translation")
    refused(going.path, ".*going is not finished, and its best .* change; first run `partialsgd resume .*going`")
    other = made_run(tmp_path / "rows", "images")
    refused(other.path, ".*rows is a run of images; give one of translation")
