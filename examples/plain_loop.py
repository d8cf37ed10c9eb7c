"""An ordinary PyTorch loop: clipping, a learning-rate schedule, saving, resuming.

python examples/plain_loop.py run.pt    # call it again: it goes on where the last call stopped
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import partialsgd as ps


def batch_at(t: int) -> tuple[Tensor, Tensor]:
    """A function of t, so that a resumed run sees what an uninterrupted one would have seen."""
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(t))
    return x, (x[:, :10].sum(dim=1) > x[:, 10:].sum(dim=1)).long()


def save(path: Path, parts: dict[str, Any]) -> None:
    """Torch's random state goes with it: the model's own dropout draws from there."""
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, "random": torch.get_rng_state()}, path)


def load(path: Path, parts: dict[str, Any]) -> None:
    states = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(states[name])
    torch.set_rng_state(states["random"])


def main(path: Path, method: ps.Method, *, steps: int, until: int) -> tuple[nn.Module, list[float]]:
    """Train up to step `until` of a schedule of `steps`; the model, and the losses of this call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    sgd = ps.PartialSGD(model, optimizer, method, seed=0)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sgd": sgd}
    if path.exists():
        load(path, parts)

    losses = []
    while sgd.t < until:
        x, y = batch_at(sgd.t)
        for g in sgd.gradients():  # twice with sam, on the same batch; no zero_grad: sgd owns it
            with g:
                g.loss = nn.functional.cross_entropy(model(x), y)
                g.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step = sgd.update()  # where optimizer.step() was
        scheduler.step()
        losses.append(float(step.loss))
    save(path, parts)
    return model, losses


if __name__ == "__main__":
    torch.set_num_threads(1)  # a network this small is slower on more
    _, losses = main(Path(sys.argv[1]), ps.methods.sam(rho=0.05), steps=200, until=200)
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}" if losses else "this run has ended already")
