"""The masked update of every optimizer against its definition, and what is refused."""

from __future__ import annotations

import copy

import pytest
import pytorch_optimizer
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from partialsgd import Mask, Method, PartialSGD, masks
from partialsgd.engine.masked_update import MaskedUpdate
from partialsgd.optimizers.capabilities import initial_state, per_coordinate
from partialsgd.parameters import Parameters
from tests.functions import backward
from tests.optimizer_zoo import ALL, COORDINATE_WISE, COUPLED


class Free(nn.Module):
    """Two matrices whose gradient is whatever the test wants."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(shapes))
        self.x = nn.ParameterList([nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes])

    def closure(self, t: int):
        def run() -> Tensor:
            return backward(sum((p * _gradient(p.shape, t, k)).sum() for k, p in enumerate(self.x)))

        return run


def _gradient(shape: torch.Size, t: int, k: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * k + t))


def following(sequence: list[dict[str, bool | Tensor]]) -> Method:
    return Method(mask=lambda c: masks.from_tensors(c.parameters, sequence[c.t]), name="following")


def start(make, sequence, *shapes, **options):
    model = Free(*shapes)
    optimizer = make(list(model.parameters()))
    return model, optimizer, PartialSGD(model, optimizer, following(sequence), **options)


def state_of(optimizer: optim.Optimizer, p: nn.Parameter) -> dict[str, Tensor]:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in optimizer.state.get(p, {}).items()}


def definition(model: Free, optimizer: optim.Optimizer, mask: Mask, t: int) -> None:
    """One dense step with the masked gradient; then everything outside is put back, number by number."""
    for p in model.parameters():
        p.grad = None
    model.closure(t)()
    before = {p: (p.detach().clone(), state_of(optimizer, p)) for p in model.parameters()}
    masked = {p: p.grad * torch.as_tensor(mask[n]) for n, p in model.named_parameters() if mask[n] is not False}
    for alone, gradient in masked.items():  # one at a time: torch's fused SGD cannot start them at different times
        for p in model.parameters():
            p.grad = gradient if p is alone else None
        optimizer.step()
    for name, p in model.named_parameters():
        entry = mask[name]
        if isinstance(entry, bool):
            continue
        old, old_state = before[p]
        with torch.no_grad():
            p.copy_(torch.where(entry, p, old))
            for key, value in per_coordinate(optimizer.state[p], p).items():
                start = torch.full_like(value, initial_state(optimizer, optimizer.param_groups[0], key))
                held = old_state.get(key)
                value.copy_(torch.where(entry, value, start if held is None else held))


def equal_runs(a: tuple[Free, optim.Optimizer], b: tuple[Free, optim.Optimizer]) -> bool:
    for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True):
        s, u = state_of(a[1], p), state_of(b[1], q)
        if not torch.equal(p, q) or s.keys() != u.keys():
            return False
        if not all(torch.equal(torch.as_tensor(s[k]), torch.as_tensor(u[k])) for k in s if s[k] is not None):
            return False
    return True


@st.composite
def sequences(draw, element: bool):
    # Muon takes matrices only; for elements anything from vectors to what a convolution has
    sizes = st.lists(st.integers(1, 9), min_size=1 if element else 2, max_size=4 if element else 2)
    shapes = [tuple(draw(sizes)) for _ in range(2)]
    steps = []
    for t in range(4):
        entries: dict[str, bool | Tensor] = {}
        for k, shape in enumerate(shapes):
            kind = draw(st.sampled_from(["all", "none", "some"] if element else ["all", "none"]))
            some = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 999)) + t)) < 0.5
            entries[f"x.{k}"] = {"all": True, "none": False, "some": some}[kind]
        steps.append(entries)
    return shapes, steps


def check_law_1(make, shapes, sequence) -> None:
    model, optimizer, sgd = start(make, sequence, *shapes)
    twin = Free(*shapes)
    reference = make(list(twin.parameters()))
    for t in range(len(sequence)):
        before = {n: (p.detach().clone(), state_of(optimizer, p)) for n, p in model.named_parameters()}
        mask = sgd.step(model.closure(t)).mask
        definition(twin, reference, mask, t)
        assert equal_runs((model, optimizer), (twin, reference)), f"not the definition at t = {t}"
        for name, p in model.named_parameters():
            assert_held(mask[name], p, state_of(optimizer, p), *before[name])


def assert_held(entry, p, now, value, state) -> None:
    outside = ~entry if isinstance(entry, Tensor) else torch.full(p.shape, not entry)
    assert torch.equal(p[outside], value[outside])
    for key, old in per_coordinate(state, p).items():
        assert torch.equal(now[key][outside], old[outside]), f"{key} moved outside"
    if entry is False:
        assert now.keys() == state.keys()
        assert all(torch.equal(torch.as_tensor(now[k]), torch.as_tensor(state[k])) for k in now if now[k] is not None)


@pytest.mark.parametrize("name", ALL)
def test_whole_tensors_outside_are_held_by_every_optimizer(name: str, record_property) -> None:
    record_property("matrix", ("optimizer", name, "whole tensors", "holds"))

    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(sequences(element=False))
    def run(case) -> None:
        check_law_1(ALL[name], *case)

    run()


@pytest.mark.parametrize("name", COORDINATE_WISE)
def test_elements_outside_are_held_by_every_coordinate_wise_optimizer(name: str, record_property) -> None:
    record_property("matrix", ("optimizer", name, "elements", "holds"))

    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(sequences(element=True))
    def run(case) -> None:
        check_law_1(COORDINATE_WISE[name], *case)

    run()


@pytest.mark.parametrize("name", COUPLED)
def test_elements_are_refused_where_coordinates_are_coupled(name: str, record_property) -> None:
    record_property("matrix", ("optimizer", name, "elements", "refused"))
    some = torch.eye(4, dtype=torch.bool)
    model, _, sgd = start(COUPLED[name], [{"x.0": some}], (4, 4))
    before = model.x[0].detach().clone()
    with pytest.raises(NotImplementedError, match=rf"{name}.*'x.0'.*whole tensors"):
        sgd.step(model.closure(0))
    assert torch.equal(model.x[0], before) and sgd.t == 0 and model.x[0].grad is None


def test_lbfgs_and_sparse_adam_are_refused(record_property) -> None:
    record_property("matrix", ("optimizer", "LBFGS", "whole tensors", "refused"))
    model = Free((2, 2))
    for method in (following([{}]), Method()):
        with pytest.raises(NotImplementedError, match=r"LBFGS evaluates the closure itself.*use another optimizer"):
            PartialSGD(model, [optim.LBFGS(model.parameters())], method)
    with pytest.raises(NotImplementedError, match="SparseAdam"):
        PartialSGD(model, optim.SparseAdam(list(model.parameters())))


def test_large_tensors_take_the_fast_select_and_agree() -> None:
    shapes = [(300, 257), (70, 1000)]
    masked = [
        [torch.rand(s, generator=torch.Generator().manual_seed(t)) < d for s in shapes]
        for t, d in enumerate((0.01, 0.5, 0.9))
    ]
    sequence = [{f"x.{k}": m for k, m in enumerate(step)} for step in masked]
    for name in ("SGD momentum wd", "Adam fused", "RMSprop centered"):
        check_law_1(COORDINATE_WISE[name], shapes, sequence)


@pytest.mark.parametrize(
    ("name", "same"), [("SGD momentum wd", True), ("RMSprop", True), ("Adam", False), ("NAdam", False)]
)
def test_an_element_mask_and_the_same_mask_as_blocks(name: str, same: bool) -> None:
    """The same gradients always; the same trajectory where no per-tensor counter enters."""
    make = COORDINATE_WISE[name]
    top = torch.arange(4).view(4, 1).expand(4, 3) < 2
    element = [{"x.0": True}, {"x.0": top}, {"x.0": ~top}, {"x.0": True}]
    block = [{"x.0": True, "x.1": True}, {"x.0": True}, {"x.1": True}, {"x.0": True, "x.1": True}]
    whole, _, one = start(make, element, (4, 3))
    parts, _, two = start(make, block, (2, 3), (2, 3))
    with torch.no_grad():
        for k in (0, 1):
            parts.x[k].copy_(whole.x[0][2 * k : 2 * k + 2])
    for t in range(4):
        gradient = _gradient(torch.Size([4, 3]), t, 0)
        one.step(lambda g=gradient: _descend([whole.x[0]], [g]))
        two.step(lambda g=gradient: _descend(list(parts.x), list(g.split(2))))
    assert torch.equal(whole.x[0], torch.cat(list(parts.x))) == same


def _descend(parameters: list[nn.Parameter], gradients: list[Tensor]) -> Tensor:
    return backward(sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True)))


@pytest.mark.parametrize("name", ["SGD momentum wd", "Adam", "AdamW fused", "RMSprop"])
@pytest.mark.parametrize("kind", ["whole", "element"])
def test_decay_lets_moments_decay_and_moves_no_parameter(name: str, kind: str) -> None:
    some = torch.eye(4, dtype=torch.bool)
    inside: bool | Tensor = False if kind == "whole" else some
    model, optimizer, sgd = start(COORDINATE_WISE[name], [{"x.0": True}, {"x.0": inside}], (4, 4), outside="decay")
    twin = Free((4, 4))
    raw = COORDINATE_WISE[name](list(twin.parameters()))
    definition(twin, raw, masks.everything(twin), 0)
    sgd.step(model.closure(0))
    before = model.x[0].detach().clone()
    sgd.step(model.closure(1))
    outside = ~torch.as_tensor(inside).expand(4, 4)
    assert torch.equal(model.x[0][outside], before[outside])
    twin.x[0].grad = _gradient(torch.Size([4, 4]), 1, 0) * torch.as_tensor(inside)
    raw.step()
    for key, value in state_of(raw, twin.x[0]).items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer.state[model.x[0]][key])), key


@pytest.mark.parametrize("name", sorted(COORDINATE_WISE))
def test_reset_of_a_whole_tensor_is_a_new_optimizer_for_it(name: str) -> None:
    sequence = [{"x.0": True, "x.1": True}] * 3 + [{"x.1": True}] + [{"x.0": True, "x.1": True}] * 2
    model, optimizer, sgd = start(COORDINATE_WISE[name], sequence, (3, 3), (2, 2), outside="reset")
    for t in range(4):
        sgd.step(model.closure(t))
    fresh = Free((3, 3))
    with torch.no_grad():
        fresh.x[0].copy_(model.x[0])
    raw = COORDINATE_WISE[name](list(fresh.parameters()))
    for t in (4, 5):
        sgd.step(model.closure(t))
        raw.zero_grad()
        fresh.closure(t)()
        raw.step()
        assert torch.equal(model.x[0], fresh.x[0])
    assert equal_runs((fresh, raw), (Holder(model.x[0]), optimizer))


class Holder(nn.Module):
    def __init__(self, p: nn.Parameter) -> None:
        super().__init__()
        self.p = p


RESETS_ELEMENTS = {
    *("SGD", "SGD momentum wd", "SGD nesterov foreach", "SGD fused", "RMSprop", "RMSprop centered"),
    *("Adadelta", "Rprop", "Adagrad fused"),
}


@pytest.mark.parametrize("name", sorted(COORDINATE_WISE))
def test_reset_of_part_of_a_tensor_is_refused_where_counters_would_make_it_wrong(name: str) -> None:
    top = torch.arange(4).view(4, 1).expand(4, 4) < 2
    sequence = [{"x.0": True}] * 3 + [{"x.0": top}, {"x.0": True}]
    model, _, sgd = start(COORDINATE_WISE[name], sequence, (4, 4), outside="reset")
    for t in range(3):
        sgd.step(model.closure(t))
    before = model.x[0].detach().clone()
    if name not in RESETS_ELEMENTS:
        with pytest.raises(NotImplementedError, match=r"reset part of a tensor.*'x.0'.*outside='hold'"):
            sgd.step(model.closure(3))
        assert torch.equal(before, model.x[0]) and sgd.t == 3
        return
    sgd.step(model.closure(3))
    fresh = Free((4, 4))
    with torch.no_grad():
        fresh.x[0].copy_(model.x[0])
    raw = COORDINATE_WISE[name](list(fresh.parameters()))
    sgd.step(model.closure(4))
    fresh.closure(4)()
    raw.step()
    assert torch.equal(model.x[0][~top], fresh.x[0][~top]), "what re-enters moves as if it were new"
    assert name == "SGD" or not torch.equal(model.x[0][top], fresh.x[0][top]), "what stayed keeps its state"


@pytest.mark.parametrize("outside", ["hold", "decay", "reset"])
def test_every_policy_survives_a_saved_state(outside: str) -> None:
    top = torch.arange(4).view(4, 1).expand(4, 4) < 2
    sequence = [{"x.0": True, "x.1": True}, {"x.0": top}, {"x.0": ~top, "x.1": True}, {"x.0": True, "x.1": True}]
    make = COORDINATE_WISE["RMSprop centered"]
    whole, optimizer, sgd = start(make, sequence, (4, 4), (2, 2), outside=outside)
    for t in range(2):
        sgd.step(whole.closure(t))
    saved = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), sgd.state_dict()))
    for t in (2, 3):
        sgd.step(whole.closure(t))
    resumed, other, again = start(make, sequence, (4, 4), (2, 2), outside=outside)
    for target, state in zip((resumed, other, again), saved, strict=True):
        target.load_state_dict(state)
    for t in (2, 3):
        again.step(resumed.closure(t))
    assert equal_runs((whole, optimizer), (resumed, other))


class MovesWithoutGradient(optim.SGD):
    """Decays every parameter, as one well-known optimizer does."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
                p.mul_(0.9)
        return super().step(closure)


