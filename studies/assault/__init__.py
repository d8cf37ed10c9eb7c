"""`python -m studies.assault`: attacks on trainings, files and steps, to see what is left of the guarantees.

It is a study, not a benchmark: it measures no speed, its figures are stored beside the other results, and
`python -m studies.write` writes them into docs/reliability.md. It is not a test either: it is random and takes minutes;
`tests/studies/test_assault.py` runs each attack for a moment.
"""
