"""Kinds of generated phrases, such as dates or prices: one small function for each, and a table of them.

A kind draws the content of a phrase; the result writes it in any locale, with Babel's words, forms and order.
Abbreviated months and weekdays are avoided: in several languages Babel has only placeholders for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from random import Random
from typing import Literal, TypeAlias, final

try:
    from babel import Locale, dates
    from babel.lists import format_list
    from babel.numbers import format_currency, get_currency_precision
    from babel.units import format_unit
except ImportError as error:
    raise ImportError("for the embedded corpus babel is needed: pip install partialsgd[lab]") from error

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
_WITH_SIGN = ("USD", "EUR", "GBP", "JPY", "INR", "CNY", "BRL", "KRW", "CAD", "AUD", "MXN", "ILS")


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


_LARGEST = (1, 9, 99, 999, 99_999)

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


def territories(draw: Draw) -> Saying:
    """Germany, France, and Austria."""
    codes, style = _sample(draw, draw.territories), _style(draw)
    return lambda locale: format_list([locale.territories[code] for code in codes], style, locale)


def languages(draw: Draw) -> Saying:
    """German or French."""
    codes, style = _sample(draw, draw.languages), _style(draw)
    return lambda locale: format_list([locale.languages[code] for code in codes], style, locale)


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
    (3, territories, ("territories",)),
    (3, languages, ("languages",)),
    (3, several(dialect, most=3), ("dialects",)),
)
"""The weight of each kind, its function, and the codes for which both languages must have names."""


def _style(draw: Draw) -> _Style:
    return "standard" if draw.random.random() < 0.5 else "or"


def _sample(draw: Draw, codes: Sequence[str]) -> list[str]:
    return draw.random.sample(codes, min(len(codes), draw.random.randint(2, 5)))


def _timedelta(seconds: int, unit: _Unit, locale: Locale, *, add_direction: bool = False) -> str:
    """Format a duration in this unit: a threshold that no number reaches keeps Babel from a larger unit."""
    return dates.format_timedelta(seconds, unit, 10**9, add_direction, locale=locale)
