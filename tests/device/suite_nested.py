"""Nested networks of every kind on the device: levels, training, extraction, files, checkpoints and meters."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partialsgd import CriteriaMeter, Depth, LowRank, Nested, OutputSum, PartialSGD, Width, export, nest
from partialsgd.testing import contracts as laws
from partialsgd.testing.problems import Problem
from partialsgd.testing.runs import Run, assert_same_bits
from tests import zoo
from tests.device.cases import BY_NAME, FAMILY, METHODS, OPTIMIZERS, evaluate, problem_for
from tests.device.pretended import DEVICE, on_device, to_device, watch
from tests.nested.contracts import HUGGING_FACE, Residual, layers


class Blocks(Residual):
    """Residual blocks with hidden units, which can be fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)) for _ in range(3))


FAMILIES: dict[str, Callable[[], nn.Module]] = HUGGING_FACE | {
    "width_and_rank": lambda: nest(
        Blocks(),
        levels={
            "core": [Width(1 / 3), LowRank(1 / 3, where="head")],
            "middle": [Width(2 / 3), LowRank(2 / 3, where="head")],
        },
    ),
    "depth_and_width": lambda: nest(
        Blocks(), levels={"core": [Depth("blocks", keep=1), Width(1 / 3)], "middle": [Depth("blocks", keep=2)]}
    ),
    "output_sum_of_ranks": lambda: nest(
        OutputSum(core=layers(), extension=nn.Linear(6, 3)), levels={"core": [LowRank(1 / 4, where="core.*")]}
    ),
}


WITHOUT_NOISE = Problem(
    "without_noise", lambda: nest(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), Width(1 / 2)), evaluate
)


def problem(kind: str) -> Problem:
    return Problem(kind, FAMILIES[kind], evaluate, is_random=True)


def twins(kind: str) -> tuple[Nested, Nested]:
    """The same nested model on the CPU and on the device."""
    model = problem(kind).model()
    twin = to_device(problem(kind).model())
    assert isinstance(model, Nested) and isinstance(twin, Nested)
    return model, twin


def on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def inputs(rows: int = 4) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))


def run_each_level(nested: Nested) -> None:
    """Give each BatchNorm its statistics, and the model an example of its inputs; then evaluate."""
    torch.manual_seed(1)
    for level in nested.levels:
        with nested.at(level):
            evaluate(nested, 0)
    nested.eval()


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_level_computes_what_it_computes_on_the_cpu_and_reads_nothing(kind: str) -> None:
    model, twin = twins(kind)
    for level in model.levels:
        results = []
        for network in (model, twin):
            torch.manual_seed(1)
            batch = inputs().to(next(network.parameters()).device)
            with watch() as traffic, network.at(level):
                output = network(batch)
                output.square().mean().backward()
            assert not traffic.reads
            gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
            results.append(on_cpu({"output": output, **gradients, **dict(network.named_buffers())}))
            network.zero_grad()
        assert_same_bits(*results)


@pytest.mark.parametrize("kind", ["low_rank", "width", "depth", "layer_sum", "wide_and_deep", "three_levels"])
def test_a_model_that_is_on_the_device_is_nested_there(kind: str) -> None:
    plain: Callable[[], nn.Module] = {"depth": Residual, "three_levels": Blocks}.get(kind, layers)
    specs: dict[str, dict[str, Any]] = {
        "low_rank": {"spec": LowRank(1 / 4)},
        "width": {"spec": Width(1 / 2, order="norm")},
        "depth": {"spec": Depth("blocks", keep=1)},
        "layer_sum": {"spec": LowRank(1 / 4, init="matched")},
        "wide_and_deep": {"spec": LowRank(1 / 4, init="zero")},
        "three_levels": {"levels": {"core": [Depth("blocks", keep=1), Width(1 / 3)], "middle": [Width(2 / 3)]}},
    }
    torch.manual_seed(0)
    model = plain()
    twin = to_device(copy.deepcopy(model))
    nested, other = nest(model, **specs[kind]), nest(twin, **specs[kind])
    assert all(p.device == DEVICE for p in (*other.parameters(), *other.buffers()))
    assert_same_bits(on_cpu(dict(nested.state_dict())), on_cpu(dict(other.state_dict())))


