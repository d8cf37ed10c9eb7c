# `make run` and `make test` install what they need on the first call and reuse it afterwards.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Empty, so that bytecode is written even where the environment forbids it: the tests start many processes.
export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider -n 2 --dist worksteal --durations=15

.PHONY: run test test-all checked browser bench results convergence assault docs wheel setup lint

run: $(INSTALLED)  ## train a Transformer and its low-rank core on phrases, both at once: 2 to 5 minutes
	$(BIN)/partialsgd train

test: checked  ## style, types and tests; ends with the skipped tests and why
	$(PYTEST) -m "not slow"

test-all: checked  ## the same with more methods, problems and optimizers
	$(PYTEST)

checked:  # chromium is installed beside the packages
	@$(MAKE) --no-print-directory --jobs=2 lint browser

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser:  ## Debian's chromium, in which the page of `partialsgd report` is tested, where it can be installed
	@sh tests/lab/page/browser.sh

bench: $(INSTALLED)  ## the figures of benchmarks/README.md with two threads, measured again (about 10 minutes)
	$(BIN)/python -m benchmarks

results: $(INSTALLED)  ## every method trained on digits, and with DATA=folder on CIFAR-10, into docs/results.md
	$(BIN)/python -m studies.methods --jobs 2 $(if $(DATA),--data $(DATA))
	$(BIN)/python -m studies.write

convergence: $(INSTALLED)  ## the criteria over trainings on the data in DATA=folder (45 minutes), into docs/convergence.md
	$(BIN)/python -m studies.convergence $(if $(DATA),--data $(DATA))
	$(BIN)/python -m studies.write

assault: $(INSTALLED)  ## kills, damaged files, Ctrl-C and other attacks for MINUTES=20, into docs/reliability.md
	$(BIN)/python -m studies.assault $(if $(MINUTES),--minutes $(MINUTES)); status=$$?; $(BIN)/python -m studies.write && exit $$status

docs: $(INSTALLED)  ## the documentation site, into build/docs; every warning is an error
	$(BIN)/python -m sphinx -c docs -b html -q -W --keep-going . build/docs
	@echo "open build/docs/index.html"

wheel: $(INSTALLED)  ## the wheel and the source archive, into dist, checked for the package index
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

setup: $(INSTALLED)  ## only the installation, with all extras

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[lab,trainer,lightning,trackers,export,elastic,docs,dev]"
	# In a folder of its own: transformers imports torchao where it is installed, and torchao then prints warnings.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade -c constraints.txt --target .venv/int8 torchao
	touch $(INSTALLED)
