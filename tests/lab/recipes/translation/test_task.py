"""A translation as the loop sees it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.translation import losses, model, scores
from partialsgd.lab.recipes.translation.task import TranslationTask, build, make_optimizer
from partialsgd.lab.runs import use_run
from partialsgd.lab.runs.use_run import load_weights
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from partialsgd.logging import read
from tests.lab.checks import steps_by_hand
from tests.lab.recipes.translation.tiny import corpus, settings, tokenizer


def task(**changes: Any) -> TranslationTask:
    """Make the task of the small corpus, whose settings have one layer and a small vocabulary."""
    told = settings(**{"layers": 1, "vocabulary": 300, **changes})
    torch.manual_seed(told.seed)
    network = model.nest(model.build(told, tokenizer().get_vocab_size()), told)
    return TranslationTask(told, corpus(), tokenizer(), network)


def train(made: TranslationTask, steps: int, method: str = "alternating", **options: Any) -> list[ps.Step]:
    return steps_by_hand(made, getattr(ps.methods, method)(**options), steps, lr=made.settings.lr)


@pytest.fixture(scope="module")
def trained() -> TranslationTask:
    made = task(lr=5e-3, warm_up=20, dropout=0.0, max_tokens=100)
    train(made, 150)
    return made


def test_both_levels_learn_and_beat_the_nearest_phrase(trained: TranslationTask) -> None:
    sources, references = zip(*corpus().splits["test"], strict=True)
    copied = scores.bleu(scores.copy_nearest(corpus().splits["train"], sources), references, corpus().target)["BLEU"]
    for level in ("core", "full"):
        numbers = trained.scores(level, "test")
        assert numbers["BLEU"] == pytest.approx(100) and copied < 80
        assert set(numbers) == {"loss", "perplexity", "BLEU", "chrF"}


def test_a_glance_is_the_likelihood_of_the_validation_data_at_that_level(trained: TranslationTask) -> None:
    glances = {level: trained.quick_eval(level) for level in trained.network.levels}
    assert glances["core"] != glances["full"] and trained.network.level == "full"
    for level, numbers in glances.items():
        assert numbers == {name: trained.scores(level, "valid")[name] for name in numbers}
        assert numbers["perplexity"] == pytest.approx(math.exp(numbers["loss"]))
    assert trained.selection_score(glances) == pytest.approx(-(glances["core"]["loss"] + glances["full"]["loss"]) / 2)


def test_extras_are_json_and_say_how_scores_were_computed(trained: TranslationTask) -> None:
    extras = json.loads(json.dumps(trained.extras(ps.methods.plain())))
    assert extras["signature"] == scores.signature(corpus().target) and "a note" in extras["notes"]
    assert extras["nearest"].startswith("BLEU ") and extras["nearest"].endswith(scores.NEAREST_PHRASE)
    assert [set(row) for row in extras["samples"]] == [{"source", "reference", "core", "full"}] * 3
    assert all(row["full"] == row["reference"] for row in extras["samples"])


def test_a_level_taken_out_translates_alike_and_is_timed(
    trained: TranslationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained.network.extract("core", example=trained.example())
    lines = [source for source, _ in corpus().splits["test"]]
    with trained.network.at("core"):
        assert trained.translate(plain, lines) == trained.translate(trained.network.model, lines)
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 20.7])  # the first sentence warms up
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert trained.latency(plain) == pytest.approx(0.6)


@pytest.mark.parametrize("method", ["alternating", "slimmable", "sandwich"])
def test_smaller_levels_learn_from_the_whole_network_if_they_are_told_to(method: str) -> None:
    apart, taught = (
        [
            (level, float(loss))
            for step in train(task(dropout=0.0), 2, method, distill=distill)
            for level, loss in step.losses
        ]
        for distill in (False, True)
    )
    assert [level for level, _ in apart] == [level for level, _ in taught]
    assert apart[0] == taught[0] and apart[0][0] == "full"  # the teacher learns from the labels
    assert apart[1] != taught[1] and apart[1][0] == "core"


def test_cached_distillation_mixes_the_labels_and_the_outputs_of_the_step_before() -> None:
    made = task(dropout=0.0, distill="cached", distill_weight=0.25, label_smoothing=0.0)
    batch, seen = made.batches.make(0, 0), []

    def closure(g: GradientPass) -> torch.Tensor:
        g.batch = 0
        loss = made.loss(made.network, batch, g)
        labelled = losses.cross_entropy(g.outputs, batch["labels"])
        taught = labelled if g.teacher is None else losses.distillation(g.outputs, g.teacher, batch["labels"])
        seen.append((g.outputs.detach(), g.teacher))
        torch.testing.assert_close(loss, 0.75 * labelled + 0.25 * taught)
        loss.backward()
        return loss

    sgd = ps.PartialSGD(made.network, list(made.optimizers), ps.methods.alternating(distill="cached"))
    assert [sgd.step(closure).level for _ in range(2)] == ["full", "core"]
    (first, none), (_, teacher) = seen
    assert none is None and torch.equal(teacher, first)


def test_a_folder_is_read_in_the_direction_asked_for_and_long_pairs_are_told_of(tmp_path: Path) -> None:
    for split, pairs in corpus().splits.items():
        long = [("one " * 40, "eins " * 40)] if split != "test" else []
        sources, targets = zip(*pairs, *long, strict=True)
        (tmp_path / f"{split}.en").write_text("\n".join(sources) + "\n")
        (tmp_path / f"{split}.de").write_text("\n".join(targets) + "\n")
    made = build(settings(data=str(tmp_path), source="de", target="en", layers=1))
    assert made.corpus.splits["test"][0] == tuple(reversed(corpus().splits["test"][0]))
    assert math.isfinite(made.quick_eval("core")["loss"])  # without the pair that is too long
    assert made.extras(ps.methods.plain())["notes"][-2:] == [
        "1 training pairs with more than 32 tokens are left out",
        "1 validation pairs with more than 32 tokens are left out of loss and perplexity; BLEU counts them, cut to 32",
    ]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_of_which_every_pair_is_too_long_is_refused_before_a_directory_is_made(
    tmp_path: Path, split: str
) -> None:
    for name, pairs in corpus().splits.items():
        for side, language in enumerate(("en", "de")):
            lines = (pair[side] * (10 if name == split else 1) for pair in pairs)
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines) + "\n")
    told = settings(data=str(tmp_path), layers=1, longest=20, out=str(tmp_path / "run"))
    name = {"valid": "validation", "test": "test"}[split]
    message = f"longest is 20, and each of the . {name} pairs has more tokens, so that nothing could be scored; increa"
    with pytest.raises(WrongCall, match=message):
        loop.train(told)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def no_final_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_run, "summarise", lambda *_: {})  # which scores the levels, and takes its time


TOLD: dict[str, Any] = {"dropout": 0.0, "max_steps": 8, "epochs": 8, "init": "matched", "threads": 1, "warm_up": 3}
TOLD |= {"longest": 64, "beam": 1}  # all phrases fit


@pytest.mark.usefixtures("no_final_scores")
def test_it_is_the_extracted_core_in_a_plain_loop(tmp_path: Path) -> None:
    """Written out: no family, no PartialSGD, one optimizer over the extracted network."""
    told = settings(**TOLD)
    task = build(told)
    torch.manual_seed(told.seed)
    core: Any = model.nest(model.build(told, task.tokenizer.get_vocab_size()), told).extract("core")
    optimizer = make_optimizer(core, told)
    core.train()
    for t in range(8):
        for group in optimizer.param_groups:
            group["lr"] = told.lr * task.learning_rate(t, 8)
        batch = task.batches.make(*divmod(t, len(task.batches)))
        outputs = losses.run(core, batch)
        loss = losses.cross_entropy(outputs.logits, batch["labels"], told.label_smoothing)
        optimizer.zero_grad()
        (loss / task.batches.units(*divmod(t, len(task.batches)))).backward()
        optimizer.step()
    run = loop.train(settings(**TOLD, alone="core", method="plain", out=str(tmp_path / "alone")), show=False)
    trained = build(run.settings)  # type: ignore[arg-type]  # the settings of this recipe, as they were given
    load_weights(trained.network, run.last)
    found = dict(trained.network.extract("full").named_parameters())
    expected = dict(core.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("no_final_scores")
def test_it_is_the_level_that_only_trains_inside_the_family(tmp_path: Path) -> None:
    """With dropout too: both draw the same noise, for low-rank layers have the outputs of whole ones."""
    more = {**TOLD, "dropout": 0.1}
    alone = loop.train(settings(**more, alone="core", method="plain", out=str(tmp_path / "a")), show=False)
    inside = loop.train(settings(**more, method="only('core')", out=str(tmp_path / "b")), show=False)
    first, second = ([line["loss"] for line in read(run.metrics)] for run in (alone, inside))
    assert [loss["model"] for loss in first] == [loss["core"] for loss in second]


@pytest.mark.usefixtures("no_final_scores")
def test_bleu_along_the_training_is_of_the_first_validation_pairs_and_changes_nothing(tmp_path: Path) -> None:
    told = {**TOLD, "max_steps": 3}
    with_look, without = (
        loop.train(settings(**told, look_bleu=pairs, out=str(tmp_path / f"{pairs}")), show=False) for pairs in (4, 0)
    )
    lines = read(with_look.metrics)
    looked = [line for line in lines if "valid/core/BLEU" in line]
    assert len(looked) == len([line for line in lines if "valid/core/loss" in line]) > 0
    for line in lines:
        for level in ("core", "full"):
            line.pop(f"valid/{level}/BLEU", None)
    assert lines == read(without.metrics)


def test_adam_and_its_rate_are_those_of_the_settings_and_have_every_trained_parameter() -> None:
    made = task(lr=7e-4, beta1=0.8, beta2=0.95, eps=1e-7, weight_decay=0.25, schedule="inverse-sqrt")
    (optimizer,) = made.optimizers
    assert isinstance(optimizer, torch.optim.AdamW)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (7e-4, (0.8, 0.95), 1e-7, 0.25)
    assert set(group["params"]) == {p for p in made.network.parameters() if p.requires_grad}
    parameter = group["params"][0]
    before = parameter.detach().clone()
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), before * (1 - 7e-4 * 0.25))  # decoupled
    assert made.learning_rate(50, 99) == 50 / 200 and made.learning_rate(800, 999) == 0.5, "fairseq's inverse root"


def test_building_is_a_function_of_the_settings_and_the_loss_is_summed_and_smoothed() -> None:
    told = settings(layers=1)
    one, two, other = build(told), build(told), build(settings(layers=1, seed=1))
    assert one.corpus == two.corpus == other.corpus  # the seed of the training is not that of the phrases
    first, same, different = (torch.cat([p.flatten() for p in each.network.parameters()]) for each in (one, two, other))
    assert torch.equal(first, same) and not torch.equal(first, different)
    assert len(one.corpus.splits["train"]) == 40 and len(one.corpus.splits["valid"]) == 6
    model: Any = one.network.eval().model
    assert model.config.vocab_size == one.tokenizer.get_vocab_size()
    batch = one.batches.make(0, 0)
    expected = losses.cross_entropy(losses.run(model, batch).logits, batch["labels"], 0.1).detach()
    (step,) = train(one, 1, "plain")
    torch.testing.assert_close(step.loss * one.batches.units(0, 0), expected)
