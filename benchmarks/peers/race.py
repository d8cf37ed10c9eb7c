"""The race: feed-forward networks of one size by torch, whittle and ours, and the same pruned by Torch-Pruning."""

from __future__ import annotations

import argparse
import copy
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import partialsgd as ps
from benchmarks.figures import FEWEST_ROUNDS, Figure, ratio, record, sum_ratio
from benchmarks.harness import Estimate, Run, Track, ready
from benchmarks.machine import Company
from benchmarks.report import screen

WIDTH, HIDDEN, CORE, BLOCKS, TOKENS = 512, 2048, 512, 3, 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.race", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    track, company = Track(rounds=options.rounds, warm_up=1, threads=options.threads), Company()
    taken = record("peers", [*nested_networks(track), *small_networks(track)], track, company.share())
    console = Console()
    console.print(screen(taken))
    if options.rounds >= FEWEST_ROUNDS:
        taken.save()
    else:
        console.print(f"not stored: a figure needs {FEWEST_ROUNDS} rounds or more")


class Block(nn.Module):
    """x + down(relu(up(x)))."""

    def __init__(self, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.up, self.down = linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.relu(self.up(x)))
        return y


def network(linear: Callable[[int, int], nn.Module] = nn.Linear) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(linear) for _ in range(BLOCKS)])


def nested_networks(track: Track) -> list[Figure]:
    """Times of full, core and pair, coordinates that a core step moves outside the core, and bytes held."""
    x = torch.randn(TOKENS, WIDTH)
    sliced = network(_whittle_linear())
    nested = ps.nest(network(), ps.Width(CORE / HIDDEN, hidden=("*.up", "*.down")))
    plain = network()
    small = copy.deepcopy(nested).extract("core", example=x[:2])
    whittle, ours = _adam(sliced.parameters()), _adam(nested.parameters())
    sgd = ps.PartialSGD(nested, ours, ps.methods.alternating())

    def closure() -> Tensor:
        loss: Tensor = nested(x).pow(2).mean()
        loss.backward()
        return loss

    def ours_at(level: str) -> Run:
        def run() -> None:
            with nested.at(level):
                nested(x).pow(2).mean().backward()
            nested.zero_grad()

        return run

    def pair() -> None:
        sgd.step(closure)
        sgd.step(closure)

    def whittle_pair() -> None:
        for hidden in (HIDDEN, CORE):
            _whittle_step(sliced, hidden, x, whittle)

    contestants: dict[str, Run] = {
        "plain": _step(plain, x, _adam(plain.parameters())),
        "small": _step(small, x, _adam(small.parameters())),
        "pass of plain": _pass(plain, x),
        "pass of small": _pass(small, x),
        "whittle: pass of full": lambda: _whittle_step(sliced, HIDDEN, x),
        "whittle: pass of core": lambda: _whittle_step(sliced, CORE, x),
        "ours: pass of full": ours_at("full"),
        "ours: pass of core": ours_at("core"),
        "whittle: pair": whittle_pair,
        "ours: pair": pair,
    }
    times = track.race("nested", {name: ready(run) for name, run in contestants.items()}, repeat=1)
    figures = [
        ratio(f"{who}: {name} ÷ {baseline}", times, f"{who}: {name}", baseline)
        for name, baseline in (("pass of full", "pass of plain"), ("pass of core", "pass of small"))
        for who in ("whittle", "ours")
    ]
    for who in ("whittle", "ours"):
        what = f"{who}: pair of steps, full and core ÷ (plain + small)"
        figures.append(sum_ratio(what, times, f"{who}: pair", ["plain", "small"]))
    return [*figures, *_moved_outside(sliced, whittle, nested, sgd, x, closure)]


