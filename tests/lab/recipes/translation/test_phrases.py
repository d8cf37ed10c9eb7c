"""The embedded corpus: the same each time, its splits apart, and right in both languages."""

from __future__ import annotations

import datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import babel
import pytest

from partialsgd.lab.recipes.translation import phrases
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.recipes.translation.phrases import Draw, generate


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate(size=600, valid=200, test=100)


@pytest.mark.parametrize("languages", [("en", "de"), ("fr", "ja"), ("ar", "ru")])
def test_no_phrase_of_either_language_occurs_twice_in_all_splits(languages: tuple[str, str]) -> None:
    made = generate(*languages, size=700, valid=60, test=60)
    pairs = [pair for split in made.splits.values() for pair in split]
    for side in zip(*pairs, strict=True):
        assert len(set(side)) == len(side) == 820
        assert all(text == " ".join(text.split()) and text for text in side)


def test_today_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Currencies come and go: those of one day are used."""

    class Day(datetime.date):
        @classmethod
        def today(cls) -> Day:
            return cls(1960, 1, 1)

    expected = generate(size=50, valid=5, test=5)
    monkeypatch.setattr("babel.numbers.datetime", SimpleNamespace(date=Day, datetime=datetime.datetime))
    assert generate(size=50, valid=5, test=5) == expected


@pytest.mark.parametrize(
    ("name", "closest"), [("german", "de"), ("en-GBB", "en_GB"), ("Englsh", "en"), ("", "en, de, fr")]
)
def test_an_unknown_locale_is_refused_with_the_closest(name: str, closest: str) -> None:
    with pytest.raises(ValueError, match=f"Babel knows no locale '{name}'; the closest are {closest}"):
        generate(name, "fr")
    with pytest.raises(ValueError, match=f"Babel knows no locale '{name}'"):
        generate("fr", name)


def test_more_than_there_are_is_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_of_twelve(draw: Draw) -> phrases.Saying:
        month = draw.random.randint(1, 12)
        return lambda locale: babel.dates.format_date(datetime.date(2000, month, 1), "MMMM", locale)

    monkeypatch.setattr(phrases, "KINDS", ((1, one_of_twelve, ()),))
    assert len(generate(size=10, valid=1, test=1).splits["train"]) == 10
    message = r"from en to de there are 12 different phrases, and 14 were asked for; .*\(12 \+ 1 \+ 1\) smaller"
    with pytest.raises(ValueError, match=message):
        generate(size=12, valid=1, test=1)


def test_many_fruitless_draws_are_no_end_as_long_as_some_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_of_two_hundred(draw: Draw) -> phrases.Saying:
        number = draw.random.randrange(200)
        return lambda locale: f"{number} {locale}"

    monkeypatch.setattr(phrases, "KINDS", ((1, one_of_two_hundred, ()),))
    monkeypatch.setattr(phrases, "_FRUITLESS", 60)
    assert len(generate(size=158, valid=1, test=1).splits["train"]) == 158  # of about 320 draws


@pytest.mark.parametrize("vague", ["en", "de"])
def test_what_is_said_alike_of_two_things_is_said_once(monkeypatch: pytest.MonkeyPatch, vague: str) -> None:
    def half_told(draw: Draw) -> phrases.Saying:
        number = draw.random.randrange(20)
        return lambda locale: str(number // 2 if locale.language == vague else number)

    monkeypatch.setattr(phrases, "KINDS", ((1, half_told, ()),))
    pairs = [pair for split in generate(size=8, valid=1, test=1).splits.values() for pair in split]
    assert all(len(set(side)) == 10 for side in zip(*pairs, strict=True))
    with pytest.raises(ValueError, match="there are 10 different phrases"):
        generate(size=9, valid=1, test=1)


@pytest.mark.parametrize(
    ("kind", "seed", "english", "german"),
    [
        (phrases.dated, 1, "Saturday, February 9, 1974", "Samstag, 9. Februar 1974"),
        (phrases.dated, 0, "Feb 15, 2019", "15.02.2019"),
        (phrases.day_of_year, 1, "February 9", "9. Februar"),
        (phrases.part_of_year, 0, "week 3 of February", "Woche 3 im Februar"),
        (phrases.time_of_day, 0, "12:48 PM", "12:48"),
        (phrases.moment, 1, "Saturday, February 9, 1974, 8:07 AM", "Samstag, 9. Februar 1974, 08:07"),
        (phrases.interval, 2, "February – May 1960", "Februar–Mai 1960"),
        (phrases.distance, 0, "in 25 seconds", "in 25 Sekunden"),
        (phrases.distance, 1, "10 months ago", "vor 10 Monaten"),
        (phrases.duration, 0, "2 days, 9 hours, and 33 minutes", "2 Tage, 9 Stunden und 33 Minuten"),
        (phrases.quantity, 0, "777.05 kilometers", "777,05 Kilometer"),
        (phrases.money, 2, "1 Swiss franc", "1 Schweizer Franken"),
        (phrases.money, 1, "2.10 Swiss francs", "2,10 Schweizer Franken"),
        (phrases.price, 0, "₹777.05", "777,05 ₹"),
        (phrases.dialect, 0, "German (Austria)", "Deutsch (Österreich)"),
        (phrases.names("territories"), 0, "Austria and Germany", "Österreich und Deutschland"),
        (phrases.names("languages"), 0, "French and German", "Französisch und Deutsch"),
    ],
)
def test_a_kind_says_one_thing_in_each_language(kind: phrases.Kind, seed: int, english: str, german: str) -> None:
    saying = kind(draw(seed))
    assert [phrases._plain(saying(babel.Locale(language))) for language in ("en", "de")] == [english, german]


@pytest.mark.parametrize("kind", [phrases.names("territories"), phrases.names("languages")])
def test_a_list_names_nothing_twice(kind: phrases.Kind) -> None:
    for seed in range(50):
        said = kind(draw(seed))(babel.Locale("ja"))
        names = said.replace("または", "、").replace("、、", "、").split("、")
        assert len(set(names)) == len(names) == 2


def test_one_is_singular_where_it_reads_as_one() -> None:
    """1.4 of a currency without cents is read as 1: then the noun must be that of 1."""
    said = [phrases.money(draw(seed, currencies=["AFN"]))(babel.Locale("en")) for seed in range(200)]
    assert "1 Afghan Afghani" in said and "1 Afghan Afghanis" not in said
    assert not any("." in text for text in said)


def draw(seed: int, currencies: list[str] | None = None) -> Draw:
    random = Random(seed)
    return Draw(random, ["DE", "AT"], ["de", "fr"], [("de", "AT")], currencies or ["CHF"], ["length-kilometer"])


def test_every_kind_of_the_table_can_be_said_with_what_it_asks_for_alone() -> None:
    """Where both languages have no names for a thing, only the kinds that ask for it are left out."""
    everything = vars(draw(0))
    for _, kind, asked in phrases.KINDS:
        given = {name: everything[name] if name in asked else () for name in everything if name != "random"}
        assert kind(Draw(Random(3), **given))(babel.Locale("de"))


@pytest.mark.parametrize(("most", "style", "last"), [(2, "or", " or "), (4, "standard", " and ")])
def test_a_list_has_two_or_more_and_the_word_that_was_asked_for(most: int, style: Any, last: str) -> None:
    kind = phrases.several(phrases.time_of_day, most=most, style=style)
    said = [kind(draw(seed))(babel.Locale("en")) for seed in range(60)]
    assert {text.count(":") for text in said} == set(range(2, most + 1))
    assert all(last in text for text in said)


def test_the_seed_decides_and_a_larger_corpus_has_the_same_validation_and_test(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {"train": 600, "valid": 200, "test": 100}
    assert corpus.notes == (f"phrases from CLDR {babel.core.get_cldr_version()} by Babel {babel.__version__}",)
    smaller, other = (generate(size=100, valid=200, test=100, seed=seed) for seed in (0, 4))
    assert smaller.splits["valid"] == corpus.splits["valid"] and smaller.splits["test"] == corpus.splits["test"]
    assert smaller.splits["train"] == corpus.splits["train"][:100]
    assert not set(other.splits["train"]) & set(corpus.splits["train"])


def test_locales_are_written_as_people_write_them_and_two_are_needed() -> None:
    made = generate("pt-br", "EN_gb", size=5, valid=1, test=1)
    assert (made.source, made.target) == ("pt_BR", "en_GB")
    with pytest.raises(ValueError, match="source and target are both pt_BR: choose two languages"):
        generate("pt_BR", "pt-br")
    for count in ("size", "valid", "test"):
        with pytest.raises(ValueError, match=f"{count} must be a whole number of at least 1, got 0"):
            generate(**{count: 0})
    # Babel knows no territories, units and currencies of some languages: there are phrases of other phrases.
    assert len(generate("smj", "en", size=200, valid=5, test=5).splits["train"]) == 200


def test_babels_ways_are_made_plain() -> None:
    """Babel takes eleven months for a year where it may, and CLDR writes {1} 'kl'. {0}."""
    texts = [text for pair in generate("fr", "ar", size=300, valid=5, test=5).splits["train"] for text in pair]
    strange = {mark for text in texts for mark in text if mark.isspace() or mark in "\u200e\u200f\u061c"}
    assert strange == {" "}
    assert phrases._timedelta(11 * 2_592_000, "month", babel.Locale("en")) == "11 months"
    assert phrases._timedelta(1, "second", babel.Locale("en")) == "1 second"
    assert phrases.moment(draw(1))(babel.Locale("nn")) == "laurdag 9. februar 1974 kl. 08:07"
