"""What each process does in the tests of independent subnets on workers."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partialsgd import distributed
from tests.methods.smaller import batch, cnn, mlp, ready
from tests.processes import on_ranks

ROUNDS, EVERY, RATE, SEED = 3, 2, 0.2, 5
SHAPES = {mlp: (5,), cnn: (2, 6, 6)}
CASES: dict[str, dict[str, Any]] = {
    "mlp": {"build": mlp},
    "mlp momentum": {"build": mlp, "momentum": 0.9},
    "mlp average": {"build": mlp, "shared": "average"},
    "cnn momentum": {"build": cnn, "momentum": 0.9},
    "cnn average": {"build": cnn, "shared": "average"},
    "mlp momentum clipped": {"build": mlp, "momentum": 0.9, "clip_norm": 0.05},
}


def loss_of(model: nn.Module, number: int, shape: tuple[int, ...]) -> Tensor:
    x, y = batch(number, *shape)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def values(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


def momenta(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = {name: optimizer.state.get(p, {}).get("momentum_buffer") for name, p in model.named_parameters()}
    return {name: state.clone() for name, state in states.items() if state is not None}


@on_ranks
def train(rank: int) -> dict[str, Any]:
    """Three rounds of every case; the whole network after each, and in the middle of the second."""
    found = {}
    for name, case in CASES.items():
        options = dict(case)
        build, momentum = options.pop("build"), options.pop("momentum", 0.0)
        model = ready(build(), seed=rank)  # the first rank's values count
        optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=momentum)
        worker = distributed.independent_subnets(model, optimizer, EVERY, seed=SEED, **options)
        ranks, states, levels = dist.get_world_size(), [], set()
        for local in range(ROUNDS * EVERY):
            number = local * ranks + rank
            levels.add(worker.step(lambda n=number, m=model, b=build: loss_of(m, n, SHAPES[b])).level)
            with worker.whole():
                states.append({"model": values(model), "momenta": momenta(model, optimizer)})
        found[name] = {"states": states, "levels": list(levels), "rounds": worker.round}
    return found


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))


def numel(tensors: Any) -> int:
    return sum(t.numel() for t in tensors)


@on_ranks
def memory(rank: int) -> dict[str, Any]:
    """The numbers that this rank holds in the backward pass of a step, and the bytes that it sends in a round."""
    torch.manual_seed(0)
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    worker = distributed.independent_subnets(model, optimizer, 2)
    ids = {id(p) for p in model.parameters()}

    def closure() -> Tensor:
        loss = model(torch.ones(1, 32)).square().mean()
        loss.backward()
        return loss

    def live() -> int:
        gc.collect()
        tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
        tensors += [p.grad for p in model.parameters() if p.grad is not None]
        tensors += [s for state in optimizer.state.values() for s in state.values()]
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.is_floating_point()
        }
        return sum(storages.values()) // 4

    seen: dict[str, Any] = {}

    def watched() -> Tensor:
        loss = closure()
        seen["live"] = live()
        seen["gradients"] = numel(p.grad for p in model.parameters())
        return loss

    for _ in range(3):
        worker.step(closure)
    worker.step(watched)  # the second round ends with it
    seen["parameters"] = numel(model.parameters())
    seen["state"] = numel(s["momentum_buffer"] for s in optimizer.state.values())
    seen["sizes"] = [(m.in_features, m.out_features) for m in model if isinstance(m, nn.Linear)]
    sent = worker.bytes_sent
    for _ in range(2):
        worker.step(closure)
    seen["bytes"] = worker.bytes_sent - sent
    seen["same objects"] = ids == {id(p) for p in model.parameters()}
    return seen


def resumed(folder: Path, rounds: int, rank: int, *, stop: int | None, adam: bool) -> dict[str, Tensor]:
    """Train so many rounds; with `stop`, save after that round and go on in new objects."""
    ranks, file = dist.get_world_size(), folder / "state.pt"
    model = ready(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01) if adam else torch.optim.SGD(model.parameters(), RATE, 0.9)
    worker = distributed.independent_subnets(model, optimizer, EVERY, shared="average", seed=SEED)
    while worker.round < rounds:
        number = worker.t * ranks + rank
        worker.step(lambda n=number, m=model: loss_of(m, n, (5,)))
        if worker.round == stop:
            stop = None
            with worker.whole():
                if rank == 0:
                    states = {"model": model, "optimizer": optimizer, "worker": worker}
                    torch.save({name: each.state_dict() for name, each in states.items()}, file)
            dist.barrier()
            saved = torch.load(file, weights_only=True)
            model = ready(mlp(), seed=9)
            kind = type(optimizer)
            optimizer = kind(model.parameters(), 0.5) if adam else kind(model.parameters(), 0.5, 0.9)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            worker = distributed.independent_subnets(model, optimizer, EVERY, shared="average", seed=SEED)
            worker.load_state_dict(saved["worker"])
    with worker.whole():
        return values(model)


@on_ranks
def resume(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    folders: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders)
    for adam in (False, True):
        for stop in (None, 2):
            found[f"{adam} {stop}"] = resumed(Path(folders[0]), 4, rank, stop=stop, adam=adam)
    return found


@on_ranks
def criterion(rank: int) -> dict[str, Any]:
    """Rounds that end by what was measured; the cosine of each turn by hand, from the whole networks."""
    found: dict[str, Any] = {"rounds": [], "wholes": [], "own": []}
    model = ready(mlp())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    settings = {"repartition": "criterion", "bound": 1.25, "measure_every": 2}
    worker = distributed.independent_subnets(model, optimizer, 6, shared="average", seed=SEED, **settings)
    for local in range(30):
        number = local * dist.get_world_size() + rank
        found["wholes"].append(values_in(worker, model))
        found["own"].append(values(model))
        worker.step(lambda n=number: loss_of(model, n, (5,)))
        found["rounds"].append(worker.round)
    return found


def values_in(worker: distributed.IndependentSubnets, model: nn.Module) -> dict[str, Tensor]:
    with worker.whole():
        return values(model)


@on_ranks
def refused(rank: int) -> dict[str, Any]:
    """What each misuse raises, on every rank."""
    model = ready(mlp())
    optimizer = torch.optim.SGD(model.parameters(), RATE, 0.9)
    worker = distributed.independent_subnets(model, optimizer, 2)
    said = {}

    def attempt(name: str, call: Any) -> None:
        before = values(model)
        try:
            call()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
        assert all(torch.equal(v, before[k]) for k, v in values(model).items()), name

    def step_inside() -> None:
        with worker.whole():
            worker.step(lambda: loss_of(model, 0, (5,)))

    def enter_twice() -> None:
        with worker.whole(), worker.whole():
            pass

    attempt("inside", step_inside)
    attempt("twice", enter_twice)
    worker.step(lambda: loss_of(model, rank, (5,)))
    attempt("middle", worker.state_dict)
    attempt("late", lambda: worker.load_state_dict({}))

    def one_more() -> None:
        if rank == 0:  # the other has made one step less
            worker._steps, worker._sgd.t = 0, 7
        worker._end_round()

    attempt("apart", one_more)
    nets = {"few": nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 2)), "ddp": mlp(), "factored": wide()}
    attempt("few", lambda: build_on(nets["few"]))
    attempt("ddp", lambda: build_on(nn.parallel.DistributedDataParallel(nets["ddp"])))
    attempt("data parallel", lambda: build_on(distributed.data_parallel(nets["ddp"])))

    def factored() -> None:
        net = nets["factored"]
        own = distributed.independent_subnets(net, torch.optim.Adafactor(net.parameters()), 1)
        own.step(lambda: backward(net(torch.ones(1, 32)).square().mean()))

    attempt("factored", factored)

    def with_a_pass() -> None:
        net = wide()
        own = distributed.independent_subnets(net, torch.optim.SGD(net.parameters(), 0.1), repartition="criterion")
        own.step(lambda g: backward(net(torch.ones(1, 32)).square().mean()))

    attempt("argument", with_a_pass)
    return said


def backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def build_on(model: nn.Module) -> None:
    before = {name: p.shape for name, p in model.named_parameters()}
    try:
        distributed.independent_subnets(model, torch.optim.SGD(model.parameters(), 0.1))
    finally:
        assert before == {name: p.shape for name, p in model.named_parameters()}
