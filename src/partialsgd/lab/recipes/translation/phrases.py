"""Generated phrase pairs from CLDR's locale data: dates, quantities, money, names, and lists of them.

A kind of phrase draws its content; the result writes it in any locale, with Babel's words, forms and order.
Abbreviated months and weekdays are avoided: in several languages Babel has only placeholders for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from itertools import islice
from random import Random
from typing import Literal, TypeAlias, final

import babel
from babel import Locale, UnknownLocaleError, dates, localedata
from babel.lists import format_list
from babel.numbers import format_currency, get_currency_precision, get_territory_currencies
from babel.units import format_unit

from partialsgd._util import randomness
from partialsgd.lab.recipes.translation.corpus import Corpus, Pair
from partialsgd.lab.training.settings import require_at_least

Saying: TypeAlias = Callable[[Locale], str]
"""Writes one phrase in a locale."""
_Unit: TypeAlias = Literal["year", "month", "week", "day", "hour", "minute", "second"]
_Style: TypeAlias = Literal["standard", "or"]

_FIRST_DAY, _DAYS = date(1950, 1, 1), 36_525
_TIMES: tuple[tuple[_Unit, int, int], ...] = (  # of what, how many at most, how many seconds each
    ("year", 99, 31_536_000),
    ("month", 11, 2_592_000),
    ("week", 4, 604_800),
    ("day", 30, 86_400),
    ("hour", 23, 3_600),
    ("minute", 59, 60),
    ("second", 59, 1),
)
_LARGEST = (1, 9, 99, 999, 99_999)  # one of them is drawn as the largest number
_WITH_SIGN = ("USD", "EUR", "GBP", "JPY", "INR", "CNY", "BRL", "KRW", "CAD", "AUD", "MXN", "ILS")
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


@final
@dataclass(frozen=True)
class Draw:
    """The random generator, and the CLDR codes that both languages have names for."""

    random: Random
    territories: Sequence[str]
    languages: Sequence[str]
    dialects: Sequence[tuple[str, str]]
    """Pairs of a language and a territory."""
    currencies: Sequence[str]
    units: Sequence[str]

    def day(self) -> date:
        return _FIRST_DAY + timedelta(self.random.randrange(_DAYS))

    def number(self) -> int | Decimal:
        """A number with up to two decimals; small ones are frequent, so that singular and plural both occur."""
        whole, digits = self.random.randint(1, self.random.choice(_LARGEST)), self.random.choice((0, 0, 1, 2))
        return Decimal(whole * 10**digits + self.random.randrange(10**digits)) / 10**digits if digits else whole


Kind: TypeAlias = Callable[[Draw], Saying]


def dated(draw: Draw) -> Saying:
    """Thursday, January 5, 2017."""
    styles: tuple[Literal["full", "long", "medium"], ...] = ("full", "full", "long", "medium")
    day, style = draw.day(), draw.random.choice(styles)
    return lambda locale: dates.format_date(day, style, locale)


def day_of_year(draw: Draw) -> Saying:
    """January 5."""
    day = draw.day()
    return lambda locale: dates.format_skeleton("MMMMd", day, locale=locale)


def part_of_year(draw: Draw) -> Saying:
    """January 2017; 1st quarter 2017; week 2 of 2017; week 2 of January."""
    day, skeleton = draw.day(), draw.random.choice(("yMMMM", "yQQQQ", "yw", "MMMMW"))
    return lambda locale: dates.format_skeleton(skeleton, day, locale=locale)


def time_of_day(draw: Draw) -> Saying:
    """3:45 PM."""
    moment = time(draw.random.randrange(24), draw.random.randrange(60))
    return lambda locale: dates.format_time(moment, "short", locale=locale)


def moment(draw: Draw) -> Saying:
    """Thursday, January 5, 2017, 3:45 PM."""
    day, hour = dated(draw), time_of_day(draw)

    def write(locale: Locale) -> str:
        pattern = str(dates.get_datetime_format("long", locale))
        return pattern.replace("'", "").format(hour(locale), day(locale))

    return write


def interval(draw: Draw) -> Saying:
    """January – March 2017."""
    first = draw.day()
    last = first + timedelta(31 * draw.random.randint(1, 30))
    return lambda locale: dates.format_interval(first, last, "yMMMM", locale=locale)


def distance(draw: Draw) -> Saying:
    """3 days ago; in 2 weeks."""
    unit, most, seconds = draw.random.choice(_TIMES)
    total = seconds * draw.random.randint(1, most) * draw.random.choice((-1, 1))
    return lambda locale: _timedelta(total, unit, locale, add_direction=True)


def duration(draw: Draw) -> Saying:
    """3 hours and 20 minutes."""
    largest = draw.random.randrange(len(_TIMES) - 1)
    units = _TIMES[largest : largest + draw.random.randint(2, 3)]
    parts = [(seconds * draw.random.randint(1, most), unit) for unit, most, seconds in units]
    return lambda locale: format_list([_timedelta(*part, locale) for part in parts], locale=locale)


def quantity(draw: Draw) -> Saying:
    """12.5 kilometers per hour."""
    number, unit = draw.number(), draw.random.choice(draw.units)
    return lambda locale: format_unit(number, unit, locale=locale)


def money(draw: Draw) -> Saying:
    """1,234.50 Swiss francs; 1 Swiss franc."""
    number, currency = draw.number(), draw.random.choice(draw.currencies)
    cents = isinstance(number, Decimal) and get_currency_precision(currency) > 0
    number = number if cents else int(number)  # as it will be read, so that its form of plural is right
    return lambda locale: format_currency(number, currency, locale=locale, format_type="name", currency_digits=cents)


def price(draw: Draw) -> Saying:
    """€1,234.50."""
    number, currency = draw.number(), draw.random.choice(_WITH_SIGN)
    return lambda locale: format_currency(number, currency, locale=locale)


def dialect(draw: Draw) -> Saying:
    """German (Austria)."""
    language, territory = draw.random.choice(draw.dialects)
    return lambda locale: f"{locale.languages[language]} ({locale.territories[territory]})"


def names(kind: Literal["territories", "languages"]) -> Kind:
    """Germany, France, and Austria; German or French."""

    def listed(draw: Draw) -> Saying:
        codes: Sequence[str] = getattr(draw, kind)
        chosen, style = draw.random.sample(codes, min(len(codes), draw.random.randint(2, 5))), _style(draw)
        return lambda locale: format_list([getattr(locale, kind)[code] for code in chosen], style, locale)

    return listed


def several(*kinds: Kind, most: int, style: _Style | None = None) -> Kind:
    """A list of two or more, with "and" or with "or"."""

    def listed(draw: Draw) -> Saying:
        parts = [draw.random.choice(kinds)(draw) for _ in range(draw.random.randint(2, most))]
        last = style or _style(draw)
        return lambda locale: format_list([part(locale) for part in parts], last, locale)

    return listed


KINDS: tuple[tuple[int, Kind, tuple[str, ...]], ...] = (
    (3, dated, ()),
    (3, moment, ()),
    (2, interval, ()),
    (2, duration, ()),
    (2, several(dated, day_of_year, most=2), ()),
    (2, several(day_of_year, part_of_year, most=3), ()),
    (2, several(time_of_day, most=4), ()),
    (4, several(distance, most=3, style="or"), ()),
    (4, several(quantity, most=4), ("units",)),
    (3, several(money, most=3), ("currencies",)),
    (1, several(price, most=4), ()),
    (2, several(quantity, money, most=3), ("units", "currencies")),
    (3, names("territories"), ("territories",)),
    (3, names("languages"), ("languages",)),
    (3, several(dialect, most=3), ("dialects",)),
)
"""The weight of each kind, its function, and the codes for which both languages must have names."""


def _style(draw: Draw) -> _Style:
    return "standard" if draw.random.random() < 0.5 else "or"


def _timedelta(seconds: int, unit: _Unit, locale: Locale, *, add_direction: bool = False) -> str:
    """Format a duration in this unit: a threshold that no number reaches keeps Babel from a larger unit."""
    return dates.format_timedelta(seconds, unit, 10**9, add_direction, locale=locale)


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
    origin = f"phrases from CLDR {babel.core.get_cldr_version()} by Babel {babel.__version__}"
    return Corpus(str(locales[0]), str(locales[1]), splits, (origin,))


def _different(locales: tuple[Locale, Locale], seed: int) -> Iterator[Pair]:
    """Pairs of which neither side occurred before, until there seem to be no more."""
    draw = _draw(locales, seed)
    usable = [(weight, kind) for weight, kind, needs in KINDS if all(getattr(draw, need) for need in needs)]
    weights, kinds = zip(*usable, strict=True)
    sources, targets, fruitless = set[str](), set[str](), 0
    while fruitless < _FRUITLESS:
        (kind,) = draw.random.choices(kinds, weights)
        saying = kind(draw)
        source, target = _plain(saying(locales[0])), _plain(saying(locales[1]))
        fruitless += 1
        if source not in sources and target not in targets:
            fruitless = 0
            sources.add(source)
            targets.add(target)
            yield source, target


def _plain(text: str) -> str:
    """Replace narrow and non-breaking spaces by plain ones, and remove direction marks."""
    return " ".join(_UNSEEN.sub("", text).split())


def _draw(locales: tuple[Locale, Locale], seed: int) -> Draw:
    territories = [code for code in _common(locales, "territories") if code not in _NO_TERRITORIES]
    languages = _common(locales, "languages")
    spoken = sorted(tuple(name.split("_")) for name in localedata.locale_identifiers() if name.count("_") == 1)
    used = {money for code in territories for money in get_territory_currencies(code, _DAY_OF_MONEY)}
    units = [f"{of}-{unit}" for of, names in _UNITS.items() for unit in names]
    return Draw(
        random=Random(randomness.key(seed, "phrases")),
        territories=territories,
        languages=languages,
        dialects=[(code, place) for code, place in spoken if code in languages and place in territories],
        currencies=[code for code in _common(locales, "currencies", 3) if code in used],
        # For a unit without words Babel writes its code.
        units=[unit for unit in units if all(unit not in format_unit(3, unit, locale=locale) for locale in locales)],
    )


def _common(locales: tuple[Locale, Locale], kind: str, length: int = 2) -> list[str]:
    """The codes of this length that both locales have names for, in an order that is the same everywhere."""
    first, second = (set[str](getattr(locale, kind)) for locale in locales)
    return sorted(code for code in first & second if len(code) == length and code.isalpha())


def _locale(name: str) -> Locale:
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        codes = {code.lower(): code for code in localedata.locale_identifiers()}
        codes |= {english.lower(): code for code, english in Locale("en").languages.items() if code in codes}
        matches = get_close_matches(name.lower().replace("-", "_"), codes, cutoff=0.5)
        closest = list(dict.fromkeys(codes[match] for match in matches)) or ["en", "de", "fr"]
        raise ValueError(f"Babel knows no locale {name!r}; the closest are {', '.join(closest)}") from error
