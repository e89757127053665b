# Two commands on a fresh machine with Python 3.11 to 3.13, git and make: `make repro` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
TEST_ARGS ?=
UI_PORT ?= 5000
SERVERS_ARGS ?=

BIN := $(VENV)/bin
# DVC's stages and MLproject's entry points call `tilewise` by name.
export PATH := $(abspath $(BIN)):$(PATH)
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
INTERPRETER := $(VENV)/.interpreter
SERVERS := $(VENV)/.servers

# A resnet50 layer: what `make repro` asks the dispatcher about at its end.
PROBLEM ?= {N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1}

# uv installs the locked files in seconds. Where it cannot reach an index that only pip is configured for, pip does.
define install_locked
@echo "installing $(1)"
@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement $(1) \
  || $(BIN)/pip install --quiet --require-hashes --requirement $(1)
endef

.PHONY: help
help:  ## show this help
	@awk 'BEGIN {FS = ":.*  ## "} /^[a-z][a-z-]*:.*  ## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Installing (stamp files, so that it happens once)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "tilewise needs Python 3.11 to 3.13; say which: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.bootstrap: requirements/bootstrap.txt | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

CORE := hatch_build.py $(wildcard src/tilewise/core/*.[ch])

$(RUNTIME): requirements/runtime.txt pyproject.toml $(CORE) $(VENV)/.bootstrap
	$(call install_locked,$<)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline --editable .
	@touch $@

$(DEV): requirements/dev.txt $(RUNTIME)
	$(call install_locked,$<)
	@touch $@

# By pip, not uv: see the file.
$(INTERPRETER): requirements/interpreter.txt $(DEV)
	@echo "installing $<"
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(SERVERS): requirements/servers.txt $(RUNTIME)
	$(call install_locked,$<)
	@touch $@

.PHONY: install
install: $(RUNTIME)  ## install the locked libraries and tilewise into .venv

.PHONY: install-dev
install-dev: $(INTERPRETER)  ## the same with the tools for lint, types and tests

##### The product

.PHONY: repro
repro: $(RUNTIME)  ## build the default target: data, train, evaluate, promote; then show the result
	dvc pull --quiet data.dvc
	dvc repro
	@$(MAKE) --no-print-directory show

.PHONY: repro-all
repro-all: $(RUNTIME)  ## the same for every target that has committed measurements
	dvc pull --quiet data.dvc
	@trap '$(BIN)/python -m tilewise.cli.compose --output params.yaml' EXIT; \
	  python -m tilewise.cli.compose --output params.yaml stages=all; dvc repro

.PHONY: show
show: $(RUNTIME)
	@python -m tilewise.cli.summary 'problem=$(PROBLEM)'

##### One turn of the closed loop (docs/closed-loop.md). A step whose file is there is not done again: the same command
##### goes on after whatever stopped it, and where the plan is measured on another machine.

REQUESTS ?=
RUN ?=
TARGET ?= grouped_conv_forward_bf16_sm90
BUDGET ?= 600
COLLECT_ARGS ?=
TURN = build/turn/$(RUN)

.PHONY: turn
turn: $(if $(RUN),$(TURN)/before data/$(TARGET).$(RUN).parquet)  ## measure what dispatchers were asked for, learn from it, let the gate decide (REQUESTS=FILE RUN=NAME)
	@test -n "$(RUN)" || { echo "say what was recorded and name the run: make turn REQUESTS=FILE RUN=NAME" >&2; exit 2; }
	dvc add --quiet data && dvc push --quiet data.dvc
	@trap '$(BIN)/python -m tilewise.cli.compose --output params.yaml' EXIT; \
	  python -m tilewise.cli.compose --output params.yaml stages=all; dvc repro promote@$(TARGET)
	tilewise validate mode=trace target=$(TARGET) plan.requests=$(TURN)/requests.jsonl a=$(TURN)/before out=$(TURN)
	@echo "to keep this version of the data: git add data.dvc dvc-store dvc.lock reports, and commit"

# A record goes on growing: the turn keeps what it plans by, and the model that it is compared with.
$(TURN)/requests.jsonl: | $(RUNTIME)
	@test -f "$(REQUESTS)" || { echo "REQUESTS=$(REQUESTS): no such file; TILEWISE_RECORD names it" >&2; exit 2; }
	@mkdir -p $(@D) && cp "$(REQUESTS)" $@

$(TURN)/before: | $(RUNTIME)
	@mkdir -p $(@D) && rm -rf $@.part && cp -r models/$(TARGET) $@.part && mv $@.part $@

$(TURN)/plan.json: | $(TURN)/requests.jsonl
	tilewise plan target=$(TARGET) plan.requests=$(TURN)/requests.jsonl plan.budget_s=$(BUDGET) \
	  collect.run_id=$(RUN) output=$@

data/$(TARGET).$(RUN).parquet: | $(TURN)/plan.json
	tilewise collect input=$(TURN)/plan.json output=$@ $(COLLECT_ARGS)

.PHONY: ui
ui: $(RUNTIME)  ## open MLflow's pages on the runs and models of this folder
	mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}" --port $(UI_PORT)

.PHONY: servers
servers: $(SERVERS)  ## run MLflow over PostgreSQL and an S3 store until Ctrl-C (SERVERS_ARGS="--auth --port 5000")
	@exec python -m tilewise.servers $(SERVERS_ARGS)

##### The developer's day

.PHONY: test
test: $(INTERPRETER) $(SERVERS) lint type  ## lint, types and the whole test suite (TEST_ARGS="-k gate" for some)
	pytest --numprocesses $(JOBS) --dist loadgroup $(TEST_ARGS)

.PHONY: lint
lint: $(DEV)  ## ruff: rules and format
	ruff check
	ruff format --check

.PHONY: format
format: $(DEV)  ## let ruff mend what it can
	ruff check --fix
	ruff format

.PHONY: type
type: $(DEV) $(SERVERS)  ## mypy, strict
	mypy

.PHONY: params
params: $(RUNTIME)  ## compose conf/ into params.yaml, which DVC tracks
	python -m tilewise.cli.compose --output params.yaml

.PHONY: figures
figures: $(RUNTIME)  ## fill the pages of data and benchmarks with their tables and plots
	tilewise data describe output=docs/images/data out=docs/data.md
	python -m benchmarks.report
	python -m benchmarks.learning_curve page

.PHONY: lock
lock: $(VENV)/.bootstrap  ## renew requirements/*.txt (UPGRADE=1 takes newer versions)
	$(eval COMPILE := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade))
	$(COMPILE) requirements/bootstrap.in --output-file requirements/bootstrap.txt
	$(COMPILE) pyproject.toml --constraint requirements/constraints.in --output-file requirements/runtime.txt
	$(COMPILE) pyproject.toml --extra dev --constraint requirements/runtime.txt --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra servers --constraint requirements/runtime.txt --output-file requirements/servers.txt

.PHONY: clean
clean:  ## remove what is built: environment, caches, models, reports (not the MLflow store)
	rm -rf $(VENV) build dist models .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find reports -name '*.parquet' -delete 2>/dev/null || true
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
