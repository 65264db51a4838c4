# Every target sets up what it needs; CI runs `make test`. `make help` lists them.
PYTHON  ?= python3.11
EXTRAS  ?= torch,torchvision,tensorflow,mpi,dev
NP      ?= 2
ARGS    ?=
PEERS   ?= benchmarks/.peers
VENV    := .venv
BIN     := $(VENV)/bin
SOURCES := $(wildcard hvdtrain data_sharding launch docker tests benchmarks examples setup.py)
# The longest any one test may take is set in pyproject.toml; this is for the whole run.
PYTEST  := $(BIN)/python -m pytest
# Unit tests on all cores; those of several ranks wait half of the time, for starts and each other; those of emulated
# hosts wait most of the time, for time-outs to pass.
SPREAD  := --numprocesses auto --dist loadfile
RANKS   := --numprocesses 2 --dist loadfile
WAITING := --numprocesses 3 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup train test lint types unit parallel test-cluster docker-check constraints bench-loader bench-startup bench-step clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv with the pinned packages and Horovod (EXTRAS=torch,dev for fewer; quick if nothing changed)
	@command -v $(PYTHON) >/dev/null || { printf 'ERROR: There is no %s on the path. hvdtrain needs Python 3.11.\nHINT: install it (Debian: apt-get install python3.11 python3.11-venv) or say where it is: make setup PYTHON=/path/to/python3.11\n' '$(PYTHON)' >&2; exit 2; }
	@$(PYTHON) -m hvdtrain.horovod_wheel setup --venv $(VENV) --extras $(EXTRAS)

train: setup ## train on NP processes (2): make train ARGS="--epochs 3"
	$(BIN)/horovodrun -np $(NP) $(BIN)/python -m hvdtrain $(ARGS)

test: lint types ## all checks and tests, as CI runs them
	$(PYTEST) $(SPREAD) tests/unit
	$(PYTEST) $(RANKS) tests/parallel
	$(BIN)/python tests/cluster/run.py --where-possible $(WAITING)

lint: setup ## style, formatting and who may import whom
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

types: setup ## static types
	$(BIN)/mypy

unit: setup ## tests in one process
	$(PYTEST) $(SPREAD) tests/unit

parallel: setup ## tests that start two or more ranks
	$(PYTEST) $(RANKS) tests/parallel

test-cluster: setup ## tests on emulated hosts with ssh and Slurm (root; installs what is missing with apt)
	$(BIN)/python tests/cluster/run.py $(WAITING)

docker-check: setup ## build the image and test it with Docker or Podman (see tests/docker/README.md)
	HVDTRAIN_DOCKER_CHECK=1 $(PYTEST) tests/docker --timeout 5400

constraints: ## resolve pyproject.toml's ranges anew and pin what comes out
	$(PYTHON) -m hvdtrain.horovod_wheel pin --extras $(EXTRAS)

bench-loader: setup ## time record loaders side by side with peers in the virtual environment PEERS (see benchmarks/README.md)
	$(BIN)/python -m benchmarks.loader --peers-venv $(PEERS)

bench-startup: setup ## time from a command to its first step, beside horovodrun and torchrun
	$(BIN)/python -m benchmarks.startup

bench-step: setup ## time training steps, beside hand-written Horovod and DDP (ARGS="--suites mlp" for less)
	$(BIN)/python -m benchmarks.step $(ARGS)

clean: ## remove .venv and what tools left; the cache of Horovod wheels stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
