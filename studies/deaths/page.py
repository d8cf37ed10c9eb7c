"""The figures of the deaths for docs/distributed.md."""

from __future__ import annotations

from pathlib import Path

from studies import results
from studies.pages import table

FILE = results.RESULTS / "deaths.jsonl"


def sections(file: Path = FILE) -> str:
    """A table of the kills under torchrun and under torchft, and a sentence about each."""
    records = {each["under"]: each for each in results.read(file)}
    if not records:
        return "No process was killed yet."
    head = ("under", "kills", "trainings lost", "not equal at the end")
    rows = [(name, *(f"{each[key]:,}" for key in ("kills", "lost", "different"))) for name, each in records.items()]
    parts = [table(head, rows)]
    if torchrun := records.get("torchrun"):
        parts.append(
            f"**torchrun.** {torchrun['launches']} launches of `partialsgd train images` on two ranks. A rank was "
            "killed at a moment uniform over the life of a launch, imports included, and each run was compared to the "
            f"bit with one that was left alone. A launch without deaths took "
            f"{torchrun['undisturbed']:.0f} s, all of them together {torchrun['seconds']:.0f} s."
        )
    if torchft := records.get("torchft"):
        sent = torchft["sent"]
        parts.append(
            f"**torchft.** {torchft['replicas']} replicas of alternating training made {torchft['steps']:,} steps in "
            f"{torchft['seconds']:.0f} s; {torchft['dropped']} attempts at a step were not committed. At the end "
            "model, optimizer and `sgd.state_dict()` were equal to the bit on all replicas, all had agreed on the "
            "level of every step, and the weights differed from those of one process that saw the same batches by "
            f"{torchft['distance']:.1g} of the largest. A full step sent {sent['full']:,} bytes of gradients, a core "
            f"step {sent['core']:,}."
        )
    made = sorted({f"on {each['date']} with torch {each['torch']}" for each in records.values()})
    return "\n\n".join([*parts, f"Made {'; '.join(made)} by `python -m studies.deaths`."])
