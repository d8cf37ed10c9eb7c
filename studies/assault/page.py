"""The figures of the assault for docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

from studies import results
from studies.pages import table

FILE = results.RESULTS / "assault.jsonl"


def sections(file: Path = FILE) -> str:
    """A table of all attacks, what came out of each, and every kind of failure that was found."""
    records = results.read(file)
    if not records:
        return "The assault was not run yet."
    rows = [(each["attack"], f"{each['attempts']:,}", f"{each['failures']:,}") for each in records]
    total = ("together", *(f"{sum(each[key] for each in records):,}" for key in ("attempts", "failures")))
    parts = [table(("attack", "attempts", "broken"), [*rows, total])]
    for each in records:
        outcomes = "; ".join(f"{outcome}: {count:,}" for outcome, count in each["outcomes"].items())
        extent = "all of them" if each["is_whole"] else "a random part, as far as the time went"
        parts.append(
            f"**{each['attack'][0].upper()}{each['attack'][1:]}.** {each['what']} "
            f"Tried: {extent}. Outcomes: {outcomes}."
        )
        if each["examples"]:
            parts.append("\n".join(["Broken, for example:", "", *(f"- {_code(text)}" for text in each["examples"])]))
    made = sorted({f"on {each['date']} with torch {each['torch']}, Python {each['python']}" for each in records})
    minutes = sum(each["seconds"] for each in records) / 60
    return "\n\n".join([*parts, f"Made {'; '.join(made)}, in {minutes:.0f} minutes."])


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
