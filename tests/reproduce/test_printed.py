"""The paper's numbers: typed once more, as differences that its text speaks of."""

from __future__ import annotations

import pytest

from partialsgd.reproduce.printed import FULL_ALONE, LOW_RANK_64, TABLE_3, TABLES, Printed


def test_numbers_are_shown_as_they_are_printed() -> None:
    assert str(Printed(17.95, 3.65)) == "17.95 (3.65)"
    assert str(Printed(22.1)) == "22.10"


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


def test_deviations() -> None:
    total = sum(
        one.deviation or 0.0 for each in TABLES.values() for trio in each.values() for one in vars(trio).values()
    )
    assert total == pytest.approx(10.12)
    assert [printed.deviation for printed in FULL_ALONE.values()] == [0.32, 0.14]


def test_slimmable_takes_twice_the_flops_of_alternating() -> None:
    assert TABLE_3["slimmable"].epoch_flops / TABLE_3["alternating"].epoch_flops == pytest.approx(2, rel=2e-3)
    assert LOW_RANK_64.mean - TABLES["table2b"]["1/32"].core_alone.mean == pytest.approx(1.63)
