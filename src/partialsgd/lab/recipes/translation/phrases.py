"""Generated phrase pairs from CLDR's locale data: dates, quantities, money, names, and lists of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from partialsgd._util import randomness
from partialsgd.lab.recipes.translation.corpus import Corpus, Pair
from partialsgd.lab.recipes.translation.kinds import KINDS, Draw
from partialsgd.lab.training.settings import require_at_least

if TYPE_CHECKING:
    from babel import Locale

_UNSEEN = re.compile("[\u061c\u200e\u200f]")  # marks of direction
_FRUITLESS = 20_000  # draws without a new pair, after which there are no more
_NO_TERRITORIES = {"EU", "EZ", "QO", "UN", "XA", "XB", "ZZ"}
_DAY_OF_MONEY = date(2024, 1, 1)  # the currencies that were in use then: today would be another corpus
_UNITS = {
    "length": ("millimeter", "centimeter", "meter", "kilometer", "inch", "foot", "yard", "mile"),
    "mass": ("gram", "kilogram", "tonne", "ounce", "pound", "carat"),
    "volume": ("milliliter", "liter", "hectoliter", "cubic-meter", "gallon", "cup", "tablespoon"),
    "area": ("square-meter", "square-kilometer", "square-mile", "hectare", "acre"),
    "speed": ("kilometer-per-hour", "meter-per-second", "mile-per-hour", "knot"),
    "temperature": ("celsius", "fahrenheit"),
    "pressure": ("hectopascal", "bar"),
    "energy": ("kilowatt-hour", "kilojoule", "calorie"),
    "power": ("watt", "kilowatt", "horsepower"),
    "electric": ("volt", "ampere", "ohm"),
    "frequency": ("hertz", "kilohertz"),
    "digital": ("byte", "kilobyte", "megabyte", "gigabyte"),
    "angle": ("degree",),
    "consumption": ("liter-per-100-kilometer",),
}


def generate(
    source: str = "en", target: str = "de", *, size: int = 20_000, valid: int = 500, test: int = 500, seed: int = 0
) -> Corpus:
    """Generate a corpus with `size` training pairs; validation and test pairs do not depend on the size.

    No phrase occurs twice in either language, so that the splits do not overlap. The result depends on the seed, the
    locales and the version of Babel.
    """
    for name, count in {"size": size, "valid": valid, "test": test}.items():
        require_at_least(name, count, 1)
    locales = _locale(source), _locale(target)
    if locales[0] == locales[1]:
        raise ValueError(f"source and target are both {locales[0]}: choose two languages, such as en and de")
    total = size + valid + test
    pairs = list(islice(_different(locales, seed), total))
    if len(pairs) < total:
        raise ValueError(
            f"from {source} to {target} there are {len(pairs):,} different phrases, and {total:,} were asked for; "
            f"make size + valid + test ({size:,} + {valid:,} + {test:,}) smaller"
        )
    splits = {"train": pairs[test + valid :], "valid": pairs[test : test + valid], "test": pairs[:test]}
    return Corpus(str(locales[0]), str(locales[1]), splits, (_origin(),))


def _different(locales: tuple[Locale, Locale], seed: int) -> Iterator[Pair]:
    """Pairs of which neither side occurred before, until there seem to be no more."""
    seen: tuple[set[str], set[str]] = set(), set()
    fruitless = 0
    for pair in _pairs(locales, seed):
        if pair[0] in seen[0] or pair[1] in seen[1]:
            fruitless += 1
            if fruitless == _FRUITLESS:
                return
            continue
        fruitless = 0
        for texts, text in zip(seen, pair, strict=True):
            texts.add(text)
        yield pair


def _pairs(locales: tuple[Locale, Locale], seed: int) -> Iterator[Pair]:
    draw = _draw(locales, seed)
    usable = [(weight, kind) for weight, kind, needs in KINDS if all(getattr(draw, need) for need in needs)]
    weights, kinds = zip(*usable, strict=True)
    while True:
        (kind,) = draw.random.choices(kinds, weights)
        saying = kind(draw)
        yield _plain(saying(locales[0])), _plain(saying(locales[1]))


def _plain(text: str) -> str:
    """Replace narrow and non-breaking spaces by plain ones, and remove direction marks."""
    return " ".join(_UNSEEN.sub("", text).split())


def _draw(locales: tuple[Locale, Locale], seed: int) -> Draw:
    from babel.localedata import locale_identifiers
    from babel.numbers import get_territory_currencies

    territories = [c for c in _common(locales, lambda locale: locale.territories) if c not in _NO_TERRITORIES]
    languages = _common(locales, lambda locale: locale.languages)
    spoken = sorted(tuple(name.split("_")) for name in locale_identifiers() if name.count("_") == 1)
    used = {money for code in territories for money in get_territory_currencies(code, _DAY_OF_MONEY)}
    units = [f"{of}-{unit}" for of, names in _UNITS.items() for unit in names]
    return Draw(
        random=Random(randomness.key(seed, "phrases")),
        territories=territories,
        languages=languages,
        dialects=[(code, place) for code, place in spoken if code in languages and place in territories],
        currencies=[code for code in _common(locales, lambda locale: locale.currencies, 3) if code in used],
        units=[unit for unit in units if all(_has_words(unit, locale) for locale in locales)],
    )


def _common(locales: tuple[Locale, Locale], names: Callable[[Locale], Mapping[str, str]], length: int = 2) -> list[str]:
    """The codes of this length that both locales have names for, in an order that is the same everywhere."""
    first, second = (set(names(locale)) for locale in locales)
    return sorted(code for code in first & second if len(code) == length and code.isalpha())


def _has_words(unit: str, locale: Locale) -> bool:
    """True if Babel has words for a unit; otherwise it writes the unit's code."""
    from babel.units import format_unit

    return unit not in format_unit(3, unit, locale=locale)


def _locale(name: str) -> Locale:
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise ValueError(f"Babel knows no locale {name!r}; the closest are {', '.join(_close(name))}") from error


def _close(name: str) -> list[str]:
    """Locales with a similar code or a similar English name."""
    from babel import Locale, localedata

    known = {identifier.lower(): identifier for identifier in localedata.locale_identifiers()}
    known |= {said.lower(): code for code, said in Locale("en").languages.items() if code in known}
    found = get_close_matches(name.lower().replace("-", "_"), known, cutoff=0.5)
    return list(dict.fromkeys(known[match] for match in found)) or ["en", "de", "fr"]


def _origin() -> str:
    import babel

    return f"phrases from CLDR {babel.core.get_cldr_version()} by Babel {babel.__version__}"
