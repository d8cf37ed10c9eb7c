"""Which warnings are all_losses, when, and how often."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import Alerts, CriteriaMeter, Method, PartialSGD, masks, methods, perturbations
from partialsgd.meters.criteria import Criteria
from partialsgd.method import GradientRequest
from tests.functions import backward


def warnings_of(
    alerts: Alerts, measurements: list[Criteria], *, losses=None, rate=None, name="core", memory=None
) -> list[str]:
    memory = {} if memory is None else memory
    all_losses = losses or [None] * len(measurements)
    warnings = []
    for one, loss in zip(measurements, all_losses, strict=True):
        warnings += alerts.check(memory, name, one, None if loss is None else torch.tensor(loss), rate)
    return warnings


def at_angle(cosine: float, whole: float = 1.0, moved: float = 0.0) -> Criteria:
    return Criteria(whole, 1.0, 1.0, 1.0, cosine, moved, math.sqrt(2 - 2 * cosine))


def test_gradients_that_point_apart_for_most_of_a_window() -> None:
    alerts = Alerts(window=4)
    assert warnings_of(alerts, [at_angle(-0.1), at_angle(-0.1), at_angle(-0.1)]) == [], "the window is not full"
    assert warnings_of(alerts, [at_angle(-0.1), at_angle(0.1)] * 6) == [], "half is not most"
    (text,) = warnings_of(alerts, [at_angle(0.1), *[at_angle(-0.1)] * 9])  # once
    assert "core: the gradient at x̃ points away" in text and "3 of the last 4" in text and "scaled_by_alpha" in text


def test_once_also_in_a_resumed_run_and_for_each_mask_by_itself() -> None:
    alerts, memory = Alerts(window=2), {}
    opposed = [at_angle(-1.0)] * 2
    assert len(warnings_of(alerts, opposed, memory=memory)) == 1
    assert warnings_of(alerts, opposed, memory=dict(memory)) == []
    assert len(warnings_of(alerts, opposed, memory=memory, name="half")) == 1


def test_c_norm_that_grows() -> None:
    alerts = Alerts(window=3, growth=10.0)
    quiet = [at_angle(1.0, whole) for whole in (1.0, 2.0, 3.0, 5.0, 9.0, 15.0, 19.0)]
    assert warnings_of(alerts, quiet) == []
    (text,) = warnings_of(alerts, [*quiet, at_angle(1.0, 21.0), at_angle(1.0, 22.0)])
    assert "has grown from 2 to 21" in text and "order='criterion'" in text
    calm = [at_angle(1.0, 2.0)] * 5
    assert warnings_of(alerts, [*calm, at_angle(1.0, 1e9), *calm]) == [], "one outlier is none"


def test_a_level_that_stands_while_another_improves() -> None:
    alerts = Alerts(window=2, patience=2)
    one = [at_angle(1.0)]
    for better in (True, False):
        memory, warnings = {}, []
        for k in range(12):
            warnings += warnings_of(alerts, one, losses=[2.0], memory=memory, name="core")
            warnings += warnings_of(alerts, one, losses=[1.0 / (k + 1) if better else 1.0], memory=memory, name="full")
        assert len(warnings) == (1 if better else 0), "where nobody improves, training is over"
        assert all("core: its loss has not improved over 4 measurements" in text for text in warnings)


def test_a_step_size_that_the_gradients_do_not_allow() -> None:
    measurements = [at_angle(0.0, moved=0.1)]  # ‖G − G̃‖ = √2 at a distance of 0.1: L is at least 14.1
    assert warnings_of(Alerts(rate=10), measurements, rate=0.5) == []
    (text,) = warnings_of(Alerts(rate=10), measurements, rate=1.0)
    assert "L ≥ 14.1" in text and "smaller learning rate" in text
    assert warnings_of(Alerts(), measurements, rate=None) == [], "of Adam's step size it says nothing"
    assert warnings_of(Alerts(), [at_angle(0.0)], rate=1e9) == [], "nothing moved, nothing known"


class Flipped(nn.Module):
    """a (2b − 1): without b the gradient of a is turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def backward(self):
        return backward((self.a * (2 * self.b - 1)).sum())


CORE = Method(lambda c: masks.only(c.parameters, ["a"]), lambda c: perturbations.drop_outside(c.mask), name="core")


def test_they_are_on_by_default_and_in_the_record(caplog) -> None:
    model = Flipped()
    for meter, expected in ((CriteriaMeter(1), 1), (CriteriaMeter(1, alerts=None), 0)):
        caplog.clear()
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 1e-3), CORE, meter=meter)
        warnings = [text for _ in range(30) for text in sgd.step(model.backward).criteria.alerts]
        assert len(warnings) == len(caplog.records) == expected


@pytest.mark.parametrize("kind", ["plain", "dropout", "blocks", "workers"])
def test_ordinary_training_on_noise_gives_no_warning(kind, caplog) -> None:
    """Blocks and workers are no levels: they have one loss, and noise alone makes it better for one of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    method = {
        "plain": methods.plain,
        "dropout": lambda: methods.dropout(0.95),
        "blocks": lambda: methods.block_coordinate(every=1),
        "workers": lambda: methods.independent_subnets(2, 5),
    }[kind]()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.05), method, meter=CriteriaMeter(1))

    def closure():
        return backward(nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))))

    warnings = [text for _ in range(200) for text in sgd.step(closure).criteria.alerts]
    assert not [text for text in warnings if "has not improved" in text]
    assert kind == "workers" or not warnings


def test_the_step_size_that_is_judged_is_the_one_that_is_taken() -> None:
    """α, a level's own factor and dampening are in it."""
    damped = {"momentum": 0.9, "dampening": 0.9}
    for factor, options, expected in ((1.0, {}, 1.0), (1e-4, {}, 1e-4), (1.0, damped, 1.0)):
        seen_rates = []

        class Noting:
            def requests(self, context, trained):
                return [GradientRequest(trained)]

            def measure(self, sight, seen_rates=seen_rates):
                seen_rates.append(sight.step_size)

        model = nn.Linear(2, 1)
        method = Method(scale=lambda c, factor=factor: factor, name="scaled")
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 1.0, **options), method, meter=Noting())
        sgd.step(lambda model=model: backward(model(torch.ones(1, 2)).sum()))
        assert seen_rates == [pytest.approx(expected)]


def test_a_skipped_step_warns_of_nothing(caplog) -> None:
    model = Flipped()
    meter = CriteriaMeter(1, alerts=Alerts(window=2))
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 1e-3), CORE, meter=meter, nonfinite="skip")
    steps = [sgd.step(lambda bad=bad: model.backward() * (float("nan") if bad else 1.0)) for bad in (0, 1, 1, 0, 0)]
    assert [step.skipped for step in steps] == [False, True, True, False, False]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("wrong", [{"window": 1}, {"window": 2.5}, {"growth": 0}, {"patience": 0}, {"rate": -1}])
def test_settings_that_mean_nothing_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Alerts(**wrong)
