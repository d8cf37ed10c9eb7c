"""One joint run, or one run for each network, for the same total FLOPs: trainings in order of value.

    python -m studies.worth --data multi30k.de-en --images cifar-10-batches-bin --out runs/worth
    python -m studies.write

The first command trains what is missing, one run after the other (`--jobs 2`: two side by side), stores each result in
studies/results as soon as it is there, and may be stopped or killed at any moment: the same call goes on where it was,
to the bit. `--list` shows what is done and what comes next. The second writes the tables of docs/which_size.md.
"""
