# Each target does all of its own set-up: a virtual environment in .venv, made once and renewed when its inputs change.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One process for each core, with one thread. A file's tests stay in one process, so that its trained fixtures are made
# once; files go in the order of their names: unit tests, the short ones, come last and even out.
TESTS  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all chaos docs evidence-page lint clean

demo: $(READY)  ## fine-tune a teacher, distil students, print a table
	$(BIN)/limbeck demo

test: lint  ## lint, types, import contracts, and every test that is not slow
	$(TESTS) -m "not slow" --durations=10

test-all: lint  ## everything: also the slow tests, such as the whole matrix of families and methods, and long kills
	LIMBECK_FUZZ=500 $(TESTS) --durations=20

chaos: $(READY)  ## 50 kills of distill, cache, study, export, predict and shrink at random moments, on a small disk
	PYTHONPATH=tests $(BIN)/python -m chaos.random_kills

docs: $(READY)  ## the documentation as a site, in site/; a link that leads nowhere is an error
	$(BIN)/zensical build --clean --strict

evidence-page: $(READY)  ## docs/evidence.md, its pictures and README's table of methods, from results/
	$(BIN)/python -m evidence.page

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.1"  # the first that knows dependency groups
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --group docs
	touch $(READY)

clean:
	rm -rf $(VENV) site .cache .mypy_cache .ruff_cache .pytest_cache demo-runs