def test_a_foreign_optimizer_that_moves_what_has_no_gradient_is_found_out() -> None:
    sequence = [{"x.0": True, "x.1": True}, {"x.0": True}]
    model, optimizer, sgd = start(lambda p: MovesWithoutGradient(p, 0.1, momentum=0.9), sequence, (2, 2), (3, 3))
    sgd.step(model.closure(0))
    before = [p.detach().clone() for p in model.parameters()], [state_of(optimizer, p) for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"MovesWithoutGradient changed 'x.1'"):
        sgd.step(model.closure(1))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before[0], strict=True))
    for p, old in zip(model.parameters(), before[1], strict=True):
        now = state_of(optimizer, p)
        assert now.keys() == old.keys() and all(
            torch.equal(torch.as_tensor(now[k]), torch.as_tensor(old[k])) for k in now
        )
    assert sgd.t == 1 and optimizer.param_groups[0]["steps"] == 1


def test_undoing_a_foreign_step_undoes_the_steps_of_its_neighbours() -> None:
    model = Free((2, 2), (3, 3), (4, 4))
    adam = optim.AdamW([model.x[0]], 0.1)
    sequence = [{f"x.{k}": True for k in range(3)}, {"x.0": True, "x.1": True}]
    sgd = PartialSGD(model, [adam, MovesWithoutGradient([model.x[1], model.x[2]], 0.1)], following(sequence))
    sgd.step(model.closure(0))
    before = state_of(adam, model.x[0])
    with pytest.raises(RuntimeError, match="the step was undone"):
        sgd.step(model.closure(1))
    now = state_of(adam, model.x[0])
    assert all(torch.equal(now[k], before[k]) for k in before)


