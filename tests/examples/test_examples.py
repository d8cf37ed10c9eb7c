"""The examples do what they say: the seams fit the loops that people have, and change no bit of a training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialsgd as ps

EXAMPLES = Path(__file__).parents[2] / "examples"
METHODS = {"sam": (ps.methods.sam(rho=0.05), 2), "dropout": (ps.methods.dropout(keep=0.9), 1)}

each_method = pytest.mark.parametrize(("method", "gradients"), METHODS.values(), ids=METHODS)

lightning_warns = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",  # torch 2.13 has deprecated what Lightning 2.6 uses
    "ignore:The 'train_dataloader' does not have many workers:UserWarning",  # on three cores or more
)


@pytest.fixture(autouse=True)
def _same_torch_afterwards() -> Iterator[None]:
    """Examples seed the global generator, as scripts do."""
    with torch.random.fork_rng():
        yield


def example(name: str) -> ModuleType:
    """Imported when it is needed: Lightning and transformers take seconds."""
    return import_module(f"examples.{name}")


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def assert_falls(losses: list[float]) -> None:
    quarter = len(losses) // 4
    assert sum(losses[-quarter:]) < 0.8 * sum(losses[:quarter])


# --- digits


def test_digits_plain_is_the_loop_without_partialsgd() -> None:
    digits = example("digits")
    data, model = digits.digits(), digits.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(digits.SEED)
    for _ in range(2):
        for batch in torch.randperm(len(data.train_x), generator=order).split(64):
            optimizer.zero_grad()
            digits.forward_backward(model, data.train_x[batch], data.train_y[batch])
            optimizer.step()
    assert_same(model, digits.train("plain", data, 2, lambda: None).model)


# --- every_size


def test_every_size_trains_three_networks_and_takes_the_smallest_out(capsys: pytest.CaptureFixture[str]) -> None:
    every_size = example("every_size")
    nested, small = every_size.main(epochs=30)
    _, x, _, y = every_size.digits()
    found = {}
    for level in nested.levels:
        with nested.at(level):
            found[level] = every_size.accuracy(nested, x, y)
    assert capsys.readouterr().out.endswith(f"1/16 by itself: {every_size.accuracy(small, x, y):.1%}\n")
    assert every_size.accuracy(small, x, y) == found["1/16"]
    assert found["1/16"] > 0.8 and found["1/4"] > 0.9 and found["full"] > 0.9
    assert all(type(module).__module__.startswith("torch.") for module in small.modules())
    assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in nested.parameters(level="1/16"))


# --- does_it_converge


def test_does_it_converge_measures_the_core_of_both_and_draws_figure_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = example("does_it_converge").main(tmp_path / "criteria", steps=200)
    assert figure.read_bytes().startswith(b"\x89PNG")
    standard, alternating, _ = capsys.readouterr().out.splitlines()
    assert standard.startswith("standard, the core: 20 measured")
    assert alternating.startswith("alternating, the core: 10")


# --- plain_loop


@each_method
def test_plain_loop_is_step_with_clip_norm(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    plain_loop = example("plain_loop")
    trained, losses = plain_loop.main(tmp_path / "run.pt", method, steps=60, until=60)
    assert_falls(losses)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    sgd = ps.PartialSGD(model, optimizer, method, seed=0, clip_norm=1.0)
    for t in range(60):
        step = sgd.step(partial(forward_backward, model, *plain_loop.batch_at(t)))
        assert (step.backwards, float(step.loss)) == (gradients, losses[t])
        scheduler.step()
    assert_same(model, trained)


@each_method
def test_plain_loop_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    train = partial(example("plain_loop").main, method=method, steps=20)
    whole, losses = train(tmp_path / "whole.pt", until=20)
    _, first = train(tmp_path / "parts.pt", until=7)
    parts, rest = train(tmp_path / "parts.pt", until=20)
    assert first + rest == losses
    assert_same(whole, parts)


def forward_backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


# --- hf_trainer


def recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example with a Trainer that keeps its start, its batches and its forward passes."""
    hf_trainer = example("hf_trainer")

    class Recorded(hf_trainer.PartialTrainer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.loss_is_scaled_for_ga = False  # BERT's loss is a batch's mean; transformers#47688 takes it for a sum
            self.batches: list[dict[str, Tensor]] = []
            self.forwards = 0

        def training_step(self, model: nn.Module, inputs: dict[str, Tensor], items: Any = None) -> Tensor:
            if not self.batches:
                self.start, self.random = copy.deepcopy(model), torch.get_rng_state()
            self.batches.append(inputs)
            return super().training_step(model, inputs, items)

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            self.forwards += 1
            return super().compute_loss(*args, **options)

    monkeypatch.setattr(hf_trainer, "PartialTrainer", Recorded)
    return hf_trainer


def arguments(output: Path, *, accumulate: int = 1, steps: int = 32) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        str(output),
        max_steps=steps,
        learning_rate=3e-3,
        logging_steps=1,
        save_steps=16,
        per_device_train_batch_size=8 // accumulate,
        gradient_accumulation_steps=accumulate,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        use_cpu=True,
    )


