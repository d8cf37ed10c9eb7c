"""A run that cannot go on says what to do, with options that the recipe has."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.advice import advised
from partialsgd.lab.training.settings import Settings

NAN = FloatingPointError("the loss is NaN at step 3; write another loop")


def told(error: Exception, settings: Settings, run: Run) -> str:
    with pytest.raises(type(error)) as found, advised(run, settings):
        raise error
    return str(found.value)


@pytest.mark.parametrize(
    ("settings", "tips"),
    [
        (Translation(), "a smaller --lr, a longer --warm-up, --clip-norm 1, another --init, or a look"),
        (Images(clip_norm=1.0, precision="fp16"), "a smaller --lr, .*a smaller --clip-norm, .*--precision fp32, or a"),
        (Tabular(), "a smaller --lr-wide, a smaller --lr-deep, a longer --warm-up, --clip-norm 1, or a look"),
    ],
)
def test_what_to_try_are_options_of_the_recipe(tmp_path: Path, settings: Settings, tips: str) -> None:
    text = told(NAN, settings, Run(tmp_path))
    assert re.match(rf"the loss is NaN at step 3\. What to try: {tips}", text)
    assert "another loop" not in text  # advice for those who wrote one


def test_the_last_good_state_is_named_where_there_is_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert told(NAN, Tabular(), run).endswith("There is no checkpoint yet: start anew, with another --out")
    checkpoints.save(run.checkpoints, 4, {}, keep=1)
    assert told(NAN, Tabular(), run).endswith(f"The last good checkpoints are in {run.checkpoints}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_with_how_to_go_on(tmp_path: Path, number: int) -> None:
    text = told(OSError(number, "no room"), Tabular(), Run(tmp_path))
    assert text.startswith(f"{tmp_path} could not be written ([Errno {number}] no room). Make room on the disk, then: ")
    assert f"partialsgd resume {tmp_path} " in text


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "not yours"), ValueError("other"), OSError("no number")]
)
def test_other_errors_are_as_they_were(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as found, advised(Run(tmp_path), Tabular()):
        raise error
    assert found.value is error
