"""What each process does in the tests of `compress`: real gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd import methods as registry
from partialsgd.distributed import Compression, compress, data_parallel
from tests.distributed.data_parallel_ranks import bits, family, inputs
from tests.functions import backward
from tests.processes import on_ranks

STEPS = 6
SETTINGS: dict[str, Callable[[], Compression]] = {
    "top-k": lambda: compress(top_k=0.25),
    "random-k": lambda: compress(random_k=0.25),
}
EXACT: dict[str, Callable[[], Compression]] = {
    **SETTINGS,
    "top-k, fp16": lambda: compress(top_k=0.25, dtype=torch.float16),
    "top-k, bf16": lambda: compress(top_k=0.25, dtype=torch.bfloat16),
    "random-k, fp16": lambda: compress(random_k=0.25, dtype=torch.float16),
    "fp16": lambda: compress(dtype=torch.float16),
}
SENT_PARTS: dict[str, Callable[[], ps.Method]] = {
    "everything": lambda: ps.Method(),
    "a tensor at a time": lambda: ps.Method(mask=_one_tensor),
    "elements": lambda: registry.random_mask(0.5),
}
"""What moves at each step: what is outside is neither sent nor remembered."""


def _one_tensor(context: ps.Context) -> ps.Mask:
    return ps.masks.from_tensors(context.parameters, {"a": context.t % 2 == 0}, rest=context.t % 2 == 1)


def without_biases() -> nn.Sequential:
    """Each module has one tensor, so that a layer of `compressed_gradient` is a tensor of `compress`."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 3, bias=False))


def evaluate(model: nn.Module, t: int, rank: int) -> Tensor:
    return model(inputs(t, rank)).square().mean()


class Linear(nn.Module):
    """Its gradient is the input: small whole numbers, of which single precision adds up thousands exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(7, 5)), nn.Parameter(torch.zeros(9))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.a * x).sum() + (self.b * y).sum()


def whole_numbers(t: int, rank: int, most: int = 50) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(10 * t + rank)
    a, b = (torch.randint(-most, most, shape, generator=draw).float() for shape in ((7, 5), (9,)))
    return a, b


@on_ranks
def same_as_the_method(rank: int) -> dict[str, Any]:
    """top-k with the same data on all ranks, random-k with different data, to be compared with one process."""
    results: dict[str, Any] = {}
    for name, make in SETTINGS.items():
        model = without_biases()
        wrapped = data_parallel(model, compression=make())
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1), seed=3)
        for t in range(STEPS):
            sgd.step(lambda t=t, w=wrapped, n=name: backward(evaluate(w, t, 0 if n == "top-k" else rank)))
        results[name] = bits(model)
    return results


@on_ranks
def sums(rank: int) -> dict[str, Any]:
    """The sum of this rank's gradients, of what it remembers, and how far all of x went with a learning rate of 1."""
    results: dict[str, Any] = {}
    for name, make in EXACT.items():
        for part, method in SENT_PARTS.items():
            model, compression = Linear(), make()
            wrapped = data_parallel(model, compression=compression)
            sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 1.0), method(), seed=5)
            total = [torch.zeros(7, 5), torch.zeros(9)]
            most = 500 if "bf16" in name else 50  # bf16 rounds whole numbers above 256, and fp16 above 2048
            for t in range(STEPS):
                batch = whole_numbers(t, rank, most)
                mask = sgd.step(lambda batch=batch, w=wrapped: backward(w(*batch))).mask
                total = [a + b * mask[n] for a, b, n in zip(total, batch, ("a", "b"), strict=True)]
            key = f"{name}, {part}"
            results[f"{key} gradients"] = total
            results[f"{key} unsent"] = [compression.unsent.get(n, torch.zeros(())) for n in ("a", "b")]
            results[f"{key} moved"] = bits(model)
    return results


@on_ranks
def sizes_sent(rank: int) -> dict[str, Any]:
    """The level of each step, and the largest tensor that it gave to a collective, as torch's profiler saw it."""
    results: dict[str, Any] = {}
    for name, make in EXACT.items():
        nested, steps = family("width"), []
        wrapped = data_parallel(nested, compression=make())
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(nested.parameters(), 0.05), registry.alternating())
        for t in range(3):
            with torch.autograd.profiler.profile(record_shapes=True) as profile:
                level = sgd.step(lambda t=t, w=wrapped: backward(evaluate(w, t, rank))).level
            events = [e for e in profile.kineto_results.events() if e.name().startswith("gloo:all_")]
            steps.append((level, max(shape[0] for event in events for shape in event.shapes())))
        results[name] = steps
    return results


@on_ranks
def scaled_sums(rank: int) -> dict[str, Any]:
    """As `sums`, with a loss scale that doubles every second step and halves at an overflow."""
    results: dict[str, Any] = {}
    for name, make in SETTINGS.items():
        model, compression = Linear(), make()
        wrapped = data_parallel(model, compression=compression)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 1.0), seed=5, scaler=scaler)
        total = [torch.zeros(7, 5), torch.zeros(9)]
        scales = []
        for t in range(STEPS):
            batch, factor = whole_numbers(t, rank), float("inf") if (rank, t) == (1, 3) else 1.0

            def closure(batch=batch, factor=factor, wrapped=wrapped, scaler=scaler) -> Tensor:
                loss = wrapped(*batch)
                scaler.scale(loss * factor).backward()
                return loss.detach()

            scales.append(scaler.get_scale())
            if not sgd.step(closure).skipped:
                total = [a + b for a, b in zip(total, batch, strict=True)]
        results[f"{name} gradients"], results[f"{name} moved"] = total, bits(model)
        results[f"{name} unsent"] = [compression.unsent[n] for n in ("a", "b")]
        results[f"{name} scales"] = scales
    return results


