"""Two methods at once against loops that do both by hand, and the pairs that have no meaning."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import Branch, Context, LowRank, Mask, Method, Nested, PartialSGD, masks, methods, nest
from partialsgd.testing.runs import assert_same_bits
from tests import training
from tests.methods.test_stages import mlp
from tests.methods.training import MLP, are_equal, assert_close, backward, sgd_of, train, values
from tests.training import family

LAWS = {
    "": methods.compose(methods.top_k(0.3), methods.extragradient(0.02)),
    "freezing": methods.compose(methods.freezing(steps=4, start=0.0), methods.sam(0.1, interval=2)),
}
REFUSED_PROBLEMS = {"freezing": ("quadratic",)}


def low_rank() -> Nested:
    torch.manual_seed(0)
    return nest(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)), LowRank(0.25))


def cos_loss(model: nn.Module, t: int = 0) -> Tensor:
    return backward(lambda: model(torch.arange(24.0).view(4, 6).cos()).square().sum())()


def square_loss(model: nn.Module, t: int) -> Tensor:
    return backward(lambda: model(torch.randn(4, 6, generator=torch.Generator().manual_seed(t))).square().sum())()


def evaluate(nested: nn.Module, t: int) -> Tensor:
    generator = torch.Generator().manual_seed(t)
    x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
    return F.cross_entropy(nested(x), y)


def step_loss(nested: nn.Module, t: int) -> Tensor:
    return backward(lambda: evaluate(nested, t))()


def gradient_at(nested: Nested, level: str, t: int) -> dict[str, Tensor]:
    with nested.at(level):
        step_loss(nested, t)
    found = {n: p.grad for n, p in nested.named_parameters() if p.grad is not None}
    nested.zero_grad()
    return found


def test_alternating_and_sam_perturb_each_level_by_its_own_gradient() -> None:
    """By hand: at its level, up by rho along the level's gradient, the gradient there, back, one step."""
    nested, twin = low_rank(), low_rank()
    sgd = sgd_of(nested, methods.compose(methods.alternating(), methods.sam(0.2)), momentum=0.9)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    named = dict(twin.named_parameters())
    for t in range(6):
        level = ("full", "core")[t % 2]
        step = train(sgd, step_loss)[0]
        assert step.level == level and step.backwards == 2
        g = gradient_at(twin, level, t)
        assert level == "full" or len(g) < len(named), "the core leaves parameters out"
        norm = torch.stack([v.norm() for v in g.values()]).norm()
        saved = {n: named[n].detach().clone() for n in g}
        with torch.no_grad():
            for n, v in g.items():
                named[n].add_(0.2 * v / norm)
        uphill = gradient_at(twin, level, t)
        with torch.no_grad():
            for n, value in saved.items():
                named[n].copy_(value)
        for n, p in named.items():
            p.grad = uphill.get(n)
        optimizer.step()
        optimizer.zero_grad()
        assert_close(nested, twin, rtol=1e-5, atol=1e-6)


def test_sam_by_intervals_is_counted_for_each_level() -> None:
    nested = low_rank()
    sgd = sgd_of(nested, methods.compose(methods.alternating(), methods.sam(0.1, interval=2)))
    passes = [(step.level, step.backwards) for step in train(sgd, step_loss, 8)]
    assert passes == [("full", 2), ("core", 2), ("full", 1), ("core", 1)] * 2


def test_alternating_and_top_k_move_the_largest_gradients_of_the_level_in_one_pass() -> None:
    nested = low_rank()
    sgd = sgd_of(nested, methods.compose(methods.alternating(), methods.top_k(0.2)))
    for t in range(4):
        level = ("full", "core")[t % 2]
        g = gradient_at(copy.deepcopy(nested), level, t)
        step = train(sgd, step_loss)[0]
        assert step.backwards == 1
        flat = torch.cat([v.abs().flatten() for v in g.values()])
        k = round(0.2 * len(flat))
        least = flat.topk(k).values.min()
        assert step.mask.count() == k
        for n, entry in step.mask.items():
            expected = g[n].abs() >= least if n in g else torch.zeros(nested.get_parameter(n).shape, dtype=torch.bool)
            assert torch.equal(torch.as_tensor(entry).expand(expected.shape), expected)


