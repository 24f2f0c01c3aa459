# Both targets do all set-up on a fresh machine: a virtual environment in .venv and everything in it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test completions clean

demo: $(STAMP)
	$(BIN)/hydractl demo -o demo --force

# One thread a test process: the models are tiny, and two processes fill two cores better than two threads.
test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m hydractl.cli.completion --check
	$(BIN)/python -m hydractl.cli.supported --check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

completions: $(STAMP)
	$(BIN)/python -m hydractl.cli.completion

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo
