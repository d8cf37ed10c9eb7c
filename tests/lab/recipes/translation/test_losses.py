"""The loss of a batch: by definition, over the real tokens alone."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partialsgd as ps
from partialsgd import soft_cross_entropy
from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.translation import losses
from partialsgd.lab.recipes.translation.losses import TranslationFlops
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.recipes.translation.tokens import TokenBatch, in_order
from partialsgd.lab.runs import checkpoints, use_run
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.nested.inspect import flops
from tests.lab.checks import steps_by_hand
from tests.lab.made_runs import TINY, made_run
from tests.lab.recipes.translation.tiny import VOCABULARY, family

PAIRS = [([5, 6, 7, 1], [8, 9, 1]), ([5, 1], [9, 10, 11, 12, 1]), ([7, 8, 1], [3, 1])]


def batch() -> TokenBatch:
    (made,) = in_order(PAIRS, 1000)
    return made


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_the_sum_over_real_tokens_against_smoothed_targets(smoothing: float) -> None:
    labels = batch()["labels"]
    logits = torch.randn(*labels.shape, VOCABULARY, dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for row, line in enumerate(labels.tolist()):
        for place, label in enumerate(line):
            if label != -100:
                target = torch.full((VOCABULARY,), smoothing / VOCABULARY, dtype=torch.float64)
                target[label] += 1 - smoothing
                expected -= (target * torch.log_softmax(logits[row, place], -1)).sum()
    torch.testing.assert_close(losses.cross_entropy(logits, labels, smoothing), expected)


def test_distilled_is_the_sum_over_real_tokens() -> None:
    labels = batch()["labels"]
    logits, teacher = torch.randn(2, *labels.shape, VOCABULARY, dtype=torch.float64)
    expected = sum(soft_cross_entropy(logits[i, j], teacher[i, j]) for i, j in (labels != -100).nonzero().tolist())
    torch.testing.assert_close(losses.distillation(logits, teacher, labels), expected)


pytestmark = pytest.mark.usefixtures("toy")  # which leaves no state of accelerate behind


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of a larger network: a teacher may be of any size."""
    made = made_run(tmp_path_factory.mktemp("runs") / "whole", "translation", layers=2, d_model=24, dropout=0.5)
    made.write_json("summary.json", {})
    return made


def told(run: Run, **changes: Any) -> Translation:
    tiny = {**TINY["translation"], "max_tokens": 150, "warm_up": 2, "epochs": 1, "teacher": str(run.path)}
    return Translation(**{**tiny, **changes})


def loss_of(task: Any, method: ps.Method) -> dict[str | None, float]:
    """The summed loss of one step on the first batch, in evaluation mode, by level."""
    task.network.eval()
    (step,) = steps_by_hand(task, method, 1)
    return {level: float(loss) * task.batches.units(0, 0) for level, loss in step.losses}


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_that_of_the_labels_and_of_the_teachers_probabilities(run: Run, weight: float) -> None:
    task: Any = build(told(run, teacher_weight=weight, label_smoothing=0.1))
    batch = task.batches.make(0, 0)
    assert (batch["labels"] == -100).any()  # padding, which nobody learns
    teacher = ps.export.load(run.best).eval()
    with torch.no_grad():
        answers = torch.softmax(losses.run(teacher, batch).logits.double(), -1)
        logs = torch.log_softmax(losses.run(task.network.eval(), batch).logits.double(), -1)
    pieces, expected = logs.shape[-1], 0.0
    for row, line in enumerate(batch["labels"].tolist()):
        for place, label in enumerate(line):
            if label != -100:
                target = torch.full((pieces,), 0.1 / pieces, dtype=torch.float64)
                target[label] += 0.9
                target = (1 - weight) * target + weight * answers[row, place]
                expected -= float((target * logs[row, place]).sum())
    assert list(loss_of(task, ps.methods.plain()).values()) == pytest.approx([expected], rel=1e-4)


def state(run: Run) -> dict[str, Any]:
    found = checkpoints.latest(run.checkpoints)
    assert found is not None
    return found[1]


def stopped(settings: Translation, calls: int) -> Run:
    """Killed in the pass after so many."""
    teach, count = losses.Teacher.mix, iter(range(calls))

    def until(self: losses.Teacher, loss: Tensor, logits: Tensor, batch: Any) -> Tensor:
        if next(count, None) is None:
            raise MemoryError
        return teach(self, loss, logits, batch)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(losses.Teacher, "mix", until)
        loop.train(settings, show=False)
    return Run(Path(str(settings.out)))


