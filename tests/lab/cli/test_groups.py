"""Where a setting is in the help: in one place, and in this order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields

from partialsgd.lab.cli.groups import GROUPS
from partialsgd.lab.recipes import RECIPES
from tests.lab.cli import calls
from tests.lab.cli.calls import Call


def test_every_setting_has_one_place_in_the_help() -> None:
    places = Counter(name for names in GROUPS.values() for name in names)
    assert set(places.values()) == {1}
    assert set(places) == {field.name for recipe in calls.RECIPES for field in fields(RECIPES[recipe])}


def test_help_has_the_groups_in_their_order_and_none_that_is_empty(call: Call) -> None:
    groups = [group for group in GROUPS if group]
    for recipe in calls.RECIPES:
        names = {field.name for field in fields(RECIPES[recipe])}
        _, out, _ = call("train", recipe, "--help")
        shown = re.findall(r"^(?:╭─)? (\w+) options ", out, flags=re.MULTILINE)
        assert shown == [group for group in groups if names & set(GROUPS[group])], recipe


def test_within_a_group_the_order_is_that_of_the_list(call: Call) -> None:
    _, out, _ = call("train", "tabular", "--help")
    shown = re.findall(r"^[│ ] --([a-z0-9-]+)", out, flags=re.MULTILINE)
    known = {field.name for field in fields(RECIPES["tabular"])}
    every = [name.replace("_", "-") for names in GROUPS.values() for name in names if name in known]
    assert [name for name in shown if name in every] == every
