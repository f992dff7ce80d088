# Each target sets itself up: `make demo` and `make test` work on a bare machine with Python 3.11 to 3.13.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# `make check` takes a minute and a half: core, rules, clipping, noise, accounting without its longest files.
# `worksteal` gives neighbouring tests, which share fixtures, to one process.
CHECK := tests/test_architecture.py tests/rules tests/core \
  $(addprefix tests/,clipping noise accounting) --ignore=tests/accounting/test_calibrate.py \
  --ignore=tests/accounting/test_group_privacy.py --ignore=tests/accounting/test_prices.py
PYTEST := $(BIN)/pytest -n 2 --dist worksteal --durations=40 --durations-min=5

# The tests begin many processes; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-all lint format docs notebooks bench gpu assurance clean

demo: .venv/.installed
	$(BIN)/noisette train --out runs/demo

check: lint
	$(PYTEST) -m "unit and not slow" $(CHECK)

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ""

lint: .venv/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: .venv/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, in build/site; a broken link or a name without documentation is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# The tutorials' notebooks, by running their scripts.
notebooks: .venv/.docs
	$(BIN)/python docs/site/notebooks.py

bench: .venv/.bench
	$(BIN)/python -m benchmarks --experiments targets,memory --threads 2 --seconds 10 --out benchmarks/results
	$(BIN)/python -m benchmarks.table

# On a machine with a GPU, at most nine minutes: with the Python there whose torch finds it, so nothing large is installed.
gpu:
	$(PYTHON) benchmarks/gpu_environment.py $(PYTHON) $(BIN)/python

assurance: .venv/.test
	$(BIN)/python -m experiments.assurance

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[cli]"
	touch $@

.venv/.test: .venv/.installed
	$(INSTALL) -e ".[test]"
	touch $@

.venv/.docs: .venv/.installed
	$(INSTALL) -e ".[docs]"
	touch $@

.venv/.bench: .venv/.installed
	$(INSTALL) -e ".[bench]"
	touch $@

clean:
	rm -rf .venv .venv-gpu runs
