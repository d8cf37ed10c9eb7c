"""Hugging Face's Trainer: a BERT and the small one inside it from one run, each evaluated and saved.

python examples/hf_trainer.py   # a tiny BERT learns which half of its vocabulary the first token is from
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

import partialsgd as ps
from partialsgd.integrations import PartialTrainer


def main(arguments: TrainingArguments, *, resume: str | bool | None = None) -> PartialTrainer:
    set_seed(arguments.seed)
    config = BertConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    nested = ps.nest(BertForSequenceClassification(config), ps.LowRank(1 / 4))  # before: the model itself
    data = [{"input_ids": tokens, "labels": int(tokens[0] < 8)} for tokens in torch.randint(16, (512, 8))]
    trainer = PartialTrainer(  # before: Trainer, without method
        model=nested,
        args=arguments,
        method=ps.methods.alternating(),
        train_dataset=data[64:],
        eval_dataset=data[:64],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    settings = {"max_steps": 200, "learning_rate": 3e-3, "logging_steps": 50, "dataloader_pin_memory": False}
    trainer = main(TrainingArguments("runs/hf_trainer", eval_strategy="steps", eval_steps=100, **settings))
    small = trainer.model.extract("core")  # a plain module, without anything of partialsgd
