"""Each kind of phrase says one thing in any language."""

from __future__ import annotations

import importlib
import sys
from random import Random
from typing import Any

import babel
import pytest

from partialsgd.lab.recipes.translation import kinds, phrases
from partialsgd.lab.recipes.translation.kinds import Draw


@pytest.mark.parametrize(
    ("kind", "seed", "english", "german"),
    [
        (kinds.dated, 1, "Saturday, February 9, 1974", "Samstag, 9. Februar 1974"),
        (kinds.dated, 0, "Feb 15, 2019", "15.02.2019"),
        (kinds.day_of_year, 1, "February 9", "9. Februar"),
        (kinds.part_of_year, 0, "week 3 of February", "Woche 3 im Februar"),
        (kinds.time_of_day, 0, "12:48 PM", "12:48"),
        (kinds.moment, 1, "Saturday, February 9, 1974, 8:07 AM", "Samstag, 9. Februar 1974, 08:07"),
        (kinds.interval, 2, "February – May 1960", "Februar–Mai 1960"),
        (kinds.distance, 0, "in 25 seconds", "in 25 Sekunden"),
        (kinds.distance, 1, "10 months ago", "vor 10 Monaten"),
        (kinds.duration, 0, "2 days, 9 hours, and 33 minutes", "2 Tage, 9 Stunden und 33 Minuten"),
        (kinds.quantity, 0, "777.05 kilometers", "777,05 Kilometer"),
        (kinds.money, 2, "1 Swiss franc", "1 Schweizer Franken"),
        (kinds.money, 1, "2.10 Swiss francs", "2,10 Schweizer Franken"),
        (kinds.price, 0, "₹777.05", "777,05 ₹"),
        (kinds.dialect, 0, "German (Austria)", "Deutsch (Österreich)"),
        (kinds.territories, 0, "Austria and Germany", "Österreich und Deutschland"),
        (kinds.languages, 0, "French and German", "Französisch und Deutsch"),
    ],
)
def test_a_kind_says_one_thing_in_each_language(kind: kinds.Kind, seed: int, english: str, german: str) -> None:
    saying = kind(draw(seed))
    assert [phrases._plain(saying(babel.Locale(language))) for language in ("en", "de")] == [english, german]


@pytest.mark.parametrize("kind", [kinds.territories, kinds.languages])
def test_a_list_names_nothing_twice(kind: kinds.Kind) -> None:
    for seed in range(50):
        said = kind(draw(seed))(babel.Locale("ja"))
        names = said.replace("または", "、").replace("、、", "、").split("、")
        assert len(set(names)) == len(names) == 2


def test_one_is_singular_where_it_reads_as_one() -> None:
    """1.4 of a currency without cents is read as 1: then the noun must be that of 1."""
    said = [kinds.money(draw(seed, currencies=["AFN"]))(babel.Locale("en")) for seed in range(200)]
    assert "1 Afghan Afghani" in said and "1 Afghan Afghanis" not in said
    assert not any("." in text for text in said)


@pytest.mark.parametrize(("count", "unit", "seconds"), [(11, "month", 2_592_000), (23, "hour", 3600), (1, "second", 1)])
def test_a_time_keeps_its_unit(count: int, unit: Any, seconds: int) -> None:
    """Babel takes eleven months for a year, where it may."""
    said = kinds._timedelta(count * seconds, unit, babel.Locale("en"))
    assert said == f"{count} {unit}{'s' if count > 1 else ''}"


def test_signs_of_a_pattern_are_not_said() -> None:
    """CLDR writes {1} 'kl'. {0}."""
    assert kinds.moment(draw(1))(babel.Locale("nn")) == "laurdag 9. februar 1974 kl. 08:07"


def test_without_babel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.delitem(sys.modules, "partialsgd.lab.recipes.translation.kinds")
    with pytest.raises(ImportError, match=r"babel is needed: pip install partialsgd\[lab\]"):
        importlib.import_module("partialsgd.lab.recipes.translation.kinds")


def draw(seed: int, currencies: list[str] | None = None) -> Draw:
    random = Random(seed)
    return Draw(random, ["DE", "AT"], ["de", "fr"], [("de", "AT")], currencies or ["CHF"], ["length-kilometer"])


def test_every_kind_of_the_table_can_be_said_with_what_it_asks_for_alone() -> None:
    """Where both languages have no names for a thing, only the kinds that ask for it are left out."""
    everything = vars(draw(0))
    for _, kind, asked in kinds.KINDS:
        given = {name: everything[name] if name in asked else () for name in everything if name != "random"}
        assert kind(Draw(Random(3), **given))(babel.Locale("de"))


@pytest.mark.parametrize(("most", "style", "last"), [(2, "or", " or "), (4, "standard", " and ")])
def test_a_list_has_two_or_more_and_the_word_that_was_asked_for(most: int, style: Any, last: str) -> None:
    kind = kinds.several(kinds.time_of_day, most=most, style=style)
    said = [kind(draw(seed))(babel.Locale("en")) for seed in range(60)]
    assert {text.count(":") for text in said} == set(range(2, most + 1))
    assert all(last in text for text in said)