@pytest.mark.parametrize(("method", "optimizer"), [("alternating", "SGD"), ("slimmable", "AdamW fused")])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_nested_model_trains_as_on_the_cpu(kind: str, method: str, optimizer: str) -> None:
    results = []
    for place in (problem(kind), on_device(problem(kind))):
        run = Run(place, OPTIMIZERS[optimizer], METHODS[method], False)
        for t in range(4):
            run.step(t)
        results.append({name: tensor.cpu() for name, tensor in run.tensors().items() if "rng" not in name})
    assert_same_bits(*results)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_level_is_extracted_on_the_device_and_computes_the_same(kind: str) -> None:
    model, twin = twins(kind)
    for network in (model, twin):
        run_each_level(network)
    for level in model.levels:
        plain, extracted = model.extract(level), twin.extract(level)
        assert all(p.device == DEVICE for p in (*extracted.parameters(), *extracted.buffers()))
        batch = inputs()
        assert_same_bits(
            {"output": plain(batch).detach(), **plain.state_dict()},
            on_cpu({"output": extracted(batch.to(DEVICE)), **extracted.state_dict()}),
        )


@pytest.mark.parametrize("kind", ["low_rank", "width", "depth", "three_levels"])
def test_files_of_a_model_on_the_device_are_those_of_the_cpu(kind: str, tmp_path: Path) -> None:
    model, twin = twins(kind)
    for network, place in ((model, "cpu"), (twin, "device")):
        run_each_level(network)
        export.save(network, tmp_path / place / "whole")
        export.export(network, "core", tmp_path / place / "core")
    for part in ("whole", "core"):
        files = [next((tmp_path / place / part).glob("*.safetensors")) for place in ("cpu", "device")]
        assert_same_bits(*(load_file(file) for file in files))
        assert all(tensor.device.type == "cpu" for tensor in load_file(files[1]).values())
    fresh: Callable[[], nn.Module] = {"depth": Residual, "three_levels": Residual}.get(kind, layers)
    loaded = export.load(tmp_path / "device" / "whole", to_device(fresh()))
    assert all(p.device == DEVICE for p in loaded.parameters())
    assert_same_bits(on_cpu(dict(loaded.state_dict())), on_cpu(dict(twin.state_dict())))


def test_a_hugging_face_model_on_the_device_is_saved_as_one_and_as_onnx(tmp_path: Path) -> None:
    import onnxruntime
    from transformers import GPT2LMHeadModel

    torch.manual_seed(0)
    nested = nest(to_device(zoo.gpt2()), Depth("transformer.h", keep=2)).eval()
    assert nested.model.lm_head.weight is nested.model.transformer.wte.weight, "a tied weight is one on the device too"
    tokens = zoo.tokens(2)
    nested(input_ids=tokens.to(DEVICE))
    with nested.at("core"):
        expected = nested(input_ids=tokens.to(DEVICE)).logits.detach().cpu()
    export.export(nested, "core", tmp_path / "hugging_face", format="transformers")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "hugging_face").eval()
    torch.testing.assert_close(loaded(input_ids=tokens).logits, expected)  # attention has another kernel on a CPU

    plain = nest(to_device(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))), Width(1 / 2)).eval()
    with plain.at("core"):
        output = plain(inputs().to(DEVICE)).detach().cpu()
    export.export(plain, "core", tmp_path / "onnx", format="onnx", example=inputs().to(DEVICE))
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: inputs().numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), output)


RESUMED = ("dropout", "extragradient_past", "compressed_gradient", "dynamic_sparsity", "ac_dc", "block_coordinate_free",
           "independent_subnets_average", "alternating_criterion", "freezing_criterion")  # fmt: skip
"""Methods with something to remember between steps."""


