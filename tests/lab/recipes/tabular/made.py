"""Adult in miniature: files in its layouts."""

from __future__ import annotations

import gzip
from pathlib import Path

HEADER = (
    "age,workclass,fnlwgt,education,educational-num,marital-status,occupation,relationship,race,gender,"
    "capital-gain,capital-loss,hours-per-week,native-country,income"
)
_JOBS, _SCHOOLS = ("Sales", "Tech-support", "?"), ("Bachelors", "HS-grad")


def row(i: int) -> list[str]:
    """Rows that differ, of both classes."""
    job, school = _JOBS[i % 3], _SCHOOLS[i % 2]
    rest = ["Never-married", job, "Not-in-family", "White", ("Male", "Female")[i // 2 % 2]]
    numbers = [str(100 * (i % 5)), str(i % 3), str(30 + i % 20), "United-States"]
    label = ">50K" if (i * 7) % 10 < 4 else "<=50K"
    return [str(20 + i % 50), "Private", str(1000 + i), school, str(9 + i % 2), *rest, *numbers, label]


def with_header(folder: Path, train: int = 60, test: int = 30, *, zipped: bool = False) -> Path:
    """adult_train.csv and adult_test.csv."""
    for name, start, count in (("train", 0, train), ("test", 1000, test)):
        lines = [HEADER, *(",".join(row(start + i)) for i in range(count))]
        text = ("\n".join(lines) + "\n").encode()
        path = folder / f"adult_{name}.csv{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(text) if zipped else text)
    return folder


def originals(folder: Path, train: int = 60, test: int = 30) -> Path:
    """adult.data and adult.test, as the UCI has them: no header, a remark, dots, an empty line at the end."""
    lines = [", ".join(row(i)) for i in range(train)]
    (folder / "adult.data").write_text("\n".join(lines) + "\n\n")
    lines = ["|1x3 Cross validator", *(", ".join(row(1000 + i)) + "." for i in range(test))]
    (folder / "adult.test").write_text("\n".join(lines) + "\n\n")
    return folder
