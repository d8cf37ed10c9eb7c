"""Levels within a budget of FLOPs: fit_budget beside the same share of every layer and beside Torch-Pruning.

python -m studies.budget --data FOLDER [--torch-pruning FOLDER] [--seeds 3] [--only CIFAR-10] [--keep FOLDER] [--ours]

FOLDER of --data has the binary files of CIFAR-10. Torch-Pruning is not a dependency of the project; install it with
`pip install --no-deps --target FOLDER torch-pruning==1.6.1`.
"""

from __future__ import annotations

import argparse
import bisect
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.nested.inspect import flops
from studies import results
from studies.budget.networks import Problem, images, language
from studies.budget.page import FILE

SHARES = (1 / 2, 1 / 4)
STEPS = 200
FITTED, TAUGHT = "fit_budget", "fit_budget, taught by the whole network"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.budget", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the binary files of CIFAR-10")
    parser.add_argument("--torch-pruning", type=Path, help="the folder that torch-pruning was installed to")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="the name of one of the two networks: CIFAR-10 or phrases")
    parser.add_argument("--keep", type=Path, help="a folder for the trained whole networks, which are trained once")
    parser.add_argument("--ours", action="store_true", help="fit_budget alone; rows of other methods stay as they are")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.torch_pruning is not None:
        sys.path.append(str(options.torch_pruning))
    for problem in (images(options.data), language()):
        for seed in range(options.seeds) if options.only in (None, problem.name) else ():
            whole = whole_network(problem, seed, options.keep)
            run(problem, seed, whole, with_torch_pruning=options.torch_pruning is not None, only_ours=options.ours)


def whole_network(problem: Problem, seed: int, folder: Path | None = None) -> nn.Module:
    """Return the trained network; with a folder, it is stored there and read the next time."""
    torch.manual_seed(seed)
    whole, file = problem.build(), None if folder is None else folder / f"{problem.name}{seed}.pt"
    if file is not None and file.exists():
        whole.load_state_dict(torch.load(file))
        return whole.eval()
    problem.fit(whole, problem.steps, seed)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(whole.state_dict(), file)
    return whole


def run(
    problem: Problem,
    seed: int,
    whole: nn.Module,
    *,
    with_torch_pruning: bool,
    only_ours: bool = False,
    file: Path = FILE,
) -> None:
    """Store the accuracy of each small network before and after some steps of training."""
    example = problem.train[0][:2]
    full = flops.count(whole, example).forward
    for share in SHARES:
        for method, small in small_networks(problem, whole, share, with_torch_pruning=with_torch_pruning):
            if only_ours and method != FITTED:
                break  # it is the first
            used = flops.count(small, example).forward / full
            problem.recalibrate(small, _batches(problem))
            start, before = copy.deepcopy(small), problem.accuracy(small)
            trained = {method: (small, None)} | ({TAUGHT: (start, whole)} if method == FITTED else {})
            for name, (network, teacher) in trained.items():
                problem.fit(network, STEPS, seed + 100, teacher)
                record = {"network": problem.name, "share": share, "method": name, "seed": seed, "flops": used}
                scores = {"whole": problem.accuracy(whole), "before": before, "after": problem.accuracy(network)}
                record |= {**scores, "steps": STEPS, "date": date.today().isoformat(), "torch": torch.__version__}
                results.put(file, record, key=["network", "share", "method", "seed"])
                print(record, flush=True)


def small_networks(
    problem: Problem, whole: nn.Module, share: float, *, with_torch_pruning: bool
) -> Iterator[tuple[str, nn.Module]]:
    """Yield a network within the budget by each method; `whole` is left as it is."""
    example = problem.train[0][:2]
    limit = share * flops.count(whole, example).forward
    rows = _batches(problem)
    model = copy.deepcopy(whole)
    batches: list[Callable[[], Tensor]] = [lambda r=r: problem.loss(model, r) for r in rows]
    fitted = ps.fit_budget(model, example, batches, budget=ps.Budget(flops=share))
    yield FITTED, ps.nest(model, fitted, example=example).extract("core", example=example)
    orders: tuple[Literal["first", "norm"], ...] = ("first", "norm")
    for order in orders:
        yield f"uniform, order={order}", _uniform(whole, order, example, limit)
    if with_torch_pruning:
        for is_global in (False, True):
            for importance in ("magnitude", "Taylor"):
                where = "global" if is_global else "local"
                small = _pruned(problem, whole, importance, is_global, rows, limit)
                yield f"Torch-Pruning, {importance}, {where}", small


def _batches(problem: Problem) -> list[Tensor]:
    """Return the rows of the eight batches that every method may look at."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(len(problem.train[0]), (64,), generator=draw) for _ in range(8)]


def _uniform(whole: nn.Module, order: Literal["first", "norm"], example: Tensor, limit: float) -> nn.Module:
    """Return the level with the largest ratio, in hundredths, whose FLOPs are within the limit."""

    def nested_by(percent: int) -> ps.Nested:
        return ps.nest(copy.deepcopy(whole), ps.Width(percent / 100, order=order), example=example)

    def exceeds(percent: int) -> bool:
        nested = nested_by(percent)
        with nested.at("core"):
            return flops.count(nested.model, example).forward > limit

    percent = bisect.bisect_left(range(1, 100), True, key=exceeds)
    if percent == 0:
        raise ValueError("no ratio is within the budget")
    return nested_by(percent).extract("core", example=example)


def _pruned(
    problem: Problem, whole: nn.Module, importance: str, is_global: bool, rows: Sequence[Tensor], limit: float
) -> nn.Module:
    """Prune step by step until the FLOPs are within the limit, with fresh gradients for Taylor's importance."""
    import torch_pruning as tp

    model, example = copy.deepcopy(whole), problem.train[0][:2]
    kind = (
        tp.importance.GroupMagnitudeImportance(p=2)
        if importance == "magnitude"
        else tp.importance.GroupTaylorImportance()
    )
    layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    kept = [layer for name, layer in layers.items() if not problem.narrowed(name)]
    settings = {"global_pruning": is_global, "pruning_ratio": 0.99, "iterative_steps": 200, "ignored_layers": kept}
    pruner = tp.pruner.BasePruner(model, example, importance=kind, **settings)
    for _ in range(200):
        if flops.count(model, example).forward <= limit:
            break
        if importance == "Taylor":
            model.zero_grad()
            for row in rows:
                problem.loss(model, row).backward()
        pruner.step()
    model.zero_grad()
    return model


if __name__ == "__main__":
    main()