def test_a_training_with_a_teacher_is_resumed_bit_by_bit_and_its_checkpoints_hold_the_pupil(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_run, "summarise", lambda *_: {})  # which scores the levels, and takes its time
    common = {"checkpoint_every": 3, "dropout": 0.2}
    through = loop.train(told(run, out=str(tmp_path / "through"), **common), show=False)
    again = stopped(told(run, out=str(tmp_path / "again"), **common), calls=5)
    assert state(again)["updates"] == {"full": 2, "core": 1}
    loop.resume(again, show=False)
    one, two = state(through), state(again)
    assert one["flops"] == two["flops"] and one["updates"]["full"] > 4
    tensors, others = one["model"]["tensors"], two["model"]["tensors"]
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    family = set(build(told(run, teacher=None)).network.model.state_dict())
    assert set(tensors) == set(others) <= family


def test_another_teacher_is_refused_on_resume(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "teacher"
    shutil.copytree(run.path, place)
    settings = told(run, out=str(tmp_path / "run"), teacher=str(place), checkpoint_every=1)
    begun = stopped(settings, calls=2)
    shutil.rmtree(place)
    other = made_run(place, "translation", layers=2, d_model=24, seed=1)
    other.write_json("summary.json", {})
    with pytest.raises(ValueError, match=r"the weights of the teacher are not those that .*run started with; restore"):
        loop.resume(begun, show=False)


def test_likelihood_is_the_mean_over_tokens_whatever_the_batches_and_leaves_no_trace() -> None:
    network = family().train()
    network.model.get_submodule("model.encoder.layers.0").eval()
    modes, noise = [m.training for m in network.modules()], torch.get_rng_state()
    one, each = [batch()], list(in_order(PAIRS, 5))
    assert len(each) == 3
    numbers = losses.likelihood(network.model, one)
    assert numbers["loss"] == pytest.approx(losses.likelihood(network.model, each)["loss"], rel=1e-5)
    assert numbers["perplexity"] == pytest.approx(math.exp(numbers["loss"]))
    assert [m.training for m in network.modules()] == modes and torch.equal(torch.get_rng_state(), noise)
    assert all(p.grad is None for p in network.parameters())
    logits = losses.run(network.eval(), batch()).logits.detach()
    assert numbers["loss"] == pytest.approx(float(losses.cross_entropy(logits, batch()["labels"])) / 10, rel=1e-5)


def test_a_method_that_distills_goes_on_distilling_beside_it(run: Run) -> None:
    """The teacher takes its share of whatever loss there is: here of the core's, which learns from the full level."""

    def core_loss(**changes: Any) -> float:
        return loss_of(build(told(run, **changes)), ps.methods.slimmable(distill=True))["core"]

    inside, outside = core_loss(teacher=None), core_loss(teacher_weight=1.0)
    assert core_loss(teacher_weight=0.25) == pytest.approx(0.75 * inside + 0.25 * outside, rel=1e-5)


def test_a_teacher_is_asked_in_evaluation_mode_without_gradient_or_noise() -> None:
    network: Any = family(nest="none", dropout=0.5).model.train()
    teacher, pairs = losses.Teacher(network, 1.0), batch()
    logits = torch.randn(*pairs["labels"].shape, VOCABULARY, requires_grad=True)
    noise = torch.get_rng_state()
    asked: list[bool] = []
    network.register_forward_hook(lambda *_: asked.append(torch.is_grad_enabled()))
    one, two = (teacher.mix(torch.zeros(()), logits, pairs) for _ in range(2))
    assert asked == [False, False]
    assert torch.equal(one, two) and torch.equal(torch.get_rng_state(), noise)
    one.backward()
    assert logits.grad is not None and all(p.grad is None for p in network.parameters())


def test_the_teachers_forward_pass_is_counted_and_it_reads_sentences_as_long_as_its_pupil(
    run: Run,
) -> None:
    task: Any = build(told(run, longest=39))
    batch = task.batches.make(0, 0)
    teacher = ps.export.load(run.best).extract("full").eval()
    forward = flops.count(teacher, **{name: batch[name] for name in losses.INPUTS}, use_cache=False).forward
    shape = (*batch["input_ids"].shape, batch["decoder_input_ids"].shape[1])
    for level in ("core", "full"):
        assert task.flops(level, batch) == TranslationFlops(task.network)(level, shape) + forward
    with pytest.raises(ValueError, match=r"--teacher: .*whole has longest 40, which is less than this .* 41"):
        build(told(run, longest=41))
