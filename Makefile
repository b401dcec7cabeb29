# Two commands: `make train` and `make test`. Both set up the virtual environment the first time only: `make train` with
# what training needs, `make test` with every extra and the tools of the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
EXTRAS := dev,atari,boards,box2d,dmc,minari,minigrid,mujoco,plot,ray
# The oldest version that is supported, and the newest that the dependencies support.
PYTHONS ?= python3.10 python3.14

.PHONY: train test lint types versions check clean

train: $(STAMP)
	$(BIN)/rl-training train ppo/cartpole

test: $(TOOLS)
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TOOLS)
	$(BIN)/mypy

versions:
	.ci/versions $(PYTHONS)

check: lint types test

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing; install Python 3.10 or later, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: $(PYTHON) is $$($(PYTHON) -V), but rl_training needs Python 3.10 or later; say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (about a minute, the first time only)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(TOOLS): $(STAMP)
	@echo "Adding the extras and the tools of the tests to $(VENV) (two minutes, the first time only)"
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@# Alone: it asks for pygame, which would overwrite the files of pygame-ce, with which it works as well.
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt --no-deps flappy-bird-gymnasium
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
