"""The census data "Adult": who earns more than 50,000 a year. Files with a header, or the originals of the UCI."""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from partialsgd.lab.recipes.tabular.tables import Schema, Table, Tables, tables

SCHEMA = Schema(
    numbers=("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    categories=(
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    ),
    # Those of the published wide-and-deep model for these data.
    crosses=(("education", "occupation"), ("age", "education", "occupation"), ("native-country", "occupation")),
)
"""`fnlwgt` is left out: it says how many people a row stands for, and nothing about them."""

_LABEL = "income"
_LABELS = {"<=50K": 0, ">50K": 1}
_ALSO = {"educational-num": "education-num", "gender": "sex"}
_ORIGINAL = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", _LABEL),
)
_PAIRS = (("adult_train.csv", "adult_test.csv"), ("adult.data", "adult.test"))


def read(folder: str | os.PathLike[str], valid_share: float, seed: int) -> Tables:
    """The rows for training and those for the test, as they were published; validation is taken from the first."""
    train, test = _files(Path(folder))
    return tables(SCHEMA, _table(train), _table(test), valid_share, seed)


def _files(folder: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"--data {folder} is no folder; give the one with adult_train.csv and adult_test.csv")
    for pair in _PAIRS:
        found = [next((f for f in (folder / name, folder / f"{name}.gz") if f.is_file()), None) for name in pair]
        train, test = found
        if train is not None and test is not None:
            return train, test
        if train is not None or test is not None:
            missing = pair[0] if train is None else pair[1]
            raise FileNotFoundError(f"{folder / missing} is missing, plain or .gz, beside {train or test}")
    raise FileNotFoundError(f"{folder} has neither adult_train.csv and adult_test.csv nor adult.data and adult.test")


def _table(path: Path) -> Table:
    """An unknown value, "?" or nothing, is a word like the others."""
    numbers, categories, labels = [], [], []
    for place, row in _rows(path):
        numbers.append([_number(row[name], f"{place}, column {name!r}") for name in SCHEMA.numbers])
        categories.append(tuple(row[name] or "?" for name in SCHEMA.categories))
        labels.append(_label(row[_LABEL], f"{place}, column {_LABEL!r}"))
    if not labels:
        raise ValueError(f"{path} has no rows")
    return Table(torch.tensor(numbers, dtype=torch.float64), categories, torch.tensor(labels))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each row by the names of its columns, and where it stands."""
    names: Sequence[str] | None = None if ".csv" in path.suffixes else _ORIGINAL
    lines = csv.reader(_lines(path), skipinitialspace=True)
    for line in lines:
        cells, place = [cell.strip() for cell in line], f"{path}, line {lines.line_num}"
        if not any(cells) or cells[0].startswith("|"):  # the first line of adult.test is a remark
            continue
        if names is None:
            names = _header(cells, place)
            continue
        if len(cells) != len(names):
            raise ValueError(f"{place} has {len(cells)} columns, and {len(names)} are expected")
        yield place, dict(zip(names, cells, strict=True))


def _header(cells: Sequence[str], place: str) -> list[str]:
    names = [_ALSO.get(cell, cell) for cell in cells]
    for name in (*SCHEMA.numbers, *SCHEMA.categories, _LABEL):
        if names.count(name) != 1:
            raise ValueError(f"{place} must be the header and name the column {name!r} once; it is {', '.join(cells)}")
    return names


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number} is not UTF-8 ({error})") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number} ({error}); get it again") from error


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: {text!r} is not a number")
    return value


def _label(text: str, place: str) -> int:
    label = _LABELS.get(text.removesuffix("."))  # adult.test has a dot there
    if label is None:
        raise ValueError(f"{place}: {text!r} is neither {' nor '.join(_LABELS)}")
    return label
