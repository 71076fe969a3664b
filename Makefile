# The same words for a person and for CI. Needs Python 3.11+, pip and make; no compiler, no server.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test slow check format lint types floors sql bench clean

setup: $(READY)

$(READY): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $(READY)

demo: setup
	$(BIN)/python -m aiopgq demo

test: setup
	$(BIN)/python -m pytest -m "not slow"

slow: setup
	$(BIN)/python -m pytest -m slow

check: format lint types floors sql

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy
	$(BIN)/pyright

floors: setup
	$(BIN)/lint-imports --no-cache

sql: setup
	$(BIN)/squawk migrations/*.sql

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist .cache .mypy_cache .ruff_cache .hypothesis