@each_method
def test_hf_trainer_is_step_with_clip_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: ps.Method, gradients: int
) -> None:
    from transformers import get_scheduler

    accumulate = 2
    trainer = recorded(monkeypatch).main(method, arguments(tmp_path, accumulate=accumulate, steps=64))
    assert trainer.sgd.t == trainer.state.global_step == 64
    assert all(state["step"] == 64 for state in trainer.optimizer.state.values())
    assert trainer.forwards == 64 * gradients * accumulate
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert_falls([log["loss"] for log in logs])

    model = trainer.start
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    scheduler = get_scheduler("linear", optimizer, 0, 64)
    sgd = ps.PartialSGD(model, optimizer, method, seed=trainer.args.seed, clip_norm=trainer.args.max_grad_norm)
    torch.set_rng_state(trainer.random)
    for t in range(64):
        batches = trainer.batches[t * accumulate : (t + 1) * accumulate]
        assert logs[t]["learning_rate"] == optimizer.param_groups[0]["lr"]
        step = sgd.step(partial(accumulated, model, batches))
        assert logs[t]["loss"] == pytest.approx(float(step.loss), rel=1e-3)
        scheduler.step()
    assert_same(model, trainer.model)


def accumulated(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    total = torch.zeros(())
    for batch in batches:
        loss = model(**batch).loss / len(batches)
        loss.backward()
        total += loss.detach()
    return total


def test_hf_trainer_with_the_plain_method_is_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Trainer

    hf_trainer, settings = example("hf_trainer"), arguments(tmp_path, accumulate=2)
    ours = hf_trainer.main(ps.methods.plain(), settings)
    monkeypatch.setattr(hf_trainer, "PartialTrainer", lambda method, *args, **options: Trainer(*args, **options))
    theirs = hf_trainer.main(ps.methods.plain(), settings)
    assert ours.state.log_history[:-1] == theirs.state.log_history[:-1]  # the last one tells the time
    assert_same(ours.model, theirs.model)


@each_method
def test_hf_trainer_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    hf_trainer = example("hf_trainer")
    whole = hf_trainer.main(method, arguments(tmp_path))
    parts = hf_trainer.main(method, arguments(tmp_path), resume=str(tmp_path / "checkpoint-16"))
    assert parts.sgd.t == parts.state.global_step == 32
    assert parts.state.log_history[:-1] == whole.state.log_history[:-1]  # the last one tells the time
    assert_same(whole.model, parts.model)


def nested_trainer(output: Path, *, resume: str | None = None) -> tuple[Any, ps.Nested]:
    """The example's Trainer, given a whole family instead of one network."""
    from transformers import BertConfig, BertForSequenceClassification, set_seed

    set_seed(0)
    config = BertConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    data = [{"input_ids": tokens, "labels": int(tokens[0] < 8)} for tokens in torch.randint(16, (256, 8))]
    nested = ps.nest(BertForSequenceClassification(config), ps.LowRank(1 / 4))
    told = arguments(output)
    told.remove_unused_columns = False  # a family takes what its model takes, which the Trainer cannot see
    trainer = example("hf_trainer").PartialTrainer(ps.methods.alternating(), nested, told, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, nested


def test_the_trainer_trains_a_family_resumes_it_to_the_bit_and_each_level_comes_out(tmp_path: Path) -> None:
    whole, nested = nested_trainer(tmp_path)
    parts, again = nested_trainer(tmp_path, resume=str(tmp_path / "checkpoint-16"))
    assert whole.sgd.t == parts.sgd.t == 32
    assert_same(nested, again)
    tokens = torch.randint(16, (3, 8))
    core = nested.extract("core", example={"input_ids": tokens}).eval()
    nested.eval()
    with torch.no_grad(), nested.at("core"):
        torch.testing.assert_close(core(tokens).logits, nested(tokens).logits)


# --- lightning_module


def lightning_trainer(output: Path, epochs: int, *callbacks: Any) -> Any:
    import lightning

    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=output,
        callbacks=list(callbacks),
    )


@lightning_warns
def test_lightning_without_manual_optimization_is_refused_before_anything_moves(tmp_path: Path) -> None:
    import lightning

    class Forgotten(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
            self.sgd = ps.PartialSGD(self.net, optimizer, ps.methods.dropout(0.5))
            return optimizer

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch[0]).square().sum()

    module = Forgotten()
    before = module.net.weight.detach().clone()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4)))
    with pytest.raises(RuntimeError, match=r"called directly.*self\.automatic_optimization = False"):
        lightning_trainer(tmp_path, 1).fit(module, data)
    assert torch.equal(module.net.weight, before) and module.sgd.t == 0


