"""The embedded corpus: the same each time, its splits apart, and right in both languages."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import babel
import pytest

from partialsgd.lab.recipes.translation import kinds, phrases
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.recipes.translation.kinds import Draw
from partialsgd.lab.recipes.translation.phrases import generate


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate(size=3000, valid=200, test=100)


def test_the_sizes_are_those_asked_for(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {"train": 3000, "valid": 200, "test": 100}
    assert (corpus.source, corpus.target) == ("en", "de")
    assert corpus.notes == (f"phrases from CLDR {babel.core.get_cldr_version()} by Babel {babel.__version__}",)


@pytest.mark.parametrize("languages", [("en", "de"), ("fr", "ja"), ("ar", "ru")])
def test_no_phrase_of_either_language_occurs_twice_in_all_splits(languages: tuple[str, str]) -> None:
    made = generate(*languages, size=700, valid=60, test=60)
    pairs = [pair for split in made.splits.values() for pair in split]
    for side in zip(*pairs, strict=True):
        assert len(set(side)) == len(side) == 820
        assert all(text == " ".join(text.split()) and text for text in side)


def test_the_seed_decides() -> None:
    first = generate(size=40, valid=5, test=5, seed=3)
    assert generate(size=40, valid=5, test=5, seed=3) == first
    other = generate(size=40, valid=5, test=5, seed=4)
    assert not set(other.splits["train"]) & set(first.splits["train"])


def test_today_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Currencies come and go: those of one day are used."""

    class Day(datetime.date):
        @classmethod
        def today(cls) -> Day:
            return cls(1960, 1, 1)

    expected = generate(size=50, valid=5, test=5)
    monkeypatch.setattr("babel.numbers.datetime", SimpleNamespace(date=Day, datetime=datetime.datetime))
    assert generate(size=50, valid=5, test=5) == expected


def test_a_larger_corpus_has_the_same_validation_and_test(corpus: Corpus) -> None:
    smaller = generate(size=100, valid=200, test=100)
    assert smaller.splits["valid"] == corpus.splits["valid"]
    assert smaller.splits["test"] == corpus.splits["test"]
    assert smaller.splits["train"] == corpus.splits["train"][:100]


def test_every_kind_is_there(corpus: Corpus) -> None:
    """In both languages, of which the words, the order and the numbers differ."""
    sources, targets = ("\n".join(side) for side in zip(*corpus.splits["train"], strict=True))
    words = {
        "Wednesday, ": "Mittwoch, ",
        " PM": "14:",
        "1st quarter ": "1. Quartal ",
        " days ago": "vor ",
        "in 1 month": "in 1 Monat",
        " liters per 100 kilometers": " Liter pro 100 Kilometer",
        "Swiss francs": "Schweizer Franken",
        "€": " €",
        "Côte d’Ivoire": "Côte d’Ivoire",
        "Hungarian": "Ungarisch",
        " (Switzerland)": " (Schweiz)",
        ", and ": " und ",
        ", or ": " oder ",
    }
    for source, target in words.items():
        assert source in sources and target in targets, (source, target)


def test_space_that_nobody_types_is_a_space() -> None:
    texts = [text for pair in generate("fr", "ar", size=300, valid=5, test=5).splits["train"] for text in pair]
    strange = {mark for text in texts for mark in text if mark.isspace() or mark in "\u200e\u200f\u061c"}
    assert strange == {" "}


def test_a_language_with_few_names_has_phrases_too() -> None:
    """Of some, Babel knows no territories, units and currencies: there are phrases of other kinds."""
    locale = babel.Locale.parse("smj")
    assert not phrases._draw((locale, babel.Locale("en")), 0).territories
    assert len(generate("smj", "en", size=200, valid=5, test=5).splits["train"]) == 200


def test_units_are_those_with_words_in_both_languages() -> None:
    units = phrases._draw((babel.Locale("ar"), babel.Locale("en")), 0).units
    assert "volume-liter" not in units and "length-kilometer" in units
    texts = [text for pair in generate("ar", "en", size=600, valid=5, test=5).splits["train"] for text in pair]
    assert not any(f"{kind}-" in text for text in texts for kind in phrases._UNITS)


def test_locales_are_written_as_people_write_them() -> None:
    made = generate("pt-br", "EN_gb", size=5, valid=1, test=1)
    assert (made.source, made.target) == ("pt_BR", "en_GB")


@pytest.mark.parametrize(
    ("name", "closest"), [("german", "de"), ("en-GBB", "en_GB"), ("Englsh", "en"), ("", "en, de, fr")]
)
def test_an_unknown_locale_is_refused_with_the_closest(name: str, closest: str) -> None:
    with pytest.raises(ValueError, match=f"Babel knows no locale '{name}'; the closest are {closest}"):
        generate(name, "fr")
    with pytest.raises(ValueError, match=f"Babel knows no locale '{name}'"):
        generate("fr", name)


def test_two_languages_are_needed() -> None:
    with pytest.raises(ValueError, match="source and target are both pt_BR: choose two languages"):
        generate("pt_BR", "pt-br")


@pytest.mark.parametrize("count", ["size", "valid", "test"])
def test_a_split_has_at_least_one_pair(count: str) -> None:
    with pytest.raises(ValueError, match=f"{count} must be a whole number of at least 1, got 0"):
        generate(**{count: 0})


def test_more_than_there_are_is_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_of_twelve(draw: Draw) -> kinds.Saying:
        month = draw.random.randint(1, 12)
        return lambda locale: babel.dates.format_date(datetime.date(2000, month, 1), "MMMM", locale)

    monkeypatch.setattr(phrases, "KINDS", ((1, one_of_twelve, ()),))
    assert len(generate(size=10, valid=1, test=1).splits["train"]) == 10
    message = r"from en to de there are 12 different phrases, and 14 were asked for; .*\(12 \+ 1 \+ 1\) smaller"
    with pytest.raises(ValueError, match=message):
        generate(size=12, valid=1, test=1)


@pytest.mark.parametrize("vague", ["en", "de"])
def test_what_is_said_alike_of_two_things_is_said_once(monkeypatch: pytest.MonkeyPatch, vague: str) -> None:
    def half_told(draw: Draw) -> kinds.Saying:
        number = draw.random.randrange(20)
        return lambda locale: str(number // 2 if locale.language == vague else number)

    monkeypatch.setattr(phrases, "KINDS", ((1, half_told, ()),))
    pairs = [pair for split in generate(size=8, valid=1, test=1).splits.values() for pair in split]
    assert all(len(set(side)) == 10 for side in zip(*pairs, strict=True))
    with pytest.raises(ValueError, match="there are 10 different phrases"):
        generate(size=9, valid=1, test=1)


def test_many_fruitless_draws_are_no_end_as_long_as_some_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_of_two_hundred(draw: Draw) -> kinds.Saying:
        number = draw.random.randrange(200)
        return lambda locale: f"{number} {locale}"

    monkeypatch.setattr(phrases, "KINDS", ((1, one_of_two_hundred, ()),))
    monkeypatch.setattr(phrases, "_FRUITLESS", 60)
    assert len(generate(size=158, valid=1, test=1).splits["train"]) == 158  # of about 320 draws
