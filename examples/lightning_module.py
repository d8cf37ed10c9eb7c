"""Lightning: manual optimization around `self.optimizers()`, so that Lightning still counts the steps.

python examples/lightning_module.py
"""

from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import partialsgd as ps


class PartialModule(lightning.LightningModule):
    def __init__(self, method: ps.Method) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.method, self.saved = method, None
        self.network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)}

    def on_train_start(self) -> None:
        self.sgd = ps.PartialSGD(self.trainer.model, self.optimizers(), self.method, clip_norm=1.0)
        if self.saved is not None:
            self.sgd.load_state_dict(self.saved)
            self.saved = None

    def training_step(self, batch: list[Tensor], _: int) -> None:
        x, y = batch

        def closure() -> Tensor:  # runs twice with sam, on the same batch
            loss = nn.functional.cross_entropy(self.network(x), y)
            self.manual_backward(loss)
            return loss

        step = self.sgd.step(closure)
        self.lr_schedulers().step()
        self.log("loss", step.loss, prog_bar=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["partialsgd"] = self.sgd.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["partialsgd"]  # the optimizer does not exist yet; see on_train_start


def batches() -> DataLoader:
    x = torch.randn(1024, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, :10].sum(dim=1) > x[:, 10:].sum(dim=1)).long()
    return DataLoader(TensorDataset(x, y), batch_size=32)


def main(method: ps.Method, trainer: lightning.Trainer, *, resume: str | None = None) -> PartialModule:
    torch.manual_seed(0)
    module = PartialModule(method)
    trainer.fit(module, batches(), ckpt_path=resume)
    return module


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=5, log_every_n_steps=10, default_root_dir="runs/lightning")
    main(ps.methods.sam(rho=0.05), trainer)