@pytest.mark.parametrize("way", ["device to device", "device to cpu", "cpu to device"])
@pytest.mark.parametrize("case", RESUMED)
def test_a_checkpoint_of_one_place_is_resumed_in_the_other(case: str, way: str) -> None:
    base = WITHOUT_NOISE if case == "alternating_criterion" else BY_NAME["mlp"]
    places = {"device": on_device(base), "cpu": base}
    source, target = (places[name] for name in way.split(" to "))

    def run_on(place: Problem) -> Run:
        return Run(place, OPTIMIZERS["AdamW"], METHODS[case], False, CriteriaMeter(every=2))

    whole, first, second = run_on(base), run_on(source), run_on(target)
    for t in range(6):
        whole.step(t)
    for t in range(3):
        first.step(t)
    file = io.BytesIO()
    parts = {"model": first.model, "optimizer": first.optimizer, "sgd": first.sgd}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True, map_location="cpu" if way.endswith("cpu") else None)
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    second.sgd.load_state_dict(state["sgd"])
    for t in range(3, 6):
        assert second.step(t).t == t
    assert_same_bits(whole.trained(), on_cpu(second.trained()))


@pytest.mark.parametrize("case", ["dropout", "sam", "top_k", "extragradient", "alternating", "slimmable"])
def test_criteria_are_those_of_the_cpu(case: str) -> None:
    base = WITHOUT_NOISE if case in ("alternating", "slimmable") else BY_NAME["mlp"]
    measured = []
    for place in (base, on_device(base)):
        run = Run(place, OPTIMIZERS["SGD"], METHODS[case], False, CriteriaMeter(every=1))
        steps = [run.step(t) for t in range(4)]
        measured.append([(c.c_norm, c.c_sim, c.c_align, c.alpha, c.q) for step in steps for c in step.measurements])
    assert measured[0] and len(measured[0]) == len(measured[1])
    for a, b in zip(*measured, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("spec", [LowRank(1 / 4), Width(1 / 2)], ids=["rank", "width"])
def test_a_level_that_is_recomputed_in_the_backward_thread_is_the_same_level(spec: Any, reentrant: bool) -> None:
    """A device runs backward in a thread of its own, and gradient checkpointing runs forward again in it."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(6, 8)
            self.body = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
            self.checkpoints = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            y: Tensor = checkpoint(self.body, x, use_reentrant=reentrant) if self.checkpoints else self.body(x)
            return y

    torch.manual_seed(0)
    nested = nest(to_device(Checkpointed()), spec)
    for level in nested.levels:
        results = []
        for nested.model.checkpoints in (False, True):
            with nested.at(level):
                nested(inputs().to(DEVICE)).square().mean().backward()
            results.append(on_cpu({n: p.grad for n, p in nested.named_parameters() if p.grad is not None}))
            nested.zero_grad()
        assert_same_bits(*results)


@pytest.mark.parametrize("case", ["plain", "dropout", "sam", "top_k"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "AdamW fused"])
def test_a_grad_scaler_trains_as_on_the_cpu_and_skips_overflows(case: str, optimizer: str) -> None:
    results = []
    for place in (BY_NAME["mlp"], on_device(BY_NAME["mlp"])):
        model = place.model()
        scaler = torch.amp.GradScaler(next(model.parameters()).device.type, init_scale=1024.0, growth_interval=2)
        sgd = PartialSGD(model, OPTIMIZERS[optimizer](model.parameters()), METHODS[case], scaler=scaler, clip_norm=0.5)
        skipped = []
        for t in range(4):

            def closure(t: int = t, place: Problem = place, model: nn.Module = model, scaler: Any = scaler) -> Tensor:
                loss = place.evaluate(model, t)
                (scaler.scale(loss) * (float("inf") if t == 2 else 1.0)).backward()
                return loss

            skipped.append(sgd.step(closure).skipped)
        assert skipped == [False, False, True, False]
        results.append({n: p.detach().cpu() for n, p in model.named_parameters()} | {"s": scaler._scale.cpu()})
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("case", ["plain", "dropout", "sam", "meprop", "alternating"])
def test_autocast_trains_on_the_device(case: str) -> None:
    base = FAMILY if case == "alternating" else BY_NAME["mlp"]
    results = []
    for place in (base, on_device(base)):
        run = Run(place, OPTIMIZERS["AdamW"], METHODS[case], True)
        steps = [run.step(t) for t in range(4)]
        results.append([float(step.loss) for step in steps if step.loss is not None])
    assert results[0] == pytest.approx(results[1], rel=0.02)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_nan_on_the_device_is_noticed_at_the_latest_one_step_later(policy: Any) -> None:
    """The host need not wait for the check: x may be noticed later, but never with a parameter that is not finite."""
    place = on_device(BY_NAME["mlp"])
    model = place.model()
    sgd = PartialSGD(model, OPTIMIZERS["AdamW fused"](model.parameters()), nonfinite=policy)
    noticed = []
    for t in range(4):
        try:
            step = sgd.step(lambda t=t: _times(place.evaluate(model, t), float("nan") if t == 1 else 1.0))
            noticed.append(step.skipped)
        except FloatingPointError as error:
            assert policy == "raise" and "t = 1" in str(error)
            noticed.append(True)
            break
    assert any(noticed[1:3]) and not noticed[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())


def _times(loss: Tensor, factor: float) -> Tensor:
    loss = loss * factor
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("case", "name"),
    [("dropout", "transformer"), ("sam", "batchnorm"), ("top_k", "tied"), ("extragradient_past", "unused"),
     ("ac_dc", "batchnorm"), ("meprop", "transformer"), ("dropout_neurons", "batchnorm")],
)  # fmt: skip
def test_the_laws_hold_on_the_device(case: str, name: str) -> None:
    place, method, make = on_device(BY_NAME[name]), METHODS[case], OPTIMIZERS["AdamW fused"]
    laws.test_law_2_x_is_x_again_when_the_closure_raises(method, place, make, False)
    laws.test_law_4_measuring_changes_nothing(method, place, make, False)
    laws.test_law_5_a_resumed_run_is_the_same_run(method, place, make, False)
    laws.test_law_8_requires_grad_is_not_touched(method, place, make)
    laws.test_law_12_draws_depend_on_seed_and_t_alone(method, place, make, False)
    if case != "ac_dc":  # a projection moves what is outside
        laws.test_law_1_nothing_outside_the_mask_moves(method, place, make, False)


def test_statistics_are_recalibrated_and_costs_are_counted_on_the_device() -> None:
    model, twin = twins("width")
    model.recalibrate("core", [inputs(8)])
    twin.recalibrate("core", [inputs(8).to(DEVICE)])
    assert_same_bits(on_cpu(dict(model.named_buffers())), on_cpu(dict(twin.named_buffers())))
    profiles = [model.profile(inputs(), repeats=1), twin.profile(inputs().to(DEVICE), repeats=1)]
    counted = [[(row.parameters, row.forward, row.training, row.multiply_adds) for row in p.rows] for p in profiles]
    assert counted[0] == counted[1]


@pytest.fixture
def default_device() -> Iterator[None]:
    """`torch.set_default_device`, with which many people put everything on their GPU."""
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("case", ["plain", "dropout", "dropout_neurons", "sam", "independent_subnets", "alternating"])
def test_a_method_trains_where_the_device_is_the_default(case: str, default_device: None) -> None:
    run = Run(problem_for(case), OPTIMIZERS["AdamW fused"], METHODS[case], False, CriteriaMeter(every=2))
    assert all(p.device == DEVICE for p in run.model.parameters())
    for t in range(3):
        assert run.step(t).t == t


@pytest.mark.parametrize(
    "spec",
    [LowRank(1 / 4), LowRank(1 / 4, init="zero"), LowRank(1 / 4, init="matched"), Width(1 / 2, order="norm")],
    ids=["rank", "zero", "matched", "width"],
)
def test_a_model_is_nested_and_extracted_where_the_device_is_the_default(spec: Any, default_device: None) -> None:
    nested = nest(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), spec)
    x = torch.randn(4, 6)
    nested(x)
    with nested.at("core"):
        expected = nested(x)
    assert torch.equal(nested.extract("core")(x), expected)
