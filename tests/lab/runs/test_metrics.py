"""Validation numbers in a record."""

from __future__ import annotations

from partialsgd.lab.runs.metrics import evaluation


def test_an_evaluation_is_told_by_level_also_with_a_slash_in_its_name() -> None:
    record = {"t": 3, "valid/core/loss": 1, "valid/1/4/BLEU": 2.5, "valid/core/BLEU": 9.0, "lr": 0.1}
    assert evaluation(record) == {"core": {"loss": 1.0, "BLEU": 9.0}, "1/4": {"BLEU": 2.5}}
