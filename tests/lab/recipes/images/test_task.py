"""The images recipe as the loop sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.images import task as scores
from partialsgd.lab.recipes.images.data import Standardise
from partialsgd.lab.recipes.images.resnet import resnet
from partialsgd.lab.recipes.images.settings import PRESETS, Images, Preset
from partialsgd.lab.recipes.images.task import ImageTask, build
from partialsgd.lab.training.loop import make_meter
from partialsgd.lab.training.method_text import parse_method
from partialsgd.meters.criteria import Criteria
from tests.lab.checks import steps_by_hand
from tests.lab.recipes.images.made import NAMES, write


def settings(**changes: Any) -> Images:
    """Small enough for a test."""
    return Images(**{"width": 4, "limit": 100, "batch": 20, "epochs": 2, **changes})


def steps(task: ImageTask, method: str, count: int, **options: Any) -> list[ps.Step]:
    return steps_by_hand(task, parse_method(method), count, seed=0, **options)


def given(teacher: Tensor | None = None) -> GradientPass:
    return cast(GradientPass, SimpleNamespace(teacher=teacher, outputs=None))


def test_building_twice_gives_the_same_weights_and_batches_and_another_seed_others() -> None:
    torch.manual_seed(5)
    first = build(settings())
    torch.manual_seed(6)
    again, other = build(settings()), build(settings(seed=1))
    state, same = first.network.state_dict(), again.network.state_dict()
    assert state.keys() == same.keys() and all(torch.equal(state[name], same[name]) for name in state)
    assert not torch.equal(state["model.conv1.rows0"], other.network.state_dict()["model.conv1.rows0"])
    for a, b in zip(first.batches.make(1, 2), again.batches.make(1, 2), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.batches.make(1, 2)[0], other.batches.make(1, 2)[0])


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, ("core", "full")),
        ({"norms": "shared"}, ("core", "full")),
        ({"ratio": ("1/2", "1/4")}, ("1/4", "1/2", "full")),
        ({"nest": "low-rank", "ratio": ("1/4",)}, ("core", "full")),
        ({"nest": "low-rank", "ratio": ("1/4",), "full": "own"}, ("core", "full")),
        ({"nest": "depth"}, ("core", "full")),
        ({"nest": "none"}, ("full",)),
        ({"norms": "none"}, ("core", "full")),
        ({"nest": "low-rank", "norms": "none"}, ("core", "full")),
        ({"nest": "depth", "norms": "none"}, ("core", "full")),
        ({"nest": "none", "norms": "none"}, ("full",)),
    ],
)
def test_every_kind_of_family_trains_scores_and_comes_out(changes: dict[str, Any], levels: tuple[str, ...]) -> None:
    task = build(settings(**changes))
    assert task.network.levels == levels
    is_bare = changes.get("norms") == "none"
    assert is_bare != any("running_mean" in name for name, _ in task.network.named_buffers())
    has_own = any(name.startswith("model.bn1.core") for name in task.network.state_dict())
    assert has_own or changes, "norms are separate"
    assert not has_own or changes.get("norms") != "shared"
    steps(task, "alternating", 2 * len(levels))
    assert all(p.isfinite().all() for p in task.network.parameters())
    evaluations = {level: task.quick_eval(level) for level in levels}
    assert all(numbers.keys() == {"loss", "accuracy"} for numbers in evaluations.values())
    assert task.selection_score(evaluations) == pytest.approx(
        sum(g["accuracy"] for g in evaluations.values()) / len(levels)
    )
    sizes = [
        sum(p.numel() for p in task.network.extract(level, example=task.example()).parameters()) for level in levels
    ]
    assert sizes == sorted(sizes) and len(set(sizes)) == len(levels)
    json.dumps(task.extras(ps.methods.plain()), allow_nan=False)


@pytest.mark.parametrize("norms", ["none", "separate"])
def test_neurons_of_one_network_are_dropped_and_probed(norms: str) -> None:
    """The paper's Figures 2 and 3: the one measures what it trains, the other the same masks beside plain training."""
    dropout = "dropout(keep=0.5, unit='neurons')"
    first = []
    for method, probe in ((dropout, None), ("plain", dropout)):
        task = build(settings(nest="none", norms=norms))
        told = settings(measure_every=1, probe=probe)
        first.append(steps(task, method, 1, meter=make_meter(told, task.network))[0].criteria)
    own, probed = first
    assert isinstance(own, Criteria) and isinstance(probed, Criteria) and 0 < own.masked < own.whole
    assert (probed.masked, probed.perturbed, probed.inner) == (own.masked, own.perturbed, own.inner)


def test_low_rank_starts_as_its_core() -> None:
    assert "conv1.own_weight" in dict(build(settings(nest="low-rank", full="own")).network.model.named_parameters())
    network = build(settings(nest="low-rank", norms="shared")).network.eval()
    x = torch.randn(3, 1, 8, 8)
    with network.at("core"):
        core = network(x)
    torch.testing.assert_close(network(x), core)


