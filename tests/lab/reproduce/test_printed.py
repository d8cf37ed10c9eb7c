"""The paper's numbers: typed once more as they are printed, and as differences that its text speaks of."""

from __future__ import annotations

import pytest
from partialsgd.lab.reproduce.printed import FULL_ALONE, LOW_RANK_64, TABLE_3, TABLES, Printed


def test_numbers_are_shown_as_they_are_printed() -> None:
    assert str(Printed(17.95, 3.65)) == "17.95 (3.65)"
    assert str(Printed(22.1)) == "22.10"


def test_every_number_is_the_papers() -> None:
    typed = """
        table1a 1/4   28.96 (0.04)   29.15 (0.63)   31.34 (0.36)
        table1a 1/8   27.87 (0.11)   28.20 (0.48)   31.62 (0.13)
        table1a 1/32  17.95 (3.65)   24.03 (0.77)   31.20 (0.58)
        table1b 1/32  23.20 (0.09)   23.18 (0.12)   25.50 (0.22)
        table2a 1/4   31.29 (0.27)   31.59 (0.18)   31.95 (0.35)
        table2a 1/32  23.58 (0.58)   23.84 (0.25)   30.41 (0.40)
        table2b 1/32  20.47 (0.34)   20.08 (0.40)   25.46 (0.17)
    """
    found = [
        " ".join((table, ratio, *map(str, (trio.core_alone, trio.core, trio.full))))
        for table, trios in TABLES.items()
        for ratio, trio in trios.items()
    ]
    assert found == [" ".join(line.split()) for line in typed.split("\n") if line.strip()]
    assert [str(printed) for printed in FULL_ALONE.values()] == ["32.48 (0.32)", "26.41 (0.14)"]
    assert str(LOW_RANK_64) == "22.10"
    assert {method: (str(each.core), str(each.full), each.epoch_flops) for method, each in TABLE_3.items()} == {
        "alternating": ("93.94", "95.05", 31.3e12),
        "slimmable": ("93.99", "94.72", 62.7e12),
    }


def test_how_far_the_joint_core_is_ahead_of_the_core_alone() -> None:
    ahead = {
        (table, ratio): round(trio.core.mean - trio.core_alone.mean, 2)
        for table, trios in TABLES.items()
        for ratio, trio in trios.items()
    }
    assert ahead == {
        ("table1a", "1/4"): 0.19,
        ("table1a", "1/8"): 0.33,
        ("table1a", "1/32"): 6.08,
        ("table1b", "1/32"): -0.02,
        ("table2a", "1/4"): 0.30,
        ("table2a", "1/32"): 0.26,
        ("table2b", "1/32"): -0.39,
    }


def test_how_far_the_joint_full_network_is_behind_the_full_one_alone() -> None:
    corpus = {"table1a": "iwslt14", "table1b": "wmt17", "table2a": "iwslt14", "table2b": "wmt17"}
    behind = [
        round(FULL_ALONE[corpus[table]].mean - trio.full.mean, 2)
        for table, each in TABLES.items()
        for trio in each.values()
    ]
    assert behind == [1.14, 0.86, 1.28, 0.91, 0.53, 2.07, 0.95]


def test_slimmable_takes_twice_the_flops_of_alternating() -> None:
    assert TABLE_3["slimmable"].epoch_flops / TABLE_3["alternating"].epoch_flops == pytest.approx(2, rel=2e-3)
    assert LOW_RANK_64.mean - TABLES["table2b"]["1/32"].core_alone.mean == pytest.approx(1.63)
