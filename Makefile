# The same words for a person and for CI. Needs Python 3.11+, pip and make; no compiler, no server.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# pyright brings its node along; it need not ask the network for a newer self.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: setup demo test slow chaos container test-matrix check format lint floors types sql coverage bench clean

setup: $(READY)

$(READY): requirements-dev.txt pyproject.toml | $(BIN)/pip
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $(READY)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("aiopgq needs Python 3.11 or later, \
	$(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.13 setup" % v[:2])'
	$(PYTHON) -m venv --clear $(VENV)

demo: setup
	$(BIN)/python -m aiopgq demo

test: setup
	$(BIN)/python -m pytest -n 4 --dist loadfile -m "not slow"

slow: setup
	$(BIN)/python -m pytest -m slow --ignore=tests/chaos

chaos: setup
	$(BIN)/python -m pytest tests/chaos -m slow

test-matrix: setup
	$(BIN)/python tests/matrix.py $(MATRIX)

container: setup
	tests/container.sh

check: format lint floors types sql

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .

floors: setup
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy
	$(BIN)/pyright

sql: setup
	$(BIN)/squawk migrations/*.sql

coverage: setup
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 4 --dist loadfile -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist data demo-data .cache .coverage* .hypothesis .import_linter_cache .mypy_cache .ruff_cache