def test_the_loss_is_summed_over_the_images() -> None:
    task = build(settings())
    task.network.eval()
    images, labels = task.batches.make(0, 0)
    g = given()
    whole = task.loss(task.network, (images, labels), g)
    torch.testing.assert_close(whole, F.cross_entropy(task.network(images), labels) * len(labels))
    torch.testing.assert_close(g.outputs, task.network(images))
    halves = [task.loss(task.network, (images[part], labels[part]), given()) for part in (slice(0, 7), slice(7, None))]
    torch.testing.assert_close(whole, halves[0] + halves[1])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = task.loss(task.network, (images, labels), given())
    assert rounded.dtype is torch.float32, "sums of many images need it"


def test_a_teacher_takes_the_place_of_the_labels() -> None:
    task = build(settings())
    task.network.eval()
    images, labels = task.batches.make(0, 0)
    certain = 100.0 * F.one_hot(labels, 10).float()
    torch.testing.assert_close(
        task.loss(task.network, (images, labels * 0), given(certain)),
        task.loss(task.network, (images, labels), given()),
    )
    for method in ("alternating(distill=True)", "slimmable(distill=True)"):
        assert all(step.loss.isfinite() for step in steps(task, method, 2))


def test_cached_distillation_mixes_the_labels_and_the_teacher() -> None:
    task = build(settings(distill="cached", distill_weight=0.25))
    task.network.eval()
    images, labels = task.batches.make(0, 0)
    certain = 100.0 * F.one_hot(labels * 0, 10).float()
    labelled, taught = (task.loss(task.network, (images, target), given()) for target in (labels, labels * 0))
    found = task.loss(task.network, (images, labels), given(certain))
    torch.testing.assert_close(found, 0.75 * labelled + 0.25 * taught)


