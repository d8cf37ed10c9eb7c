"""Workers in turn, against workers that each have a network of their own."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_

from partialsgd import Context, PartialSGD, Step, methods
from partialsgd.meters.criteria import Criteria, add_to_summary
from partialsgd.method import Guard
from partialsgd.methods.independent_subnets import Rounds
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import Quadratic
from tests.methods.smaller import batch, cnn, mlp, places, ready, smaller
from tests.methods.training import are_equal, load_through_a_file, sgd_of, values

LAWS = {
    "": methods.independent_subnets(2, 2),
    "average": methods.independent_subnets(2, 2, shared="average"),
    "criterion": methods.independent_subnets(
        2, 3, shared="average", repartition="criterion", bound=1.1, measure_every=2
    ),
}
REFUSED_PROBLEMS = dict.fromkeys(LAWS, ("quadratic", "tied", "unused"))  # no hidden units, tied ones, not to be traced
IDENTITY = [methods.independent_subnets(1, 2, shared="average")]
REFUSED_SETTINGS = [
    ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
    ({"every": 0}, "every must be"),
    ({"shared": "sum"}, "shared must be one of hold, average; got 'sum'"),
    ({"repartition": "often"}, "repartition must be one of rounds, criterion; got 'often'"),
    ({"repartition": "criterion", "bound": 0.5}, "bound must be at least 1, because c_align is never smaller"),
    ({"bound": 3.0}, "bound=3.0 belongs to repartition='criterion', and this has 'rounds'"),
    ({"measure_every": 3}, "measure_every=3 belongs to repartition='criterion'"),
    ({"repartition": "criterion", "measure_every": 0}, "measure_every must be a whole number"),
    ({"repartition": "criterion", "every": 3}, "measure_every=5 leaves rounds unmeasured"),
]

SHAPES = {mlp: (5,), cnn: (2, 6, 6)}
HIDDEN = {mlp: (0, 2), cnn: (0, 3)}
RATE = 0.2
BY_CRITERION = {"every": 6, "repartition": "criterion", "bound": 1.25, "measure_every": 2}


def loss_of(model: nn.Module, t: int, shape: tuple[int, ...]) -> Tensor:
    x, y = batch(t, *shape)
    loss = nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
    loss.backward()
    return loss


def run(model: nn.Sequential, sgd: PartialSGD, steps: int, shape: tuple[int, ...]) -> list[Step]:
    return [sgd.step(lambda: loss_of(model, sgd.t, shape)) for _ in range(steps)]


def driver(model: nn.Sequential, momentum: float = 0.0, **options) -> PartialSGD:
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=momentum)
    return PartialSGD(model, optimizer, methods.independent_subnets(**options), seed=5)


def units_of(step: Step, layers: tuple[int, ...]) -> dict[int, Tensor]:
    return {i: torch.as_tensor(step.mask[f"{i}.bias"]) for i in layers}


@pytest.mark.parametrize(
    ("momentum", "shared", "options"),
    [(0.0, "hold", {}), (0.9, "hold", {}), (0.0, "average", {}), (0.0, "average", BY_CRITERION)],
)
@pytest.mark.parametrize("build", [mlp, cnn])
def test_it_is_separate_small_networks_that_are_merged_at_the_end_of_a_round(build, momentum, shared, options) -> None:
    """What is shared is, after a round of any length, the mean of what each worker has made of it alone."""
    workers, shape = 2 if options else 3, SHAPES[build]
    model = ready(build())
    merged, momenta = copy.deepcopy(model), {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    sgd = driver(model, momentum, **{"workers": workers, "every": 2, "shared": shared} | options)
    last, lengths = f"{len(model) - 1}.bias", []
    for r in range(8 if options else 3):
        begin, steps = sgd.t, run(model, sgd, 1, shape)
        while any(key.startswith("worker") for key in sgd.memory) if shared == "average" else len(steps) < 6:
            steps += run(model, sgd, 1, shape)
        lengths.append(len(steps))
        shares = []
        start = copy.deepcopy(merged)
        for i in range(workers):
            kept = units_of(steps[i], HIDDEN[build])
            small, index = smaller(start, kept), places(start, kept)
            trained = [p for n, p in small.named_parameters() if n != last or shared == "average"]
            own = torch.optim.SGD(trained, RATE, momentum=momentum)
            for n, p in small.named_parameters():
                if momentum and n != last:
                    own.state[p]["momentum_buffer"] = momenta[n][index[n]].clone()
            for t in range(begin + i, sgd.t, workers):
                loss_of(small, t, shape)
                own.step()
                own.zero_grad()
            for n, place in index.items():
                if n == last:
                    shares.append(small.state_dict()[n].clone())
                else:
                    merged.state_dict()[n][place] = small.state_dict()[n]
            for n, p in small.named_parameters():
                if momentum and n != last:
                    momenta[n][index[n]] = own.state[p]["momentum_buffer"]
        merged.state_dict()[last].copy_(torch.stack(shares).mean(0))
        for n, value in merged.state_dict().items():
            if not n.endswith("num_batches_tracked"):
                torch.testing.assert_close(model.state_dict()[n], value, msg=f"{n} after round {r}")
        assert torch.equal(model.get_parameter(last), ready(build()).get_parameter(last)) == (shared == "hold")
    assert len(set(lengths)) > 1 if options else lengths == [6] * 3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("build", [mlp, cnn])
def test_it_is_masked_training_in_separate_copies_to_the_bit(build, momentum) -> None:
    workers, every, shape = 2, 3, SHAPES[build]
    model = ready(build()).float()
    start = copy.deepcopy(model)
    steps = run(model, driver(model, momentum, workers=workers, every=every), workers * every, shape)
    for i in range(workers):
        mask = {n: torch.as_tensor(m) for n, m in steps[i].mask.items()}
        own = copy.deepcopy(start)
        last = f"{len(model) - 1}.bias"
        with torch.no_grad():
            for n, p in own.named_parameters():
                p.mul_(mask[n] if n != last else 1.0)
        optimizer = torch.optim.SGD(own.parameters(), RATE, momentum=momentum)
        for local in range(every):
            loss_of(own, local * workers + i, shape)
            for n, p in own.named_parameters():
                p.grad *= mask[n]
            optimizer.step()
            optimizer.zero_grad()
        for n, p in own.named_parameters():
            inside = mask[n].expand(p.shape)
            assert torch.equal(model.get_parameter(n)[inside], p[inside]), n


def test_blocks_are_disjoint_and_cover_the_units_but_not_the_matrix_between_two_layers() -> None:
    model = ready(mlp())
    before = values(model)
    steps = run(model, driver(model, workers=3, every=2), 6, (5,))
    for step, again in zip(steps[:3], steps[3:], strict=True):
        assert all(torch.equal(torch.as_tensor(step.mask[n]), torch.as_tensor(again.mask[n])) for n in step.mask)
    for name, p in model.named_parameters():
        times = sum(torch.as_tensor(step.mask[name]).int().expand(p.shape) for step in steps[:3])
        assert int(times.max()) == (0 if name == "5.bias" else 1), "no coordinate has two workers"
        if name not in ("2.weight", "5.bias"):
            assert bool((times == 1).all())
    blocks = [(int(s.mask["0.bias"].sum()), int(s.mask["2.bias"].sum())) for s in steps[:3]]
    assert sorted(a for a, _ in blocks) == [2, 3, 3] and sorted(b for _, b in blocks) == [2, 2, 3]
    moved = model[2].weight != before["2.weight"]
    assert int(moved.sum()) == sum(a * b for a, b in blocks) < moved.numel() / 2


def test_the_split_is_of_the_round_and_the_same_after_a_resume() -> None:
    def masks(steps: list[Step]) -> list[Tensor]:
        return [torch.as_tensor(step.mask["0.bias"]) for step in steps]

    model = ready(mlp())
    sgd = driver(model, workers=2, every=2, shared="average")
    run(model, sgd, 3, (5,))
    other = ready(mlp(), seed=9)
    resumed = driver(other, workers=2, every=2, shared="average")
    load_through_a_file([model, sgd], [other, resumed])
    whole = masks(run(model, sgd, 9, (5,)))
    again = masks(run(other, resumed, 9, (5,)))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    assert are_equal(model, other)
    assert torch.equal(whole[1], whole[3]) and not torch.equal(whole[1], whole[5]), "worker 0 in rounds 2 and 3"
    reseeded = sgd_of(other, resumed.method, seed=6)
    fresh = driver(ready(mlp()), workers=2, every=2, shared="average")
    assert not torch.equal(
        masks(run(other, reseeded, 1, (5,)))[0], masks(run(fresh.parameters.model, fresh, 1, (5,)))[0]
    )


def test_copies_of_what_is_shared_wait_in_memory_and_the_mean_is_in_place_between_rounds() -> None:
    model = ready(mlp())
    sgd, start = driver(model, workers=3, every=2, shared="average"), model[5].bias.detach().clone()
    run(model, sgd, 1, (5,))
    assert torch.equal(model[5].bias, start), "worker 1 begins where worker 0 began"
    assert set(sgd.memory) == {"worker 0 5.bias", "worker 1 5.bias", "worker 2 5.bias"}
    first = sgd.memory["worker 0 5.bias"]
    assert not torch.equal(first, start)
    run(model, sgd, 2, (5,))
    assert torch.equal(model[5].bias, first), "worker 0 goes on from its own"
    run(model, sgd, 3, (5,))
    assert sgd.memory == {}


def test_what_all_workers_leave_alone_is_not_moved_by_the_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4))
    model.register_parameter("idle", nn.Parameter(torch.randn(1000)))
    model[2].bias.requires_grad_(False)
    before = model.idle.detach().clone(), model[2].bias.detach().clone()
    sgd = driver(model, workers=7, every=1, shared="average")
    for t in range(14):
        assert t == 0 or t == 7 or len(sgd.memory) == 7, "only what is trained is copied"
        sgd.step(lambda: nn.functional.mse_loss(model(torch.ones(2, 5)), torch.ones(2, 4)).backward() or 0.0)
    assert torch.equal(model.idle, before[0]) and torch.equal(model[2].bias, before[1])


def test_a_step_of_another_method_does_not_stop_the_round() -> None:
    model = ready(mlp())
    subnets = methods.independent_subnets(2, 2, shared="average")
    guard = Guard(1, lambda sight: sight.context.t in (0, 1, 6), methods.plain())
    sgd = sgd_of(model, replace(subnets.bind(model), guard=guard), RATE)
    steps = run(model, sgd, 8, (5,))
    assert [step.level is None for step in steps] == [t in (0, 1, 6) for t in range(8)]
    assert not {name for name in sgd.memory if name.startswith("worker")}


def test_a_worker_can_be_looked_at_and_taken_out() -> None:
    model = ready(mlp())
    sgd = driver(model, workers=2, every=2)
    steps, x = run(model, sgd, 2, (5,)), batch(0, 5)[0]
    model.eval()
    for step in steps:  # both workers have steps left in this round
        small = smaller(model, units_of(step, HIDDEN[mlp])).eval()
        torch.testing.assert_close(sgd.extract(step.level).eval()(x), small(x))


def rounds_of(steps: list[Step], workers: int) -> list[int]:
    """The lengths of the rounds, told by when the masks of worker 0 change; the last may go on."""
    masks = [torch.cat([torch.as_tensor(step.mask[f"{i}.bias"]) for i in (0, 2)]) for step in steps[::workers]]
    changes = [k for k in range(1, len(masks)) if not torch.equal(masks[k], masks[k - 1])]
    return [workers * (b - a) for a, b in itertools.pairwise([0, *changes])]


def cosine_by_hand(model: nn.Sequential, step: Step, t: int) -> float:
    """Between the worker's part of the gradient of the whole network and the gradient of the worker's network."""
    x, y = batch(t, 5)
    replace_all_batch_norm_modules_(model)  # the statistics of the batch, and none kept
    names = [n for n, _ in model.named_parameters()]
    mask = {n: torch.as_tensor(step.mask[n]).double().expand(p.shape) for n, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x.double(),)), y)

    whole = {n: p.detach() for n, p in model.named_parameters()}
    alone = {n: p if n == "5.bias" else p * mask[n] for n, p in whole.items()}  # what is shared is in every network
    g, h = (torch.cat([(grad(loss)(at)[n] * mask[n]).flatten() for n in names]) for at in (whole, alone))
    return float(nn.functional.cosine_similarity(g, h, dim=0))


def test_by_criterion_a_round_ends_when_the_mean_cosine_by_torch_func_is_below_the_bound() -> None:
    model, cosines, ends, taken = ready(mlp()), {}, [], []
    bound, began = BY_CRITERION["bound"], 0
    sgd = driver(model, workers=2, **BY_CRITERION)
    for t in range(60):
        before = copy.deepcopy(model)
        step = run(model, sgd, 1, (5,))[0]
        taken.append(step)
        assert step.level == f"worker {t % 2}" and step.backwards == 1 + bool(step.measurements)
        if step.measurements:
            cosines[t % 2] = cosine_by_hand(before, step, t)
            assert step.criteria.cosine == pytest.approx(cosines[t % 2])
        if t % 2 == 1 and (t + 1 - began == 12 or (len(cosines) == 2 and sum(cosines.values()) / 2 < 1 / bound)):
            ends.append(t + 1 - began)
            began, cosines = t + 1, {}
    assert rounds_of(taken, 2) == ends and len(set(ends)) > 2 and max(ends) == 12


BOUNDS = {
    "nothing exceeds": ({"every": 3}, {"every": 3, "bound": math.inf, "measure_every": 2}),
    "everything exceeds": ({"every": 1}, {"every": 20, "bound": 1.0, "measure_every": 1}),
}


@pytest.mark.parametrize("settings", BOUNDS.values(), ids=BOUNDS)
def test_a_bound_that_all_or_nothing_exceeds_leaves_rounds_of_fixed_length_to_the_bit(settings) -> None:
    """After each measured turn of the workers, or after three of them, the mean of their copies is put in place."""
    runs = []
    for options in (settings[0], {**settings[1], "repartition": "criterion"}):
        model = ready(mlp())
        sgd, has_copies = driver(model, momentum=0.9, workers=3, shared="average", **options), []
        for _ in range(22):
            run(model, sgd, 1, (5,))
            has_copies.append(any(key.endswith("5.bias") for key in sgd.memory))
        runs.append((has_copies, model.state_dict()))
    turn = 3 * settings[0]["every"]
    assert runs[0][0] == runs[1][0] == [t % turn != turn - 1 for t in range(22)]
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())


COSINES = [((0.5, 0.5, 0.5), True), ((0.5, 0.5, 0.49), False), ((1.0, 0.9, -0.39), True), ((math.nan, 1.0, 1.0), False)]


@pytest.mark.parametrize(("cosines", "goes_on"), COSINES)
def test_a_round_goes_on_while_the_mean_cosine_is_at_least_one_over_the_bound(cosines, goes_on: bool) -> None:
    workers = tuple(f"worker {i}" for i in range(3))
    measured: dict = {}
    for worker, cosine in zip(workers, cosines, strict=True):
        add_to_summary(measured, worker, Criteria(2.0, 1.0, 1.0, 1.0, cosine, 1.0, 1.0))
    context = Context(3, 0, Parameters(nn.Linear(1, 1)), {}, measured=measured)
    assert Rounds(workers, 4, bound=2.0).of(context) == ((0, 0) if goes_on else (1, 3))


def test_by_criterion_the_next_round_can_be_looked_at_before_it_begins() -> None:
    model = ready(mlp())
    options = {"workers": 2, "repartition": "criterion", "bound": 1.0, "measure_every": 2}
    sgd = driver(model, **options)
    for _ in range(6):
        run(model, sgd, 2, (5,))
        shown = sgd.extract("worker 1")
        other = _copy_of(sgd, **options)
        kept = run(other.parameters.model, other, 2, (5,))[1].mask["0.bias"]
        assert torch.equal(shown[0].weight.abs().sum(1) > 0, kept), "its units, and no others, are in"


def _copy_of(sgd: PartialSGD, **options) -> PartialSGD:
    other = driver(copy.deepcopy(sgd.parameters.model), **options)
    other.load_state_dict(sgd.state_dict())
    return other


def test_by_criterion_a_resumed_run_ends_its_rounds_at_the_same_steps() -> None:
    options = {"workers": 2, "shared": "average", **BY_CRITERION}
    model = ready(mlp())
    sgd = driver(model, **options)
    run(model, sgd, 17, (5,))
    other = ready(mlp(), seed=9)
    resumed = driver(other, **options)
    load_through_a_file([model, sgd], [other, resumed])
    run(model, sgd, 43, (5,))
    run(other, resumed, 43, (5,))
    assert all(sgd.memory[key] == resumed.memory[key] for key in ("round", "round.began"))
    assert sgd.memory["round"] > 60 // 12, "some have ended early"
    assert are_equal(model, other)


def test_models_that_cannot_be_split_are_refused() -> None:
    assert "repartition" not in methods.independent_subnets().name, "a state of before is still one of it"
    assert "hidden=(('0', '2'),)" in methods.independent_subnets(hidden=("0", "2")).name
    with pytest.raises(ValueError, match="'2' has 7 units and cannot be split among 8 workers"):
        methods.independent_subnets(8).bind(mlp())
    with pytest.raises(ValueError, match="Quadratic has no hidden units"):
        methods.independent_subnets().bind(Quadratic())
