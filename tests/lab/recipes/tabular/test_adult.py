"""Adult's files, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from partialsgd.lab.recipes.tabular import adult
from partialsgd.lab.recipes.tabular.tables import Table
from tests.lab.recipes.tabular.made import HEADER, originals, row, with_header


def same(a: Table, b: Table) -> bool:
    return torch.equal(a.numbers, b.numbers) and a.categories == b.categories and torch.equal(a.labels, b.labels)


def test_rows_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    test = adult.read(with_header(tmp_path), 0.2, 0).test
    for i in (0, 1, 17, 29):
        cells = dict(zip(HEADER.split(","), row(1000 + i), strict=True))
        numbers = ("age", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
        assert test.numbers[i].tolist() == [float(cells[name]) for name in numbers]
        words = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "gender")
        assert test.categories[i] == (*(cells[name] for name in words), cells["native-country"])
        assert int(test.labels[i]) == (cells["income"] == ">50K")
    assert ("fnlwgt" in adult.SCHEMA.numbers) is False


def test_all_layouts_say_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("plain", "zipped", "originals")]
    for folder in folders:
        folder.mkdir()
    with_header(folders[0]), with_header(folders[1], zipped=True), originals(folders[2])
    first, *others = (adult.read(folder, 0.2, 0) for folder in folders)
    for other in others:
        assert all(same(getattr(first, name), getattr(other, name)) for name in ("train", "valid", "test"))


def test_a_missing_value_is_a_word_of_its_own(tmp_path: Path) -> None:
    with_header(tmp_path)
    path = tmp_path / "adult_test.csv"
    path.write_text(path.read_text().replace("Tech-support", ""))
    jobs = [words[3] for words in adult.read(tmp_path, 0.2, 0).test.categories]
    assert jobs[:3] == ["?", "?", "Sales"]


def test_columns_may_stand_in_another_order_and_others_beside_them(tmp_path: Path) -> None:
    expected = adult.read(with_header(tmp_path), 0.2, 0)
    for path in tmp_path.iterdir():
        lines = [line.split(",") for line in path.read_text().splitlines()]
        lines = [[*reversed(line), "more"] for line in lines]
        path.write_text("\ufeff" + "\r\n".join(map(",".join, lines)))  # as a spreadsheet writes it
    assert same(adult.read(tmp_path, 0.2, 0).train, expected.train)


def changed(path: Path, line: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["adult_train.csv", "adult_test.csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: "old" + line[2:], r", line 5, column 'age': 'old\d*' is not a number"),
        (lambda line: "nan" + line[2:], r", line 5, column 'age': 'nan' is not a number"),
        (lambda line: "inf" + line[2:], r", line 5, column 'age': 'inf' is not a number"),
        (lambda line: line[2:], r", line 5, column 'age': '' is not a number"),
        (lambda line: line.rsplit(",", 1)[0], r", line 5 has 14 columns, and 15 are expected"),
        (lambda line: line + ",", r", line 5 has 16 columns, and 15 are expected"),
        (lambda line: line.rsplit(",", 1)[0] + ",60K", r", line 5, column 'income': '60K' is neither <=50K nor >50K"),
    ],
)
def test_a_wrong_cell_is_named_by_file_line_and_column(
    tmp_path: Path, name: str, change: Callable[[str], str], message: str
) -> None:
    with_header(tmp_path)
    changed(tmp_path / name, 5, change)
    with pytest.raises(ValueError, match=name.replace(".", r"\.") + message):
        adult.read(tmp_path, 0.2, 0)


def test_lines_of_the_originals_are_counted_from_the_first(tmp_path: Path) -> None:
    originals(tmp_path)
    changed(tmp_path / "adult.test", 3, lambda line: line.replace("Private", "Private, more"))
    with pytest.raises(ValueError, match=r"adult\.test, line 3 has 16 columns, and 15 are expected"):
        adult.read(tmp_path, 0.2, 0)


@pytest.mark.parametrize(
    "change",
    [lambda line: line.replace("occupation", "job"), lambda line: line.replace("race", "occupation")],
)
def test_a_header_without_a_column_or_with_it_twice_is_refused(tmp_path: Path, change: Callable[[str], str]) -> None:
    with_header(tmp_path)
    changed(tmp_path / "adult_train.csv", 1, change)
    with pytest.raises(
        ValueError, match=r"adult_train\.csv, line 1 must be the header and name the column 'occupation'"
    ):
        adult.read(tmp_path, 0.2, 0)


def test_a_file_with_a_header_alone_or_with_nothing_is_refused(tmp_path: Path) -> None:
    with_header(tmp_path)
    for content in (HEADER, ""):
        (tmp_path / "adult_test.csv").write_text(content)
        with pytest.raises(ValueError, match=r"adult_test\.csv has no rows"):
            adult.read(tmp_path, 0.2, 0)


@pytest.mark.parametrize("line", [1, 7])
def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path, line: int) -> None:
    with_header(tmp_path)
    path = tmp_path / "adult_test.csv"
    lines = path.read_bytes().splitlines()
    lines[line - 1] += b"\xe9"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=rf"adult_test\.csv, line {line} is not UTF-8"):
        adult.read(tmp_path, 0.2, 0)


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    with_header(tmp_path, zipped=True)
    path = tmp_path / "adult_train.csv.gz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no gzip", whole[:40] + b"\0\0\0\0" + whole[44:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"adult_train\.csv\.gz is damaged after line \d+"):
            adult.read(tmp_path, 0.2, 0)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        adult.read(tmp_path / "nowhere", 0.2, 0)
    with pytest.raises(FileNotFoundError, match=r"has neither adult_train\.csv and adult_test\.csv nor adult\.data"):
        adult.read(tmp_path, 0.2, 0)
    with_header(tmp_path)
    (tmp_path / "adult_train.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"adult_train\.csv is missing, plain or \.gz, beside .*adult_test\.csv"
    ):
        adult.read(tmp_path, 0.2, 0)