def test_foreign_optimizers_are_probed_for_elements() -> None:
    some = torch.eye(4, dtype=torch.bool)
    check_law_1(
        lambda p: pytorch_optimizer.Lion(p, 0.01), [(4, 4), (3, 2)], [{"x.0": True}, {"x.0": some, "x.1": True}]
    )
    model, _, sgd = start(lambda p: pytorch_optimizer.Lamb(p, 0.01), [{"x.0": some}], (4, 4))
    before = model.x[0].detach().clone()
    with pytest.raises(NotImplementedError, match=r"Lamb.*couples"):
        sgd.step(model.closure(0))
    assert torch.equal(before, model.x[0])


def test_parameters_and_optimizers_must_match() -> None:
    model = Free((2, 2), (3, 3))
    with pytest.raises(ValueError, match=r"'x.1' first.*after nest"):
        PartialSGD(model, optim.SGD([model.x[0]], 0.1))
    with pytest.raises(ValueError, match=r"shape \(5,\).*after nest"):
        PartialSGD(model, optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(5))], 0.1))
    with pytest.raises(ValueError, match=r"'x\.0' is in two"):
        PartialSGD(model, [optim.SGD(model.parameters(), 0.1), optim.SGD([model.x[0]], 0.1)])


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    sgd = PartialSGD(model, optim.SGD(model.parameters(), 0.1))
    before = model.weight.detach().clone()
    with pytest.raises(NotImplementedError, match=r"'weight' is sparse.*sparse=False"):
        sgd.step(lambda: _descend_sum(model(torch.tensor([1, 2]))))
    assert torch.equal(before, model.weight) and model.weight.grad is None