ALONE = [
    (methods.compose(methods.freezing(steps=2, start=0.0), methods.sam(0.1)), methods.sam(0.1)),
    (methods.compose(methods.meprop(2), methods.freezing(steps=2, start=0.0)), methods.meprop(2)),
    (methods.compose(methods.dropout(0.6), methods.random_mask(0.5)), methods.dropout(0.6)),
]


@pytest.mark.parametrize(("method", "alone"), ALONE, ids=["freezing and sam", "meprop and freezing", "dropout"])
def test_what_moves_goes_by_the_gradient_of_the_method_alone(method: Method, alone: Method) -> None:
    """What the other method holds is still in the network: a perturbation looks at its own mask."""
    model, twin = mlp(4), mlp(4)
    before = values(model)
    (step,) = train(sgd_of(model, method, 0.01, seed=2), cos_loss)
    train(sgd_of(twin, alone, 0.01, seed=2), cos_loss)
    for n, entry in step.mask.items():
        expected = torch.where(torch.as_tensor(entry), twin.get_parameter(n), before[n])
        assert torch.equal(model.get_parameter(n), expected)
    assert 0 < step.mask.count() < sum(p.numel() for p in model.parameters())


def test_with_plain_it_is_the_other_to_the_bit() -> None:
    for method in (methods.sam(0.1), methods.top_k(0.3), methods.compressed_gradient(0.2)):
        for composed in (methods.compose(method, methods.plain()), methods.compose(methods.plain(), method)):
            (a, ours), (b, alone) = (
                (m, PartialSGD(m, torch.optim.Adam(m.parameters()), made))
                for m, made in ((MLP.model(), composed), (MLP.model(), method))
            )
            for t in range(4):
                assert ours.step(MLP.closure(a, t)).backwards == alone.step(MLP.closure(b, t)).backwards
            assert are_equal(a, b)


def test_a_projection_looks_at_its_own_mask() -> None:
    """freezing × AC/DC: a frozen stage is pruned to the share asked for, not to nothing."""
    model = mlp(3)
    method = methods.compose(
        methods.freezing(steps=1, start=0.0), methods.ac_dc(0.5, warmup=1, sparse=5, dense=1, scope="layer")
    )
    train(sgd_of(model, method, 0.01), cos_loss, 3)
    assert [int((model[k].weight == 0).sum()) for k in (0, 2, 4)] == [18, 18, 18]


def test_two_chains_on_one_network() -> None:
    """freezing × block_coordinate: the active block, if it is not frozen; the gradient mode comes back."""
    model = mlp(4)
    first = methods.freezing(steps=4, start=0.5)  # stages stop at t = 2, 8/3, 10/3
    sgd = sgd_of(model, methods.compose(first, methods.block_coordinate(2, every=1)), 0.01)
    moving = []
    for _ in range(4):
        mask = train(sgd, cos_loss)[0].mask
        moving.append([k for k in range(4) if mask[f"{2 * k}.weight"] is True])
        assert torch.is_grad_enabled()
    assert moving[:2] == [[0, 1], [2, 3]] and moving[2] == [1] and moving[3] == [2, 3]


def test_step_sizes_multiply() -> None:
    half = Method(scale=lambda context: 0.5, name="half")
    (a, ours), (b, alone) = (
        (m, sgd_of(m, made, lr))
        for m, lr, made in ((MLP.model(), 0.4, methods.compose(half, half)), (MLP.model(), 0.1, methods.plain()))
    )
    ours.step(MLP.closure(a, 0))
    alone.step(MLP.closure(b, 0))
    assert are_equal(a, b)


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_what_one_part_measures_is_measured_of_the_composition(first: bool) -> None:
    """top_k × scaled_by_alpha(sam): α of the coordinates that move, as if the composition had been scaled."""
    for mask in (methods.top_k(0.3), methods.random_mask(0.5)):
        part = methods.scaled_by_alpha(methods.sam(0.5), every=2)
        parts = (part, mask) if first else (mask, part)
        plain = (methods.sam(0.5), mask) if first else (mask, methods.sam(0.5))
        runs = []
        for method in (methods.compose(*parts), methods.scaled_by_alpha(methods.compose(*plain), every=2)):
            model = MLP.model()
            sgd = sgd_of(model, method, seed=2)
            steps = [sgd.step(MLP.closure(model, t)) for t in range(5)]
            assert [len(step.measurements) for step in steps] == [1, 0, 1, 0, 1]
            runs.append(([step.lr for step in steps], list(model.parameters())))
        assert runs[0][0] == runs[1][0] and max(runs[0][0]) < 0.1
        assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_the_graph_is_cut_also_where_the_other_mask_waits_for_the_gradient() -> None:
    model = mlp(4)
    sgd = sgd_of(model, methods.compose(methods.top_k(0.5), methods.freezing(steps=30, start=0.0)), 0.01)

    def closure() -> Tensor:
        loss = cos_loss(model)
        assert model[0].weight.grad is None and model[2].weight.grad is not None
        return loss

    first = train(sgd, cos_loss)[0]  # looked at
    assert first.mask.count() == round(0.5 * 3 * 42)
    step = sgd.step(closure)
    assert step.mask["0.weight"] is False and step.mask.count() == round(0.5 * 3 * 42)