@on_ranks
def levels(rank: int) -> dict[str, Any]:
    """Memory through levels and element masks; a skipped step; a run that is saved and resumed."""
    results: dict[str, Any] = {}
    for name, make in SETTINGS.items():
        nested, compression = family("width"), make()
        wrapped = data_parallel(nested, compression=compression)
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(nested.parameters(), 0.05), registry.alternating())
        core = {n for n, moves in nested.mask(nested.levels[0]).items() if moves}
        held = []
        for t in range(STEPS):
            before = dict(compression.unsent)
            step = sgd.step(lambda t=t, w=wrapped: backward(evaluate(w, t, rank)))
            if step.level == nested.levels[0]:
                held.append(all(compression.unsent[n] is e for n, e in before.items() if n not in core))
                held.append(any(not torch.equal(compression.unsent[n], before[n]) for n in core))
            if t == STEPS // 2:
                saved = (compression.state_dict(), sgd.state_dict(), bits(nested))
        again, second = family("width"), make()
        second.load_state_dict(saved[0])
        with torch.no_grad():
            for p, value in zip(again.parameters(), saved[2], strict=True):
                p.copy_(value)
        other = data_parallel(again, compression=second)
        resumed = ps.PartialSGD(other, torch.optim.SGD(again.parameters(), 0.05), registry.alternating())
        resumed.load_state_dict(saved[1])
        for t in range(STEPS // 2 + 1, STEPS):
            resumed.step(lambda t=t, w=other: backward(evaluate(w, t, rank)))
        results[f"{name} held"] = held
        results[name], results[f"{name} resumed"] = bits(nested), bits(again)
        same = [torch.equal(e, second.unsent[n]) for n, e in compression.unsent.items()]
        results[f"{name} memory"] = [len(same) == len(second.unsent), *same]
    return results | _masked(rank) | _skipped(rank) | _refused(rank)


def _masked(rank: int) -> dict[str, Any]:
    """With an element mask, only what is inside is sent or remembered."""
    model, compression = without_biases(), compress(top_k=0.25)
    wrapped = data_parallel(model, compression=compression)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1), registry.random_mask(0.5))
    step = sgd.step(lambda: backward(evaluate(wrapped, 0, rank)))
    outside = [compression.unsent[n][~entry] for n, entry in step.mask.partial.items()]
    inside = [compression.unsent[n][entry] for n, entry in step.mask.partial.items()]
    return {"outside": [float(x.abs().sum()) for x in outside], "inside": [float(x.abs().sum()) for x in inside]}


def _skipped(rank: int) -> dict[str, Any]:
    """A NaN on one rank: both skip, and remember what they did before."""
    results: dict[str, Any] = {}
    for name, make in SETTINGS.items():
        model, compression = without_biases(), make()
        wrapped = data_parallel(model, compression=compression)
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1), nonfinite="skip")
        sgd.step(lambda w=wrapped: backward(evaluate(w, 0, rank)))
        before = dict(compression.unsent)
        poison = float("nan") if rank == 1 else 1.0
        skipped = sgd.step(lambda w=wrapped, poison=poison: backward(evaluate(w, 1, rank) * poison)).skipped
        kept = all(compression.unsent[n] is e for n, e in before.items())
        went_on = not sgd.step(lambda w=wrapped: backward(evaluate(w, 2, rank))).skipped
        results[f"{name} skipped"] = [skipped, kept, went_on]
        results[f"{name} after a skip"] = bits(model)
    return results


def _refused(rank: int) -> dict[str, Any]:
    messages = {}
    nested = family("width")
    for name, compression, method in (
        ("power", compress(power_sgd=2), registry.alternating()),
        ("weights", compress(top_k=0.5), registry.slimmable(weights={"1/4": 0.5})),
        ("chosen by it", compress(top_k=0.5), registry.top_k(0.5)),
        ("corrected", compress(top_k=0.5), registry.compressed_gradient(0.5)),
        ("guarded", compress(top_k=0.5), registry.guarded(registry.random_mask(0.5), bound=2.0, every=1)),
        ("measured", compress(top_k=0.5), registry.random_mask(0.5)),
    ):
        wrapped = data_parallel(nested, compression=compression)
        meter = ps.CriteriaMeter(1) if name == "measured" else None
        sgd = ps.PartialSGD(wrapped, torch.optim.SGD(nested.parameters(), 0.05), method, meter=meter)
        try:
            for t in range(2):
                before = bits(nested)
                sgd.step(lambda t=t, w=wrapped: backward(evaluate(w, t, rank)))
        except NotImplementedError as error:
            same = all(torch.equal(a, b) for a, b in zip(before, nested.parameters(), strict=True))
            messages[name] = f"{error} (t = {sgd.t}, untouched: {same})"
    try:
        data_parallel(without_biases(), compression=compress(top_k=0.5))(inputs(0, rank))
    except RuntimeError as error:
        messages["alone"] = str(error)
    try:
        data_parallel(without_biases(), compression=compress(top_k=0.5), find_unused_parameters=True)
    except ValueError as error:
        messages["unused"] = str(error)
    return {"messages": messages}


@on_ranks
def power_sgd(rank: int) -> dict[str, Any]:
    """torch's PowerSGD where every step sends the same parameters."""
    model = without_biases()
    wrapped = data_parallel(model, compression=compress(power_sgd=1))
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    losses = [float(sgd.step(lambda w=wrapped: backward(evaluate(w, 0, rank))).loss) for _ in range(16)]
    return {"losses": losses, "parameters": bits(model)}