def _descend_sum(outputs: Tensor) -> Tensor:
    return backward(outputs.sum())


def test_whole_tensor_masks_keep_no_copies() -> None:
    model, _, sgd = start(COORDINATE_WISE["Adam fused"], [{"x.0": True}] * 2, (4, 4), (5, 5))
    for t in range(2):
        sgd.step(model.closure(t))
    assert not sgd.parameters.scratch._free


def test_alpha_is_a_factor_of_the_step_or_refused() -> None:
    """ASGD takes its rate from its state, one step late; Rprop takes none after the first."""
    for name, make in ALL.items():
        model = Free((4, 4))
        optimizer = make(list(model.parameters()))
        sgd = PartialSGD(model, optimizer, Method(scale=lambda c: 1.0 if c.t < 2 else 0.0))
        for t in range(2):
            sgd.step(model.closure(t))
        before = model.x[0].detach().clone()
        if name in ("ASGD", "Rprop"):
            with pytest.raises(NotImplementedError, match=rf"{name} cannot step by α = 0.0"):
                sgd.step(model.closure(2))
        else:
            sgd.step(model.closure(2))
        assert torch.equal(before, model.x[0]), name
    with pytest.raises(ValueError, match="returned nan"):
        PartialSGD(model, optim.SGD(model.parameters(), 0.1), Method(scale=lambda c: float("nan"))).step(
            model.closure(0)
        )