@lightning_warns
@each_method
def test_lightning_module_is_step_with_clip_norm(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    import lightning

    class Counted(lightning.Callback):
        backwards, losses = 0, list[float]()

        def on_after_backward(self, trainer: Any, module: Any) -> None:
            self.backwards += 1

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            assert module.sgd.t == trainer.global_step == number + 1
            assert self.backwards == gradients * trainer.global_step
            self.losses.append(float(trainer.callback_metrics["loss"]))

    lightning_module, counted = example("lightning_module"), Counted()
    trained = lightning_module.main(method, lightning_trainer(tmp_path, 1, counted))
    assert_falls(counted.losses)

    torch.manual_seed(0)
    model = lightning_module.PartialModule(method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    sgd = ps.PartialSGD(model, optimizer, method, clip_norm=1.0)
    for (x, y), loss in zip(lightning_module.batches(), counted.losses, strict=True):
        step = sgd.step(partial(forward_backward, model.network, x, y))
        assert float(step.loss) == loss
        scheduler.step()
    assert_same(model, trained)


@lightning_warns
@each_method
def test_lightning_module_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    train, checkpoint = example("lightning_module").main, tmp_path / "one.ckpt"
    whole = train(method, lightning_trainer(tmp_path, 2))
    first = lightning_trainer(tmp_path, 1)
    train(method, first)
    first.save_checkpoint(checkpoint)
    second = lightning_trainer(tmp_path, 2)
    parts = train(method, second, resume=str(checkpoint))
    assert parts.sgd.t == second.global_step == whole.sgd.t
    assert_same(whole, parts)


@lightning_warns
def test_lightning_trains_a_family(tmp_path: Path) -> None:
    """As the family alone: what lies around it has no parameters here."""
    lightning_module = example("lightning_module")

    def built() -> tuple[Any, ps.Nested]:
        torch.manual_seed(0)
        module = lightning_module.PartialModule(ps.Method())
        module.network = nested = ps.nest(module.network, ps.LowRank(1 / 4, where="0"))
        module.method = ps.methods.alternating()
        return module, nested

    (module, nested), (_, alone) = built(), built()
    lightning_trainer(tmp_path, 1).fit(module, lightning_module.batches())
    optimizer = torch.optim.AdamW(alone.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    sgd = ps.PartialSGD(alone, optimizer, ps.methods.alternating(), clip_norm=1.0)
    for x, y in lightning_module.batches():
        sgd.step(partial(forward_backward, alone, x, y))
        scheduler.step()
    assert sgd.t == module.sgd.t > 0
    assert_same(alone, nested)


# --- wide and deep


def test_wide_and_deep_is_at_most_60_lines_and_both_levels_learn() -> None:
    assert len((EXAMPLES / "wide_and_deep.py").read_text().splitlines()) <= 60
    scores = example("wide_and_deep").main(epochs=6)
    assert scores.keys() == {"core", "full"} and min(scores.values()) > 0.95