def _moved_outside(
    sliced: nn.Module, whittle: torch.optim.Optimizer, nested: ps.Nested, sgd: ps.PartialSGD, x: Tensor, closure: Any
) -> list[Figure]:
    """Count weights outside the core that a step of the core changes, after a step of the whole network."""
    _whittle_step(sliced, HIDDEN, x, whittle)
    outside = [w for block in sliced for w in (block.up.weight.data[CORE:], block.down.weight.data[:, CORE:])]
    before = [w.clone() for w in outside]
    _whittle_step(sliced, CORE, x, whittle)
    moved = sum(int((a != b).sum()) for a, b in zip(before, outside, strict=True))
    core = set(nested.parameters(level="core"))
    ours = [p for name, p in nested.named_parameters() if p not in core and "bias" not in name]
    if sgd.t % 2 == 0:
        sgd.step(closure)
    held = [p.detach().clone() for p in ours]
    sgd.step(closure)
    ours_moved = sum(int((a != b).sum()) for a, b in zip(held, ours, strict=True))
    total = sum(w.numel() for w in outside)
    what = f"weights outside the core that a core step moves, of {total:,}"
    held_bytes = {"ours": float(_bytes(sgd)), "whittle": float(_bytes(whittle))}
    return [
        Figure(f"whittle: {what}", _exact(moved), unit="weights"),
        Figure(f"ours: {what}", _exact(ours_moved), 0, unit="weights"),
        Figure(
            "ours ÷ whittle: bytes of parameters and optimizer state",
            _exact(held_bytes["ours"] / held_bytes["whittle"]),
            medians=held_bytes,
        ),
    ]


def _exact(number: float) -> Estimate:
    return Estimate(number, number, number)


def small_networks(track: Track) -> list[Figure]:
    """Seconds to choose the hidden units of a network of half the FLOPs, and the time of a pass of the result."""
    import torch_pruning as tp

    x, model, pruned = torch.randn(TOKENS, WIDTH), network(), network()
    start = perf_counter()
    fitted = ps.fit_budget(model, x[:8], [lambda: model(x).pow(2).mean()], budget=ps.Budget(flops=1 / 2))
    small = ps.nest(model, fitted, example=x[:8]).extract("core", example=x[:8])
    ours = perf_counter() - start
    start = perf_counter()
    kept = [block.down for block in pruned]
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    tp.pruner.BasePruner(pruned, x[:8], importance=importance, pruning_ratio=0.5, ignored_layers=kept).step()
    theirs = perf_counter() - start
    runs = {"ours": ready(_pass(small, x)), "Torch-Pruning": ready(_pass(pruned, x))}
    times = track.race("small", runs, repeat=1)
    sizes = {who: float(sum(p.numel() for p in m.parameters())) for who, m in (("ours", small), ("pruned", pruned))}
    what = "half of the FLOPs"
    return [
        Figure(f"ours: {what}, to choose the units by a loss and take the network out", _exact(ours), unit="s"),
        Figure(f"Torch-Pruning: {what}, to choose the units by magnitude and remove them", _exact(theirs), unit="s"),
        ratio(f"ours ÷ Torch-Pruning: {what}, a pass of the result", times, "ours", "Torch-Pruning"),
        Figure(
            f"ours ÷ Torch-Pruning: {what}, parameters of the result",
            _exact(sizes["ours"] / sizes["pruned"]),
            medians=sizes,
        ),
    ]


def _whittle_linear() -> Callable[[int, int], nn.Module]:
    """Load whittle's Linear from its file: importing the package needs litgpt."""
    package = importlib.util.find_spec("whittle")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "modules" / "linear.py"
    spec = importlib.util.spec_from_file_location("whittle_linear", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[int, int], nn.Module] = module.Linear
    return made


def _whittle_step(sliced: nn.Module, hidden: int, x: Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
    for block in sliced:
        block.up.set_sub_network(WIDTH, hidden)
        block.down.set_sub_network(hidden, WIDTH)
    sliced(x).pow(2).mean().backward()
    if optimizer is not None:
        optimizer.step()
    sliced.zero_grad()


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-7, fused=True)


def _step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Run:
    def run() -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _pass(model: nn.Module, x: Tensor) -> Run:
    def run() -> None:
        model(x).pow(2).mean().backward()
        model.zero_grad()

    return run


def _bytes(owner: Any) -> int:
    """Return the bytes of the parameters and of the optimizer's state."""
    optimizer = owner if isinstance(owner, torch.optim.Optimizer) else owner.optimizers[0]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    return sum(t.nbytes for t in (*parameters, *states))


if __name__ == "__main__":
    main()
