# make setup | demo | explore | bench | docs | test | test-all | external | lint | wheel. Each command makes what it needs, from a bare clone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BENCH_SCENES ?= 6
EXTERNAL ?= .venv-external

.PHONY: setup demo explore bench docs test test-all external lint wheel clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pixalign needs Python 3.11 or newer; use make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(READY)

demo: setup
	$(BIN)/pixalign demo --out pixalign-demo

# Ctrl-C ends it.
explore: setup
	$(BIN)/pixalign explore --demo

# Smoke size: ten minutes on 2 cores; the report says how few scenes that are.
bench: setup
	$(BIN)/pixalign bench run 'lab-*' --limit $(BENCH_SCENES) --out bench-results
	$(BIN)/pixalign bench run toy --limit 2 --out bench-results
	$(BIN)/pixalign bench report bench-results

# Offline. The gallery's examples are run once and kept; DOCS=-Dplot_gallery=0 leaves them out.
docs: setup
	$(BIN)/python -m sphinx -W --keep-going -b html $(DOCS) docs docs/_build/html

# One thread a process: the processes share the cores.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not external"

test-all: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# Annotations as datumaro, supervision, label-studio-sdk, datasets and cvat-cli read them.
external: setup
	test -x $(EXTERNAL)/bin/python || $(PYTHON) -m venv $(EXTERNAL)
	$(EXTERNAL)/bin/python -m pip install --quiet --requirement tools/external.txt
	PIXALIGN_EXTERNAL=$(EXTERNAL) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m external -s

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf .venv $(EXTERNAL) dist docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
