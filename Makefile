# Every target sets up what it needs; CI runs `make test`. `make help` lists them.
# PYTHON: the Python of .venv where there is one, else the newest supported one that runs (a name may be on the path and
# be a shim of pyenv's, which runs nothing). EXTRAS: those of the last set-up, at first all that tests need.
VENV    := .venv
FOUND    = $(shell sed -n 's/^executable = //p' $(VENV)/pyvenv.cfg 2>/dev/null) python3.13 python3.12 python3.11 python3
PYTHON  ?= $(shell for each in $(FOUND); do $$each -c 'import ensurepip' 2>/dev/null && echo $$each && break; done)
EXTRAS  ?=
NP      ?= 2
ARGS    ?=
CARRIED ?=
PEERS   ?= benchmarks/.peers
BIN     := $(VENV)/bin
# Commands of all parts, and which of them run at once. The longest any one test may take is set in pyproject.toml.
RUN     := $(BIN)/python tests/run_all.py

# Else each of the many interpreters that set-up and tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

define SET_UP
test -n '$(PYTHON)' && $(PYTHON) -c '' || { printf 'ERROR: No Python 3.11, 3.12 or 3.13 with ensurepip runs here%s.\nHINT: install one (Debian, Ubuntu: apt-get install python3 python3-venv) or say where it is: make setup PYTHON=/path/to/python3.13\n' '$(PYTHON:%= as %)' >&2; exit 2; }; \
$(PYTHON) -m hvdtrain.horovod_wheel setup --venv $(VENV) $(EXTRAS:%=--extras %) $(CARRIED:%=--carried %)
endef

.DEFAULT_GOAL := help
.PHONY: help setup carry with-dev with-gpu-tests docs train test test-quick lint types unit parallel durations newest test-cluster test-many test-browser test-gpu bench-gpu screenshots test-faults docker-check docker-check-cuda constraints bench bench-loader bench-startup bench-step bench-profile bench-memory bench-overhead bench-checkpoint bench-recovery bench-allreduce bench-scaling bench-plan bench-tuning clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv with the pinned packages and Horovod; remembers EXTRAS=torch,mpi and PYTHON=python3.12 (quick if nothing changed)
	@$(SET_UP)

with-dev:
	@$(SET_UP) --add dev

with-gpu-tests:
	@$(SET_UP) --add gpu-tests

carry: CARRIED := $(or $(CARRIED),build/carried)
carry: ## download into CARRIED what set-up needs on a machine without a network: make carry EXTRAS=torch,mpi ARGS="--there list.txt"
	@test -x $(BIN)/uv || { printf 'ERROR: There is no $(BIN)/uv. Only uv finds out which packages another machine needs.\nHINT: run `make setup` first.\n' >&2; exit 2; }
	@$(BIN)/python -m hvdtrain.horovod_wheel carry --into $(CARRIED) $(EXTRAS:%=--extras %) $(ARGS)

train: setup ## train on NP processes (2): make train ARGS="--epochs 3"
	$(BIN)/horovodrun -np $(NP) $(BIN)/python -m hvdtrain $(ARGS)

test: with-dev ## all checks and tests, as CI runs them, with the time of each part
	@$(RUN)

test-quick: with-dev ## lint, types and the unit tests of what was changed: for development
	@$(RUN) lint types
	@$(BIN)/python tests/quick.py $(ARGS)

lint: with-dev ## style, formatting and who may import whom
	@$(RUN) lint

types: with-dev ## static types
	@$(RUN) types

unit: with-dev ## tests in one process
	@$(RUN) unit

parallel: with-dev ## tests that start two or more ranks
	@$(RUN) parallel

durations: ## keep how long the tests of the last runs took as what `make test` compares with
	$(BIN)/python tests/support/durations.py

newest: setup ## two ranks in the newest supported Python, if it is installed and .venv has another one (part of `make test` where CI is set)
	@$(RUN) newest

test-cluster: with-dev ## tests on emulated hosts with ssh and Slurm (root; installs what is missing with apt)
	$(BIN)/python tests/cluster/run.py --numprocesses 3 --dist loadfile

test-many: with-dev ## 64 workers, 50 emulated hosts, workers that come and go: minutes (not part of `make test`)
	$(BIN)/python -m pytest tests/many

test-browser: with-dev ## tests of reports in Chromium, checked by axe-core (installs what is missing with apt, as root, and npm)
	$(BIN)/python tests/browser/run.py

test-gpu: with-gpu-tests ## tests on this machine's GPU, each for a claim of docs/gpu.md (needs EXTRAS=torch,mpi,cuda and a driver)
	$(BIN)/python tests/gpu/run.py $(ARGS)

