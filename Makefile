# Everything a contributor runs. `make help` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
DOCS_STAMP := $(VENV)/.installed-docs
# pip compiles what it installs in one process, a minute of it. IMPORT compiles what training imports,
# and COMPILE all, in a process per core, but for files that are written for a newer Python.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
WHEELS := $(BIN)/python -m pip download -q --disable-pip-version-check -c constraints.txt --dest wheels
IMPORT := $(BIN)/python -W ignore -c
COMPILE := @$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib agentrl envs sandbox tools || true
# Set in some images: each process would compile every module that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

# The one place that says what the quickstart is.
QUICKSTART := $(BIN)/agentrl train configs/quickstart.yaml

# How many processes run tests, four at most; JOBS=0 runs them in one.
JOBS ?= logical
PYTEST := $(BIN)/pytest --numprocesses=$(JOBS) --maxprocesses=4

# What `make test-all` runs; TIERS="system run" is what `make test` leaves out.
TIERS ?= unit system run

# What `make bench-quick` runs, all of rows.json without names.
QUICK ?=

# How long `make fuzz` goes on, in seconds.
FUZZ_S ?= 600

BENCHMARKS := $(filter-out commands curve harness letters long_trajectories made_run measure method_rows methods plan_gpu plan_published pretrained quick real_shape samplers shapes soak staleness start sums ui_s1 vlm_step vs_trl waiting,$(basename $(notdir $(wildcard benchmarks/*.py))))

# What an installation needs, said before it begins.
define CHECK
import shutil, sys
version, free = sys.version_info, shutil.disk_usage(".").free
if version < (3, 11):
    sys.exit(f"agentrl needs Python 3.11 or newer, and {sys.executable} is {version[0]}.{version[1]}: run make with PYTHON=python3.11, or where you have it")
if free < 2.5e9:
    sys.exit(f"the installation takes 2 GB here, and {free / 1e9:.1f} GB are free: make room, or clone agentrl to another disk")
endef
export CHECK

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv dev quickstart test test-all test-nightly fuzz check format docs lock wheels release bench bench-quick $(BENCHMARKS:%=bench-%) clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Build .venv from constraints.txt; again only when that or pyproject.toml changes

dev: $(DEV_STAMP) ## Add to .venv what tests, checks and benchmarks need

# torch comes first and alone: what it brings along is decided before anything else asks for it.
# agentrl is built with what is in the venv, so that nothing unconstrained is downloaded for it.
# reasoning-gym comes without its dependencies, for one of them needs a C compiler: see the group.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "$$CHECK"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) pip
	$(INSTALL) torch hatchling editables
	@$(IMPORT) 'import torch' & $(INSTALL) --no-build-isolation --editable '.[train]' --group reasoning && wait
	$(INSTALL) --no-deps reasoning-gym
	@$(IMPORT) 'import agentrl.run.train, agentrl.engine.local, agentrl.learn.trainer, agentrl_envs.code'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(INSTALL) --no-build-isolation --group dev
	$(COMPILE)
	@touch $@

$(DOCS_STAMP): $(DEV_STAMP)
	$(INSTALL) --group docs
	$(COMPILE)
	@touch $@

quickstart: venv ## Train a tiny agent to use a tool, and evaluate it before and after
	rm -rf runs/quickstart
	$(QUICKSTART)

test: dev ## Run the unit tests, a test per kind of environment, and a run that is killed and resumed
	$(PYTEST) --dist=worksteal tests/unit @tests/fast.txt

# A file stays in one process, so its browsers and desktops are started once.
test-all: dev ## Run the tests of every tier, with all examples of a property; an hour on two cores
	AGENTRL_THOROUGH=1 $(PYTEST) --dist=loadfile --no-loadscope-reorder $(TIERS:%=tests/%)

test-nightly: dev ## Run what test-all leaves out: every one of many like cases, and whole learning curves
	$(PYTEST) -m nightly --dist=loadfile --no-loadscope-reorder tests

fuzz: dev ## Say hostile words on every way in for ten minutes; FUZZ_S=60 for one
	AGENTRL_FUZZ_S=$(FUZZ_S) $(BIN)/pytest -n0 -s tests/run/test_fuzz.py

check: dev ## Check format, lint, names and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python .ci/language.py --hold .
	$(BIN)/pyright

format: dev ## Format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(DOCS_STAMP) ## Build the documentation in build/docs; every warning is an error
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going --fresh-env -b html docs build/docs
	@echo open build/docs/index.html

lock: ## Write uv.lock with the versions of constraints.txt; needs uv
	$(PYTHON) .ci/lock.py

release: dev ## Make packages, an image, a commit and a tag: make release VERSION=0.2.0 OPTIONS=--dry-run
	$(BIN)/python .ci/release.py $(VERSION) $(OPTIONS)

wheels: venv ## Fetch what a container image is made of, for hosts whose containers reach no index
	rm -rf wheels
	$(WHEELS) pip hatchling torch '.[train]' --group reasoning
	$(WHEELS) --no-deps reasoning-gym

bench: $(BENCHMARKS:%=bench-%) ## Run every benchmark, reports go to runs/bench

$(BENCHMARKS:%=bench-%): bench-%: dev
	@mkdir -p runs/bench
	$(BIN)/python benchmarks/$*.py --json runs/bench/$*.json

bench-quick: dev ## Run the benchmarks of benchmarks/rows.json small, with their peers; a missing row fails
	$(BIN)/python -m benchmarks.quick $(QUICK)

clean: ## Remove the venv, builds and caches; runs/ stays
	rm -rf $(VENV) build dist wheels .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
