# Each target does all of its own set-up: a virtual environment in .venv, made once and renewed when its inputs change.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOWEST := $(VENV).lowest
EXTRAS := search,ray,report,onnx,serve
# One process for each core, with one thread. A file's tests stay in one process, so that its trained fixtures are made
# once; files go in the order of their names: unit tests, the short ones, come last and even out.
TESTS  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lowest chaos docs evidence-page lint clean

demo: $(READY)  ## fine-tune a teacher, distil students, print a table
	$(BIN)/limbeck demo

test: lint  ## lint, types, import contracts, and every test that is not slow
	$(TESTS) -m "not slow" --durations=10

test-all: lint  ## everything: also the slow tests, such as the whole matrix of families and methods, and long kills
	LIMBECK_FUZZ=500 $(TESTS) --durations=20

# Unit tests but for those of studies, every method, trainings through the command line, and exports: minutes on one
# core. That old versions warn of what will change, or leave files open, is no error.
QUICK  := tests/unit tests/contract/test_methods.py tests/integration/test_distill.py tests/integration/test_exit_codes.py \
          tests/integration/test_export.py tests/integration/test_serve.py \
          --ignore tests/unit/study --ignore tests/unit/evidence
OLD    := -W default::DeprecationWarning -W default::pytest.PytestUnraisableExceptionWarning

lowest: $(LOWEST)/.ready  ## quick tests with the lowest versions of pyproject.toml; UV_TORCH_BACKEND=cpu saves GBs
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -m "not slow" $(OLD) $(QUICK)

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
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --group docs --editable ".[$(EXTRAS)]"
	touch $(READY)

$(LOWEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --group test --editable ".[$(EXTRAS)]"
	touch $(LOWEST)/.ready

clean:
	rm -rf $(VENV) $(LOWEST) site .cache .mypy_cache .ruff_cache .pytest_cache demo-runs
