# Both targets do all set-up on a fresh machine: a virtual environment in .venv and everything in it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo checks test test-all torture completions clean

demo: $(STAMP)
	$(BIN)/hydractl demo -o demo --force

# One thread a test process: the models are tiny, and two processes fill two cores better than two threads. A file's tests
# run in one of them, so that what they share is made once, in the order of their names: else the longest of them, which
# have a test or two, would come last.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder

test: checks
	$(PYTEST)

test-all: checks
	$(PYTEST) --all-variants

# So many tenths of all that can be tried; three are more than 1,000 kills and 10,000 changed inputs. What fails is said at once,
# and how to try it again; a table ends it.
TENTHS := 3

torture: $(STAMP)
	$(PYTEST) --dist worksteal -s tests/torture --torture=$(TENTHS)

checks: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m hydractl.cli.completion --check
	$(BIN)/python -m hydractl.cli.supported --check
	$(BIN)/python -m hydractl.api.stub --check

completions: $(STAMP)
	$(BIN)/python -m hydractl.cli.completion
	$(BIN)/python -m hydractl.api.stub

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo
