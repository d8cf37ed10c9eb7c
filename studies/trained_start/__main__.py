"""A trained network becomes a family: is one joint run as good as training each size on by itself, for the same cost?

    python -m studies.trained_start --data FOLDER    # trains what is missing; stopped or killed, the same call goes on
    python -m studies.write                          # the table in docs/which_size.md

A small language model of characters is trained. Then it is nested, and goes on in one of these ways: the core is cut
out and trained alone; the whole network is trained on; or both are trained jointly, with the FLOPs of the other two
together. The losses before any of this, of the core as it is cut out too, are stored beside them. Each way has its
learning rate chosen by validation loss out of the same rates, and the test data are looked at once, with that rate.
FOLDER has train.en, valid.en and test.en, plain or .gz, such as Multi30k; without --data the text is generated, which
is enough to see the study work.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from partialsgd.lab.training.errors import WrongCall
from studies import runs
from studies.runs import StudyJob, is_selected
from studies.trained_start import text
from studies.trained_start.train import FILE, TRAINED_STEPS, Row, describe, stored
from studies.trained_start.ways import trainings


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        source = text.generated() if options.data is None else text.read(options.data)
    except WrongCall as error:
        parser.error(str(error))
    data = None if options.data is None else str(options.data)
    every = {f"{axis}/{length}/{way}/{seed}": (axis, length, way, seed) for length, seed, axis, way in trainings()}
    selected = {label: each for label, each in every.items() if is_selected(label, options.rows)}
    if not selected:
        parser.error(f"no row has {' or '.join(options.rows)} in its name; rows are like {next(iter(every))}")
    done = {
        (row.axis, row.length, row.way, row.seed)
        for row in stored(options.results)
        if (row.text, row.settings) == (f"{source.name} {source.digest}", describe(options.trained_steps))
    }
    jobs = [
        StudyJob(
            label,
            "studies.trained_start.train:run",
            dict(zip(("axis", "length", "way", "seed"), each, strict=True))
            | {"data": data, "trained_steps": options.trained_steps},
        )
        for label, each in selected.items()
    ]
    runs.run(
        jobs,
        is_done=lambda job: selected[job.label] in done,
        store=lambda record: Row(**record).save(options.results),
        at_once=options.jobs,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.trained_start", description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder with train.en, valid.en and test.en, plain or .gz")
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORD", help="only rows with a WORD, like width/100")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    parser.add_argument("--trained-steps", type=int, default=TRAINED_STEPS, help="steps of the first training")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that finished rows are stored in")
    return parser


if __name__ == "__main__":
    main()