bench-gpu: with-gpu-tests ## ResNet-50 in bf16 on this machine's GPU, beside the best loop by hand and DDP (needs EXTRAS=torch,mpi,cuda and a driver)
	$(BIN)/python -m benchmarks.step --suites resnet50-gpu --blocks 2 $(ARGS)

docs: with-dev ## build the site into build/site; a link, an anchor or a command that is wrong is an error
	$(BIN)/python docs/builder $(ARGS)

screenshots: with-dev ## draw the pictures of docs/report.md from runs of two workers, in Chromium
	$(BIN)/python docs/report_pictures.py $(ARGS)

test-faults: with-dev ## bring about each fault of docs/faults.md on this machine, and write that page again
	records=$$(mktemp -d) && table=tests/faults/table.py && \
	HVDTRAIN_FAULTS_RECORD=$$records $(BIN)/python -m pytest --numprocesses 2 tests/faults $$($(BIN)/python $$table --elsewhere) && \
	$(BIN)/python tests/cluster/run.py --where-possible -k "$$($(BIN)/python $$table --on-hosts)" && \
	$(BIN)/python $$table $$records

docker-check: with-dev ## build the image and test it with Docker or Podman (see tests/docker/README.md)
	HVDTRAIN_DOCKER_CHECK=1 $(BIN)/python -m pytest tests/docker --timeout 5400

docker-check-cuda: with-dev ## build the image for CUDA, which needs no GPU, and test it likewise (downloads 3 GB)
	HVDTRAIN_DOCKER_CHECK_CUDA=1 $(BIN)/python -m pytest tests/docker/test_cuda_image.py --timeout 5400

# In the oldest supported Python: newer ones have wheels of what it gets, but not the other way round.
constraints: PYTHON := python3.11
constraints: ## resolve pyproject.toml's ranges again and pin the result
	$(PYTHON) -m hvdtrain.horovod_wheel pin $(EXTRAS:%=--extras %)

bench: with-dev ## a short form of every benchmark, for a look (root, for the one with limited links)
	$(BIN)/python -m benchmarks $(if $(wildcard $(PEERS)),--peers-venv $(PEERS)) $(ARGS)

bench-loader: with-dev ## time record loaders side by side with peers in the virtual environment PEERS (see benchmarks/README.md)
	$(BIN)/python -m benchmarks.loader --peers-venv $(PEERS)

bench-startup: with-dev ## time from a command to its first step, beside horovodrun and torchrun
	$(BIN)/python -m benchmarks.startup

bench-step: with-dev ## time training steps, beside hand-written Horovod and DDP (ARGS="--suites mlp" for less)
	$(BIN)/python -m benchmarks.step $(ARGS)

bench-profile: with-dev ## what bounds a training step, by perf and Horovod's timeline
	$(BIN)/python -m benchmarks.profile $(ARGS)

bench-plan: with-dev ## what `hvdtrain plan` predicts, beside what the same steps take
	$(BIN)/python -m benchmarks.plan $(ARGS)

bench-tuning: with-dev ## what a run's own choice of buckets is worth, beside Horovod's autotuning
	$(BIN)/python -m benchmarks.tuning $(ARGS)

bench-memory: with-dev ## the most memory that a worker holds, beside hand-written Horovod and DDP
	$(BIN)/python -m benchmarks.memory $(ARGS)

bench-overhead: with-dev ## time the loop around a step, beside Fabric, Accelerate and Lightning in PEERS (see benchmarks/README.md)
	$(BIN)/python -m benchmarks.overhead --peers-venv $(PEERS) $(ARGS)

bench-checkpoint: with-dev ## time the stall of a saving step, beside torch.save and others in PEERS (see benchmarks/README.md)
	$(BIN)/python -m benchmarks.checkpoint $(ARGS)

bench-recovery: with-dev ## time from a killed worker to the next update, beside torchrun and Horovod's elastic mode
	$(BIN)/python -m benchmarks.recovery $(ARGS)

bench-allreduce: with-dev ## time the sum of a tensor over workers, beside Horovod's defaults, torch.distributed and mpi4py
	$(BIN)/python -m benchmarks.allreduce $(ARGS)

bench-scaling: with-dev ## time two workers beside two unconnected processes, and allreduces over limited links (root)
	$(BIN)/python -m benchmarks.scaling $(ARGS)

clean: ## remove .venv, .venv-3.13 and what tools left; the cache of Horovod wheels stays
	rm -rf $(VENV) .venv-3.* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
