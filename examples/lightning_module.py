"""Lightning: one callback and one line in the module give two sizes of a network; each is validated and saved.

python examples/lightning_module.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import partialsgd as ps
from partialsgd.integrations import PartialSGDCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
        self.network = ps.nest(network, ps.Width(1 / 4))  # before: network

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("accuracy", (self.network(batch[0]).argmax(dim=1) == batch[1]).float().mean())


def batches(seed: int) -> DataLoader:
    x = torch.randn(1024, 20, generator=torch.Generator().manual_seed(seed))
    y = (x[:, :10].sum(dim=1) > x[:, 10:].sum(dim=1)).long()
    return DataLoader(TensorDataset(x, y), batch_size=32)


def main(**settings: object) -> tuple[lightning.Trainer, Classifier]:
    torch.manual_seed(0)
    module, callbacks = Classifier(), [PartialSGDCallback(ps.methods.alternating())]  # before: no callback
    trainer = lightning.Trainer(callbacks=callbacks, gradient_clip_val=1.0, **settings)
    trainer.fit(module, batches(0), batches(1))
    return trainer, module


if __name__ == "__main__":
    trainer, module = main(max_epochs=5, log_every_n_steps=10, default_root_dir="runs/lightning")
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    small = module.network.extract("core")  # a plain module