def test_fused_sgd_steps_newcomers_once_and_no_one_else() -> None:
    model = Free((2, 2), (3, 3), (4, 4))
    groups = [{"params": [model.x[0], model.x[1]], "momentum": 0.9}, {"params": [model.x[2]], "momentum": 0.0}]
    sequence = [{"x.0": True, "x.2": True}, {f"x.{k}": True for k in range(3)}]
    sgd = PartialSGD(model, optim.SGD(groups, lr=0.1, fused=True), following(sequence))
    sgd.step(model.closure(0))
    before = [p.detach().clone() for p in model.x]
    sgd.step(model.closure(1))
    torch.testing.assert_close(model.x[2].detach(), before[2] - 0.1 * _gradient(torch.Size([4, 4]), 1, 2))
    torch.testing.assert_close(model.x[1].detach(), before[1] - 0.1 * _gradient(torch.Size([3, 3]), 1, 1))


def test_decay_does_not_move_a_parameter_that_took_no_part() -> None:
    model = Free((4, 4), (2, 2))
    some = torch.eye(4, dtype=torch.bool)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sgd = PartialSGD(model, optimizer, following([{"x.0": True, "x.1": True}, {"x.0": some}]), outside="decay")
    sgd.step(model.closure(0))
    before = model.x[0].detach().clone()
    sgd.step(lambda: _descend([model.x[1]], [torch.ones(2, 2)]))
    assert torch.equal(before, model.x[0])


def test_a_large_fused_adam_with_a_hook_or_a_mind_of_its_own_is_held_all_the_same() -> None:
    class Mine(optim.AdamW):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.mul_(0.99)
            return super().step(closure)

    some = torch.rand(300, 300) < 0.5
    for make in (lambda p: Mine(p, 0.01, fused=True), lambda p: _clamped(optim.AdamW(p, 0.01, fused=True))):
        model, _, sgd = start(make, [{"x.0": some}], (300, 300))
        before = model.x[0].detach().clone()
        sgd.step(model.closure(0))
        assert torch.equal(before[~some], model.x[0][~some]) and not torch.equal(before, model.x[0])


def _clamped(optimizer: optim.Optimizer) -> optim.Optimizer:
    def clamp(optimizer, *_) -> None:
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                p.clamp_(-0.1, 0.1)

    optimizer.register_step_post_hook(clamp)
    return optimizer


def test_the_step_size_in_the_end_is_told_of_sgd_alone() -> None:
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.02}]
    for optimizer, lr, rate in (
        (optim.SGD(groups, momentum=0.9), 0.1, 1.0),
        (optim.SGD(model.parameters(), 0.3), 0.3, 0.3),
        (optim.Adam(model.parameters(), 0.3), 0.3, None),
    ):
        update = MaskedUpdate(Parameters(model), [optimizer], "hold")
        assert update.lr == lr and update.sgd_step_size == (None if rate is None else pytest.approx(rate))
