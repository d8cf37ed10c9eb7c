"""Hugging Face's Trainer (fp32, bf16): its accumulation, clipping, schedule, logging and checkpoints stay as they are.

python examples/hf_trainer.py   # a tiny BERT learns which half of its vocabulary the first token is from
"""

import torch
from torch import Tensor, nn, optim
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import partialsgd as ps


class UpdatingOptimizer(optim.Optimizer):
    """The Trainer's optimizer, but its `step()` is `sgd.update()` and its checkpoint holds both states."""

    def __init__(self, sgd: ps.PartialSGD, optimizer: optim.Optimizer) -> None:
        self.sgd, self.optimizer = sgd, optimizer

    def __getattr__(self, name: str) -> object:
        return getattr(self.optimizer, name)

    def step(self, closure: None = None) -> None:
        self.sgd.update()

    def state_dict(self) -> dict[str, object]:
        return {**self.optimizer.state_dict(), "partialsgd": self.sgd.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.sgd.load_state_dict(state["partialsgd"])
        self.optimizer.load_state_dict(state)


class PartialTrainer(Trainer):
    def __init__(self, method: ps.Method, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.method, self.waiting = method, []

    def create_optimizer(self, model: nn.Module | None = None) -> optim.Optimizer:
        if self.optimizer is None:
            optimizer = super().create_optimizer(model)
            self.sgd = ps.PartialSGD(self.model, optimizer, self.method, seed=self.args.seed)
            self.optimizer = UpdatingOptimizer(self.sgd, optimizer)
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], items: Tensor | int | None = None) -> Tensor:
        """Each gradient of a step is over all of its micro-batches: they wait until the last one is here."""
        self.waiting.append(inputs)
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        batches, self.waiting = self.waiting, []
        forward_backward, losses = super().training_step, []
        for g in self.sgd.gradients():
            with g:
                losses.append(sum(forward_backward(model, batch, items) for batch in batches))
        return losses[0]  # at x; the others are at x̃


def main(method: ps.Method, arguments: TrainingArguments, *, resume: str | None = None) -> PartialTrainer:
    set_seed(arguments.seed)
    config = BertConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    data = [{"input_ids": tokens, "labels": int(tokens[0] < 8)} for tokens in torch.randint(16, (512, 8))]
    trainer = PartialTrainer(method, BertForSequenceClassification(config), arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    settings = {"max_steps": 200, "learning_rate": 3e-3, "logging_steps": 50, "dataloader_pin_memory": False}
    main(ps.methods.sam(rho=0.05), TrainingArguments("runs/hf_trainer", **settings))