OTHERS = [
    *(methods.top_k(0.1), methods.extragradient(0.05, past=True), methods.sam(0.1), methods.random_mask(0.5)),
    *(methods.compressed_gradient(0.1), methods.compressed_gradient(0.1, kind="random-k")),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda m: m.name)
@pytest.mark.parametrize("stages", ["freezing", "criterion", "block_coordinate", "layerwise"])
def test_a_cut_changes_no_bit_of_a_composition(other: Method, stages: str) -> None:
    """What the other method ranks or remembers is what may move, computed or not."""
    make = {
        "freezing": lambda cut: methods.freezing(steps=5, start=0.2, cut=cut),
        "criterion": lambda cut: methods.freezing("criterion", budget=1.5, every=2, cut=cut),
        "block_coordinate": lambda cut: methods.block_coordinate(every=2, order="random", cut=cut),
        "layerwise": lambda cut: methods.layerwise(2, cut=cut),
    }[stages]
    results = []
    for cut in (True, False):
        model = mlp(4)
        sgd = sgd_of(model, methods.compose(make(cut), other), 0.02, momentum=0.9, seed=4)
        counts = [step.mask.count() for step in train(sgd, square_loss, 8)]
        assert min(counts) > 0
        results.append((counts, values(model)))
    assert results[0][0] == results[1][0]
    assert_same_bits(results[0][1], results[1][1])


def test_a_level_of_numbers_is_dropped_by_its_own_mask() -> None:
    """dynamic_sparsity × freezing: a frozen stage is held, not dropped."""
    model = mlp(3)
    sgd = sgd_of(model, methods.compose(methods.dynamic_sparsity((0.5,)), methods.freezing(steps=2, start=0.0)), 0.01)
    zeros = []

    def closure() -> Tensor:
        zeros.append(sum(int((model[k].weight == 0).sum()) for k in (0, 2, 4)))
        return cos_loss(model)

    for _ in range(4):
        sgd.step(closure)
    assert zeros == [0, 54, 0, 54]


def test_what_is_chosen_among_does_not_depend_on_how_the_mask_is_stored() -> None:
    """A tensor that is all False is as much outside as one that is written as False."""
    counts = []
    for outside in (False, torch.zeros(6, 6, dtype=torch.bool)):
        held = Method(mask=lambda c, m=outside: masks.from_tensors(c.parameters, {"0.weight": m}, rest=True))
        (step,) = train(sgd_of(mlp(3), methods.compose(held, methods.top_k(0.5))), cos_loss)
        counts.append(step.mask.count())
    assert counts == [round(0.5 * (3 * 42 - 36))] * 2


def test_what_is_outside_a_level_does_not_enter_the_memory() -> None:
    model = mlp(3)
    sgd = sgd_of(model, methods.compose(methods.dynamic_sparsity((0.8,)), methods.compressed_gradient(0.5)), 0.0)
    unsent = []
    for _ in range(2):
        train(sgd, cos_loss)[0]
        unsent.append(sgd.memory["part 2.unsent.2.weight"])
    outside = sgd.extract("0.8")[2].weight == 0
    assert torch.equal(unsent[1][outside], unsent[0][outside]) and not torch.equal(unsent[0], unsent[1])


