"""Example inputs: like those of the first call, with another batch size."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch

from partialsgd.nested.example_inputs import as_call, as_example, from_config, tensors_of
from tests.zoo import ZOO


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_batch_is_a_mapping_a_tuple_or_the_one_argument() -> None:
    x = torch.ones(2)
    assert as_call(x)[0][0] is x and as_call(x)[1] == {}
    assert as_call((x, None)) == ((x, None), {}) and as_call([x]) == ((x,), {})
    assert as_call(UserDict(a=x)) == ((), {"a": x}), "the kind of mapping that tokenizers return"


@pytest.mark.parametrize("given", [(), {}, (1, None), {"a": "text"}, torch.tensor(1.0)])
def test_an_example_without_a_tensor_that_has_rows_is_refused(given) -> None:
    with pytest.raises(ValueError, match="no tensor"):
        as_example(given)


def test_floating_point_is_drawn_anew_and_of_others_the_rows_are_drawn() -> None:
    ids = torch.arange(12).view(6, 2)
    x = torch.full((6, 3), 7.0, dtype=torch.float64)
    example = as_example({"x": x, "ids": ids, "keep": ids > 3, "n": 5, "scale": 2.0})
    for rows in (2, 3, 9):
        _, others = example.drawn(rows, generator())
        x = others["x"]
        assert x.shape == (rows, 3) and x.dtype is torch.float64 and 0.1 < float(x.std()) < 3
        assert others["ids"].shape == others["keep"].shape == (rows, 2)
        assert all(any(torch.equal(row, old) for old in ids) for row in others["ids"]), "rows that were there"
        assert others["n"] == 5 and others["scale"] == 2.0
    assert torch.equal(x, example.drawn(9, generator())[1]["x"]), "the generator says what is drawn"


def test_of_a_large_batch_a_few_rows_are_kept() -> None:
    example = as_example(torch.zeros(2_000, 1_000))
    assert sum(leaf.numel() for leaf in tensors_of(example.call)) <= 10_000
    assert example.drawn(3, generator())[0][0].shape == (3, 1_000)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "marian", "vit"])
def test_a_hugging_face_model_says_what_it_takes(name: str) -> None:
    model = ZOO[name].build().eval()
    random = torch.get_rng_state()
    example = from_config(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert example is not None
    for rows in (2, 3):
        args, kwargs = example.drawn(rows, generator())
        outputs = list(tensors_of(model(*args, **kwargs)))
        assert outputs and len(outputs[0]) == rows
