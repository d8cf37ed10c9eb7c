"""The table of the study of budgets for docs/budgets.md."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from studies import results
from studies.pages import table

FILE = results.RESULTS / "budget.jsonl"


def sections(file: Path = FILE) -> str:
    """A row for each network, budget and method, with means over seeds."""
    records = results.read(file)
    if not records:
        return "The study was not run yet."
    keys = dict.fromkeys((each["network"], each["share"], each["method"]) for each in records)
    rows = []
    for network, share, method in sorted(keys, key=lambda key: (key[0], -key[1])):
        own = [r for r in records if (r["network"], r["share"], r["method"]) == (network, share, method)]
        numbers = (f"{mean(each[name] for each in own):.1%}" for name in ("flops", "before", "after"))
        rows.append((f"{network}, {share:g} of the FLOPs: {method}", *numbers, str(len(own))))
    whole = {
        name: mean(r["whole"] for r in records if r["network"] == name)
        for name in sorted({r["network"] for r in records})
    }
    head = ("network, budget and method", "FLOPs", "accuracy at once", f"after {records[0]['steps']} steps", "seeds")
    notes = "; ".join(f"{name} {accuracy:.1%}" for name, accuracy in whole.items())
    return f"{table(head, rows)}\n\nAccuracy of the whole networks: {notes}."