@pytest.mark.slow
def test_both_levels_learn_the_digits_in_the_default_training() -> None:
    task = build(Images())
    steps(task, "alternating", Images().epochs * len(task.batches), lr=Images().lr)
    assert min(task.scores(level, "test")["accuracy"] for level in task.network.levels) > 0.97


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 1}, "batch must be a whole number of at least 2, got 1"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"crop": -1}, "crop must be a whole number of at least 0, got -1"),
        ({"warm_up": -1}, "warm_up must be a whole number of at least 0, got -1"),
        ({"limit": 1}, "limit must be a whole number of at least 2, got 1"),
        ({"valid_share": 0.0}, r"valid_share must be in \(0, 1\), got 0.0"),
        ({"valid_share": 1.0}, r"valid_share must be in \(0, 1\), got 1.0"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, r"weight_decay must be in \[0, inf\), got -1.0"),
        ({"ratio": ()}, "ratio is empty"),
        ({"ratio": ("2",)}, r"ratio must be in \(0, 1\], got '2'"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Images(**change)


LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
CLASSES = ("cat", "dog", "frog", "ship")


def saying(*classes: int) -> Tensor:
    """Outputs whose largest is that of these classes."""
    return 3.0 * F.one_hot(torch.tensor(classes), len(CLASSES))


def test_disagreement_counts_who_is_right_in_all_and_by_class() -> None:
    core, full = saying(0, 0, 1, 1, 0, 3), saying(0, 1, 0, 1, 1, 0)
    rows = scores.disagreement("core", core, full, LABELS, CLASSES)
    names = ("both right", "only core right", "only full right", "both wrong")
    assert {row["class"]: tuple(row[name] for name in names) for row in rows} == {
        "all": (2, 1, 2, 1),
        "cat": (1, 1, 1, 0),
        "dog": (1, 0, 1, 0),
        "frog": (0, 0, 0, 1),
        "ship": (0, 0, 0, 0),
    }


def test_outputs_are_those_of_the_level_in_evaluation_and_nothing_moves() -> None:
    torch.manual_seed(0)
    network = ps.nest(resnet((1, 1), 4, channels=1), ps.Width(1 / 2)).train()
    images = torch.randint(17, (300, 1, 8, 8), dtype=torch.uint8)  # more than go at once
    standard = Standardise(images)
    for level in network.levels:
        with network.at(level):
            network(standard(images))  # statistics of its own
    network.model.get_submodule("stages.0").eval()
    modes = [module.training for module in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for level in network.levels:
        found = scores.outputs(network, level, images, standard)
        torch.testing.assert_close(found, network.extract(level).eval()(standard(images)), rtol=1e-4, atol=1e-5)
    assert [module.training for module in network.modules()] == modes and network.level == "full"
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


def test_presets_have_their_names_and_cifar10_is_the_papers_with_what_is_usual_where_it_is_silent() -> None:
    assert tuple(PRESETS) == get_args(Preset)
    assert all(settings.preset == name for name, settings in PRESETS.items())
    assert PRESETS["digits"] == Images() and Images().data is None and Images(nest="none", ratio=()).ratio == ()
    s = PRESETS["cifar10"]
    assert (s.network, s.width, s.nest, s.ratio, s.norms) == ("resnet18", 64, "width", ("1/2",), "separate")
    assert (s.momentum, s.weight_decay, s.valid_share) == (0.9, 5e-4, 0.1)
    assert (s.lr, s.warm_up, s.epochs, s.batch, s.crop, s.flip, s.limit) == (0.1, 0, 200, 128, 4, True, None)


def test_loss_and_accuracy_are_means_over_the_images_and_a_class_without_images_has_none() -> None:
    said = saying(0, 1, 0, 1, 1, 3)
    found = scores.loss_and_accuracy(said, LABELS)
    assert found["accuracy"] == pytest.approx(4 / 6)
    each = [-F.log_softmax(row.double(), 0)[label].item() for row, label in zip(said, LABELS, strict=True)]
    assert found["loss"] == pytest.approx(sum(each) / 6)
    found = scores.accuracy_by_class(said, LABELS, CLASSES)
    assert found == {"accuracy/cat": pytest.approx(2 / 3), "accuracy/dog": 1.0, "accuracy/frog": 0.0}


def test_scores_are_those_of_each_split_and_class_and_extras_agree_with_them() -> None:
    task = build(settings())
    steps(task, "alternating", 6)
    for split, part in (("valid", task.data.valid), ("test", task.data.test)):
        found = task.scores("core", cast(Any, split))
        counts = torch.bincount(part.labels, minlength=10).tolist()
        mean = sum(found[f"accuracy/{k}"] * count for k, count in enumerate(counts) if count) / len(part)
        assert found["accuracy"] == pytest.approx(mean)
    assert task.quick_eval("core") == {name: task.scores("core", "valid")[name] for name in ("loss", "accuracy")}
    extras = task.extras(ps.methods.slimmable())
    everyone = extras["core and full on the test images"][0]
    tested = len(task.data.test)
    core, full = (task.scores(level, "test")["accuracy"] * tested for level in ("core", "full"))
    assert everyone["both right"] + everyone["only core right"] == pytest.approx(core)
    assert everyone["both right"] + everyone["only full right"] == pytest.approx(full)
    assert sum(v for v in everyone.values() if isinstance(v, int)) == tested
    rows = extras["training FLOPs"]
    assert rows[2]["torch"] == rows[0]["torch"] + rows[1]["torch"], "slimmable runs both on every batch"
    batches = [task.batches.make(0, index) for index in range(len(task.batches))]
    assert rows[0]["torch"] == sum(task.flops("core", batch) for batch in batches)
    plain = task.network.extract("full", example=task.example())
    shapes = []
    plain.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    assert 0 < task.latency(plain) < 1 and set(shapes) == {(1, 1, 8, 8)}, "one image through a level taken out"


def test_sgd_and_the_rate_are_those_of_the_settings() -> None:
    task = build(settings(lr=0.3, weight_decay=0.01))
    ((group,),) = (optimizer.param_groups for optimizer in task.optimizers)
    assert {id(p) for p in group["params"]} == {id(p) for p in task.network.parameters()}, "all decay"
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.3, 0.9, 0.01, False)
    assert [task.learning_rate(t, 8) for t in (0, 4, 8)] == pytest.approx([1, 0.5, 0])
    warm = build(settings(warm_up=4))
    assert [warm.learning_rate(t, 8) for t in (0, 3, 4, 6)] == pytest.approx([0.2, 0.8, 1, 0.5])


def test_cifar_is_in_a_folder_which_its_presets_ask_for(tmp_path: Path) -> None:
    write(tmp_path, {1: 30})
    task = build(replace(PRESETS["cifar10"], data=str(tmp_path), width=2, batch=9))
    assert len(task.batches) == 3 and list(task.data.names) == NAMES
    images, labels = task.batches.make(0, 0)
    assert images.shape == (9, 3, 32, 32) and labels.shape == (9,)
    steps(task, "alternating", 2)
    assert "accuracy/cat" in task.scores("full", "test")
    for preset in ("narrow", "cifar10"):
        with pytest.raises(ValueError, match=f"the preset '{preset}' is for CIFAR-10; give --data"):
            build(PRESETS[preset])


def test_a_core_step_moves_the_core_alone() -> None:
    task = build(settings())
    inside = {id(p) for p in task.network.parameters(level="core")}
    before = {name: p.detach().clone() for name, p in task.network.named_parameters()}
    steps(task, "only('core')", 1)
    for name, p in task.network.named_parameters():
        assert torch.equal(p, before[name]) == (id(p) not in inside), name
