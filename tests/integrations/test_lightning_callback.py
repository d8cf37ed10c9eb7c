"""Lightning with a method: plain is Lightning to the bit, every level is validated, and it resumes to the bit."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import partialsgd as ps

lightning = pytest.importorskip("lightning", reason="of the extra [lightning]")

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402  # after the skip
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402  # after the skip
from torchmetrics import MeanMetric  # noqa: E402  # after the skip

from partialsgd.integrations import PartialSGDCallback  # noqa: E402  # after the skip

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",  # torch 2.13 has deprecated what Lightning 2.6 uses
    "ignore:The '.*_dataloader' does not have many workers:UserWarning",  # on three cores or more
    "ignore:The number of training batches:UserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
    "ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning",
)
METHODS = {"sam": (ps.methods.sam(rho=0.05), 2), "dropout": (ps.methods.dropout(keep=0.9), 1)}
each_method = pytest.mark.parametrize(("method", "gradients"), METHODS.values(), ids=METHODS)


@pytest.fixture(autouse=True)
def _same_torch_afterwards() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


class Module(lightning.LightningModule):
    """Dropout, a scheduler, a metric object, and what it logs; `nested` puts a smaller network inside."""

    def __init__(self, *, nested: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
        self.network = ps.nest(network, ps.Width(1 / 4)) if nested else network
        self.mean, self.passes, self.losses = MeanMetric(), 0, []
        self.validated: list[str] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        self.passes += 1
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        loss = self.loss(batch)
        self.mean(loss)
        self.log("val_loss", loss)
        self.log("val_mean", self.mean)

    def on_validation_epoch_end(self) -> None:
        self.validated.append(getattr(self.network, "level", "full"))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        if "loss" in self.trainer.callback_metrics:
            self.losses.append(float(self.trainer.callback_metrics["loss"]))


def batches(*, examples: int = 48) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(examples, 8, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(dim=1) > 0).long()), batch_size=4)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    settings = {"max_epochs": 1, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "log_every_n_steps": 1}
    checkpoints = {"enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks)}
    return lightning.Trainer(
        default_root_dir=folder, callbacks=list(callbacks), **{**quiet, **settings, **checkpoints, **options}
    )


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    other = b.state_dict()
    return [name for name, tensor in a.state_dict().items() if not torch.equal(tensor, other[name])]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("nested", [False, True], ids=["network", "nested"])
def test_the_plain_method_is_lightning(tmp_path: Path, nested: bool, precision: str) -> None:
    def fitted(*callbacks: Any) -> tuple[Module, Any]:
        module, fitting = Module(nested=nested), trainer(tmp_path, *callbacks, precision=precision, max_epochs=2)
        fitting.fit(module, batches(), batches(examples=8))
        return module, fitting

    (ours, partial_run), (theirs, plain_run) = fitted(PartialSGDCallback()), fitted()
    assert not differing(ours, theirs)
    assert ours.losses == theirs.losses and partial_run.global_step == plain_run.global_step == 12
    of_full = {name: value for name, value in partial_run.callback_metrics.items() if not name.startswith("core_")}
    assert of_full == plain_run.callback_metrics


@pytest.mark.parametrize("fused", [False, True])
def test_the_plain_method_is_lightning_with_a_gradient_scaler_and_a_step_that_overflows(
    tmp_path: Path, fused: bool
) -> None:
    """The scaler of "16-mixed", which Lightning does not offer for a CPU; one step has an infinite gradient."""

    class Overflowing(Module):
        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            return super().training_step(batch, number) * (float("inf") if number == 4 else 1.0)

        def configure_optimizers(self) -> Any:
            configured = super().configure_optimizers()
            configured["optimizer"].param_groups[0]["fused"] = fused
            configured["optimizer"]._step_supports_amp_scaling = fused
            return configured

    def fitted(*callbacks: Any) -> tuple[Module, Any, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        module, fitting = Overflowing(), trainer(
            tmp_path, *callbacks, plugins=[plugin], max_epochs=2, gradient_clip_val=None if fused else 1.0
        )  # fmt: skip
        fitting.fit(module, batches())
        assert fitting.precision_plugin.scaler is scaler
        return module, fitting, scaler

    callback = PartialSGDCallback()
    (ours, run, scaler), (theirs, plain_run, its_scaler) = fitted(callback), fitted()
    assert not differing(ours, theirs)
    assert callback.sgd.t == 10 and run.global_step == plain_run.global_step == 12
    assert scaler.state_dict() == its_scaler.state_dict() and scaler.get_scale() == 256.0


@pytest.mark.parametrize(
    "method", [ps.methods.extragradient(eta=0.5), ps.methods.dropout(keep=0.9)], ids=lambda m: m.name
)
def test_a_scaled_gradient_is_unscaled_before_it_is_read_masked_and_clipped(tmp_path: Path, method: ps.Method) -> None:
    class BySGD(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    modules = []
    for scale in (1.0, 1024.0):
        callback, module = PartialSGDCallback(method), BySGD()
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100))
        trainer(tmp_path, callback, plugins=[plugin], max_steps=2).fit(module, batches())
        assert callback.sgd.t == 2
        modules.append(module)
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


@each_method
def test_a_step_is_step_with_clip_norm(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    callback, module = PartialSGDCallback(method, seed=3), Module()
    model = copy.deepcopy(module.network)
    fitting = trainer(tmp_path, callback)
    torch.manual_seed(5)
    fitting.fit(module, batches())
    assert callback.sgd.t == fitting.global_step == 6 and module.passes == 12 * gradients

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    named = nn.ModuleDict({"network": model})  # masks are drawn from the names of parameters
    sgd = ps.PartialSGD(named, optimizer, method, seed=3, clip_norm=1.0)
    torch.manual_seed(5)
    loader = iter(batches())
    for _ in range(6):
        sgd.step(partial(accumulated, model, [next(loader), next(loader)]))
        scheduler.step()
    assert not differing(model, module.network)


def test_distillation_is_that_of_a_loop(tmp_path: Path) -> None:
    def distilled(network: ps.Nested, batch: list[Tensor]) -> Tensor:
        outputs = network(batch[0])
        loss = nn.functional.cross_entropy(outputs, batch[1])
        return loss if network.teacher is None else (loss + ps.soft_cross_entropy(outputs, network.teacher)) / 2

    class Distilling(Module):
        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            return distilled(self.network, batch)

    module = Distilling(nested=True)
    network = copy.deepcopy(module.network)
    torch.manual_seed(5)
    trainer(tmp_path, PartialSGDCallback(ps.methods.alternating(distill=True)), accumulate_grad_batches=1).fit(
        module, batches()
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    sgd = ps.PartialSGD(network, optimizer, ps.methods.alternating(distill=True), clip_norm=1.0)
    taught = 0

    def step(batch: list[Tensor], g: Any) -> Tensor:
        nonlocal taught
        loss = distilled(network, batch)
        taught += g.teacher is not None
        loss.backward()
        return loss

    torch.manual_seed(5)
    for batch in batches():
        sgd.step(partial(step, batch))
        scheduler.step()
    assert taught == 6 and not differing(network, module.network)


def accumulated(model: nn.Module, pair: list[list[Tensor]]) -> Tensor:
    total = torch.zeros(())
    for x, y in pair:
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        total += loss.detach()
    return total


def test_the_first_gradient_of_a_step_is_logged(tmp_path: Path) -> None:
    """The second one of SAM is at another point, and would be a larger loss."""
    seen = {}
    for name, method in (("plain", ps.Method()), ("sam", ps.methods.sam(rho=0.5))):
        module = Module()
        module.network[2].p = 0.0
        trainer(tmp_path, PartialSGDCallback(method), accumulate_grad_batches=1, max_steps=1).fit(module, batches())
        seen[name] = module.losses
    assert len(seen["sam"]) == 1 and seen["sam"] == seen["plain"]


def test_every_level_is_validated_by_itself_and_callbacks_see_all_of_them_once(tmp_path: Path) -> None:
    module = Module(nested=True)
    best = ModelCheckpoint(tmp_path, monitor="core_val_loss", save_top_k=1)
    stopping = EarlyStopping("core_val_mean", patience=50)
    fitting = trainer(tmp_path, PartialSGDCallback(ps.methods.alternating()), best, stopping, max_epochs=3)
    fitting.fit(module, batches(), validation := batches(examples=16))
    module.eval()
    assert module.validated == ["core", "full"] * 4  # the sanity check, and three epochs
    for level, prefix in (("full", ""), ("core", "core_")):
        with torch.no_grad(), module.network.at(level):
            expected = torch.stack([module.loss(batch) for batch in validation]).mean()
        for name in ("val_loss", "val_mean"):
            assert float(fitting.callback_metrics[prefix + name]) == pytest.approx(float(expected), rel=1e-5)
    assert float(best.best_model_score) == min(map(float, best.best_k_models.values()))
    assert float(best.best_model_score) <= float(fitting.callback_metrics["core_val_loss"])

    (validated,) = trainer(tmp_path, PartialSGDCallback()).validate(module, validation, verbose=False)
    assert validated == {name: float(value) for name, value in fitting.callback_metrics.items() if "val" in name}
    assert "core_val_loss" not in trainer(tmp_path).validate(module, validation, verbose=False)[0]


@each_method
def test_it_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    def fitted(epochs: int, **options: Any) -> tuple[Module, Any, Any]:
        module, callback = Module(), PartialSGDCallback(method)
        module.network[2].p = 0.0  # torch's generator is not in a checkpoint of Lightning
        fitting = trainer(tmp_path, callback, max_epochs=epochs)
        fitting.fit(module, batches(), **options)
        return module, callback, fitting

    whole, callback, _ = fitted(2)
    _, _, first = fitted(1)
    first.save_checkpoint(tmp_path / "one.ckpt")
    parts, resumed, _ = fitted(2, ckpt_path=tmp_path / "one.ckpt")
    assert callback.sgd.t == resumed.sgd.t == 12
    assert not differing(whole, parts)


def test_a_family_that_is_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """With SIGKILL while the third epoch runs; Lightning's last checkpoint is complete, because it is renamed."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, "-m", "tests.integrations.test_lightning_callback", str(tmp_path)]
    killed = subprocess.run([*command, "kill"], cwd=root, env=env, timeout=600)
    assert killed.returncode == -9
    script(tmp_path, resume=True)
    script(whole := tmp_path / "whole")
    assert not differing(
        torch.load(tmp_path / "end.pt", weights_only=False), torch.load(whole / "end.pt", weights_only=False)
    )