REFUSED_PAIRS = [
    ((methods.sam(), methods.extragradient()), r"sam.* and extragradient.* both perturb"),
    ((methods.dropout(), methods.sam()), "both perturb"),
    ((methods.dynamic_sparsity((0.5,)), methods.sam()), "both perturb the numbers of x"),
    ((methods.sam(), methods.independent_subnets()), "both perturb the numbers of x"),
    ((methods.alternating(), methods.only()), "both take their own branches"),
    ((methods.ac_dc(), methods.independent_subnets(shared="average")), "both project"),
    ((methods.block_coordinate(free=True), methods.ac_dc()), "both drop optimizer state"),
    ((methods.guarded(methods.dropout()), methods.top_k()), "guard the composition"),
    ((methods.alternating(order="criterion"), methods.scaled_by_alpha(methods.top_k())), "both measure"),
    ((methods.compressed_gradient(0.1), methods.compressed_gradient(0.2)), "both correct the gradient"),
]


@pytest.mark.parametrize(("parts", "message"), REFUSED_PAIRS)
def test_pairs_without_a_meaning_are_refused(parts, message: str) -> None:
    model = mlp() if any(part.name.startswith(("independent", "block")) for part in parts) else family()
    with pytest.raises(ValueError, match=message):
        methods.compose(*parts).bind(model)


def test_a_pair_whose_branches_show_it_is_refused_when_they_do() -> None:
    nested = family()
    sgd = sgd_of(nested, methods.compose(methods.slimmable(), methods.compressed_gradient(0.1)))
    before = [p.detach().clone() for p in nested.parameters()]
    with pytest.raises(ValueError, match="corrects one gradient, and slimmable"):
        sgd.step(lambda: nested(torch.ones(4, 6)).square().sum().backward() or 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, nested.parameters(), strict=True))


def test_parts_draw_for_themselves_however_they_are_nested() -> None:
    one, more = (methods.random_mask(share, where=["weight"]) for share in (0.5, 0.6))
    for method, share in (
        (methods.compose(more, one), 0.3),
        (methods.compose(methods.compose(one, one), one), 0.125),
        (methods.compose(one, methods.compose(one, one)), 0.125),
    ):
        model = nn.Linear(200, 200)
        mask = sgd_of(model, method).step(backward(lambda model=model: model(torch.ones(1, 200)).sum())).mask
        assert float(mask["weight"].float().mean()) == pytest.approx(share, abs=0.01)


def test_parts_keep_their_memories_apart() -> None:
    """Sparsity masks of one and of the other lie under the same names; error feedback and past gradients do not."""
    pruning = methods.ac_dc(0.5, warmup=1, sparse=3, dense=1, reset=False)
    sgd = sgd_of(mlp(3), methods.compose(pruning, methods.compressed_gradient(0.5)), 0.01)
    for t in range(5):
        train(sgd, cos_loss)
        assert all(key.startswith(("part 2.unsent.", "magnitudes.")) for key in sgd.memory)
        assert any(key.startswith("magnitudes.") for key in sgd.memory) == (1 <= t < 4)
    two = methods.compose(methods.sam(0.1, interval=2), methods.top_k(0.5))
    sgd = sgd_of(mlp(2), methods.compose(two, methods.compressed_gradient(0.5)))
    train(sgd, cos_loss)
    assert {key.partition(".")[0] for key in sgd.memory} == {"sam", "part 3"}


def test_the_rule_that_compares_gradients_is_kept() -> None:
    """Of a method with branches, where the branches agree; of one without, where its micro-batches do."""

    def agree(context: Context) -> Mask:
        a, b = context.gradients
        return masks.from_tensors(context.parameters, {name: a[name] * b[name] > 0 for name in a})

    branches = Method(agree, branches=lambda c: [Branch(level="a"), Branch(level="b")], name="branches")
    for method in (branches, Method(agree, name="micro-batches")):
        runs = [training.start(m) for m in (method, methods.compose(method, methods.random_mask(0.5)))]
        for model, sgd in runs:
            for g in sgd.gradients():
                for k in (0, 1) if g.level is None else (int(g.level == "b"),):
                    with g:
                        training.MLP.closure(model, k)()
        alone, composed = (sgd.update().mask for _, sgd in runs)
        assert composed.count() < alone.count() and (composed & ~alone).count() == 0