class KillAtStep(lightning.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, fitting: Any, module: Any, batch: Any, number: int) -> None:
        if fitting.global_step == self.step:
            os.kill(os.getpid(), 9)


def script(folder: Path, *, resume: bool = False, kill: bool = False) -> None:
    module = Module(nested=True)
    module.network.model[2].p = 0.0
    folder.mkdir(exist_ok=True)
    callbacks = [PartialSGDCallback(ps.methods.alternating()), ModelCheckpoint(folder, save_last=True)]
    with suppress(FileNotFoundError):
        (folder / "end.pt").unlink()
    fitting = trainer(folder, *callbacks, *([KillAtStep(14)] if kill else []), max_epochs=4)
    fitting.fit(module, batches(), ckpt_path="last" if resume else None)
    torch.save(module.network, folder / "end.pt")


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(ValueError, match=r"PartialSGDCallback works with automatic optimization.*PartialSGD in on_tr"):
        trainer(tmp_path, PartialSGDCallback(), accumulate_grad_batches=1, gradient_clip_val=None).fit(
            Manual(), batches()
        )
    plain = trainer(tmp_path)
    plain.fit(Module(), batches())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match=r"no state of a PartialSGDCallback.*without ckpt_path"):
        trainer(tmp_path, PartialSGDCallback(), max_epochs=2).fit(
            Module(), batches(), ckpt_path=tmp_path / "plain.ckpt"
        )
    with pytest.raises(TypeError, match=r"call it: methods\.alternating\(\)"):
        PartialSGDCallback(ps.methods.alternating)


def test_the_trainer_has_its_own_loops_again_afterwards(tmp_path: Path) -> None:
    fitting = trainer(tmp_path, PartialSGDCallback())
    before = (fitting.validate_loop, fitting.fit_loop.epoch_loop.val_loop)
    fitting.fit(Module(nested=True), batches(), batches(examples=8))
    assert before == (fitting.validate_loop, fitting.fit_loop.epoch_loop.val_loop)


if __name__ == "__main__":
    script(Path(sys.argv[1]), kill="kill" in sys.argv)
