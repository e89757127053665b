# Start with `make repro` and `make test` on a machine with Python 3.11 to 3.13, git and make.
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
SAME_TARGETS ?= grouped_conv_forward_bf16_sm90

BIN := $(VENV)/bin
# DVC's stages and MLproject's entry points call `tilewise` by name.
export PATH := $(abspath $(BIN)):$(PATH)
TRAIN := $(VENV)/.train
DEV := $(VENV)/.dev
INTERPRETER := $(VENV)/.interpreter
SERVERS := $(VENV)/.servers
DOCS := $(VENV)/.docs
CLUSTER := $(VENV)/.cluster

# A resnet50 layer, for which `make repro` selects a kernel at its end.
PROBLEM ?= {N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1}

# Where Python may not write compiled files, each process would compile all that it imports.
COMPILED := $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)

# uv installs the locked files in seconds. pip is used if it alone is configured for the package index.
define install_locked
@echo "installing $(1)"
@$(BIN)/uv pip install --quiet $(COMPILED) --python $(BIN)/python --require-hashes --requirement $(1) 2>$(VENV)/uv.log \
  || { echo "  by pip, which takes longer: uv could not ($(VENV)/uv.log)"; \
       $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement $(1); }
endef

.PHONY: help
help:  ## show this help
	@awk 'BEGIN {FS = ":.*  ## "} /^[a-z][a-z-]*:.*  ## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Installing (stamp files avoid repetition)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "tilewise needs Python 3.11 to 3.13; say which: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.bootstrap: requirements/bootstrap.txt | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

CORE := hatch_build.py $(wildcard src/tilewise/core/*.[ch])

$(TRAIN): requirements/train.txt pyproject.toml $(CORE) $(VENV)/.bootstrap
	$(call install_locked,$<)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline --editable .
	@touch $@

$(DEV): requirements/dev.txt $(TRAIN)
	$(call install_locked,$<)
	@touch $@

# By pip, not uv; the file explains why.
$(INTERPRETER): requirements/interpreter.txt $(DEV)
	@echo "installing $<"
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(SERVERS): requirements/servers.txt $(TRAIN)
	$(call install_locked,$<)
	@touch $@

$(CLUSTER): requirements/cluster.txt $(TRAIN)
	$(call install_locked,$<)
	@touch $@

$(DOCS): requirements/docs.txt $(TRAIN)
	$(call install_locked,$<)
	@touch $@

.PHONY: install
install: $(TRAIN)  ## install the locked libraries and tilewise into .venv

.PHONY: install-dev
install-dev: $(INTERPRETER)  ## the same with the tools for lint, types and tests

##### The product

.PHONY: repro
repro: $(TRAIN)  ## build the default target: data, train, evaluate, promote; then print the result
	@SECONDS=0; \
	  echo "1 of 3: the measurements, from this repository"; dvc pull --quiet data.dvc; \
	  echo "2 of 3: prepare, train, evaluate, promote; some five minutes on two cores ($${SECONDS} s passed)"; dvc repro; \
	  echo "3 of 3: the result ($${SECONDS} s passed)"; $(MAKE) --no-print-directory show

REPRO_ARGS ?=

.PHONY: repro-all
repro-all: $(TRAIN)  ## the same for every target that has committed measurements (REPRO_ARGS="cluster=dask": on a cluster)
	dvc pull --quiet data.dvc
	@trap '$(BIN)/python -m tilewise.cli.compose --output params.yaml' EXIT; \
	  python -m tilewise.cli.compose --output params.yaml stages=all; python -m tilewise.cli.models.repro $(REPRO_ARGS)

.PHONY: same
same: $(TRAIN)  ## after a change of sources: show that the stages compute the same, accept the sources in dvc.lock
	dvc pull --quiet data.dvc
	@for target in $(SAME_TARGETS); do test -d models/$$target || dvc pull --quiet train@$$target; done
	python -m tilewise.cli.same $(SAME_TARGETS)

.PHONY: fingerprints
fingerprints: $(TRAIN)  ## after `make repro` of changed sources: record the reference of `make same`, keep the models
	python -m tilewise.cli.same --record $(SAME_TARGETS)
	dvc push --quiet $(addprefix train@,$(SAME_TARGETS))

.PHONY: show
show: $(TRAIN)
	@python -m tilewise.cli.summary 'problem=$(PROBLEM)'

##### One iteration of the closed loop (docs/closed-loop.md). Steps with an existing file are skipped, so the same command
##### continues after an interruption, or after the plan was measured on another machine.

REQUESTS ?=
RUN ?=
TARGET ?= grouped_conv_forward_bf16_sm90
BUDGET ?= 600
COLLECT_ARGS ?=
TURN_ARGS ?=
TURN = build/turn/$(RUN)

.PHONY: turn
turn: $(if $(RUN),$(TURN)/before data/$(TARGET)/$(RUN).parquet)  ## measure requested problems, retrain, let the gate decide (REQUESTS=FILE RUN=NAME; TURN_ARGS=cluster=dask: on a cluster)
	@test -n "$(RUN)" || { echo "RUN is missing; name the request log and the run: make turn REQUESTS=FILE RUN=NAME" >&2; exit 2; }
	dvc add --quiet data && dvc push --quiet data.dvc
	@trap '$(BIN)/python -m tilewise.cli.compose --output params.yaml' EXIT; \
	  python -m tilewise.cli.compose --output params.yaml stages=all $(TURN_ARGS); dvc repro promote@$(TARGET)
	tilewise validate mode=trace target=$(TARGET) plan.requests=$(TURN)/requests.jsonl a=$(TURN)/before out=$(TURN)
	@echo "to keep this version of the data: git add data.dvc dvc-store dvc.lock reports, and commit"

# The request log keeps growing, so the iteration copies it, and also the model for the comparison.
$(TURN)/requests.jsonl: | $(TRAIN)
	@test -f "$(REQUESTS)" || { echo "REQUESTS=$(REQUESTS): no such file; TILEWISE_RECORD names it" >&2; exit 2; }
	@mkdir -p $(@D) && cp "$(REQUESTS)" $@

$(TURN)/before: | $(TRAIN)
	@mkdir -p $(@D) && rm -rf $@.part && cp -r models/$(TARGET) $@.part && mv $@.part $@

$(TURN)/plan.json: | $(TURN)/requests.jsonl
	tilewise plan target=$(TARGET) plan.requests=$(TURN)/requests.jsonl plan.budget_s=$(BUDGET) \
	  collect.run_id=$(RUN) output=$@ $(TURN_ARGS)

data/$(TARGET)/$(RUN).parquet: | $(TURN)/plan.json
	tilewise collect input=$(TURN)/plan.json output=$@ $(COLLECT_ARGS) $(TURN_ARGS)

TRIALS ?=

.PHONY: tune
tune: $(TRAIN)  ## repeat the study behind a target's settings, trials in MLflow (TARGET=NAME; TRIALS=40: a deeper one)
	dvc pull --quiet data.dvc
	@mkdir -p build
	python -m tilewise.cli.models.tune $(TARGET) $(TRIALS)

.PHONY: ui
ui: $(TRAIN)  ## open MLflow's pages with the runs and models of this folder
	@echo "trainings: http://127.0.0.1:$(UI_PORT)/#/experiments?workflowType=machine_learning (each one's description has its view)"
	@echo "models:    http://127.0.0.1:$(UI_PORT)/#/models?workflowType=machine_learning&searchInput=tags.%60tilewise.kind%60%3D%27model%27"
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}" --port $(UI_PORT)

.PHONY: servers
servers: $(SERVERS)  ## run MLflow over PostgreSQL and an S3 store until Ctrl-C (SERVERS_ARGS="--port 5000", --open: without users)
	@exec python -m tilewise.servers $(SERVERS_ARGS)

CLUSTER_ARGS ?=

.PHONY: cluster
cluster: $(CLUSTER)  ## run a Dask scheduler and a worker per core until Ctrl-C (CLUSTER_ARGS="--gpus 2"), for cluster=dask
	@exec python -m tilewise.cluster $(CLUSTER_ARGS)

##### The developer's day

PYTEST := pytest --numprocesses $(JOBS) --dist loadgroup

.PHONY: test
test: $(INTERPRETER) lint type  ## lint, types and the short tests: every package, about five minutes (TEST_ARGS="-k gate" for some)
	$(PYTEST) -m "not long" $(TEST_ARGS)

.PHONY: test-all
test-all: $(INTERPRETER) $(SERVERS) $(CLUSTER) analyse  ## the rest: clang's analyser, servers, processes that are killed, kernels in the interpreter, whole trainings
	$(PYTEST) -m long $(TEST_ARGS)

SCHEDULES ?= 100
SEED ?= 0

.PHONY: campaign
campaign: $(DEV) $(SERVERS)  ## schedules of faults and damaged files, with counts in benchmarks/results (SCHEDULES=N SEED=S; docs/faults.md)
	python -m benchmarks.robustness.campaign --schedules $(SCHEDULES) --seed $(SEED) --save
	python -m benchmarks.robustness.fuzz --seed $(SEED) --save
	pytest -q tests/registry/test_hosts.py

MUTATE_ARGS ?=
MUTMUT := 3.8.1

.PHONY: mutate
mutate: $(DEV)  ## small changes of the code that claims rest on, which no test notices (MUTATE_ARGS="--group gate" for some)
	$(BIN)/uv pip install --quiet --python $(BIN)/python mutmut==$(MUTMUT)
	python -m benchmarks.robustness.mutation --jobs $(JOBS) --save $(MUTATE_ARGS)

# clang-tidy skips files that include Python.h, and the client in tests/capi, which includes the installed header.
C_FILES := $(wildcard src/tilewise/core/*.[ch] src/tilewise/capi/*.[ch] src/tilewise/capi/include/*.h* examples/*.cpp \
  tests/core/*.[ch] tests/capi/*.[ch])
PURE_C := $(filter-out src/tilewise/core/_% tests/capi/%,$(filter %.c,$(C_FILES)))
tidy = echo $(PURE_C) | xargs -n 4 -P $(JOBS) sh -c 'clang-tidy --quiet $(1) "$$@" -- -std=gnu11' tidy

.PHONY: lint
lint: $(DEV)  ## rules and format: ruff for Python, clang-tidy and clang-format for C; import-linter: the order of floors
	ruff check
	ruff format --check
	lint-imports
	clang-format --dry-run --Werror $(C_FILES)
	@$(call tidy,--checks=-clang-analyzer-*)

.PHONY: analyse
analyse: $(DEV)  ## clang's static analyser on the C files, which takes seconds a file
	@$(call tidy,)

.PHONY: format
format: $(DEV)  ## apply the fixes of ruff and clang-format
	ruff check --fix
	ruff format
	clang-format -i $(C_FILES)

.PHONY: type
type: $(DEV)  ## mypy, strict
	mypy --num-workers $(JOBS)

.PHONY: params
params: $(TRAIN)  ## compose conf/ into params.yaml, which DVC tracks
	python -m tilewise.cli.compose --output params.yaml

.PHONY: figures
figures: $(TRAIN)  ## fill the pages on data and benchmarks with their tables and plots
	tilewise data describe stages=all output=docs/images/data out=docs/data.md
	python -m benchmarks.report
	python -m benchmarks.learning.learning_curve page

# Both libraries print notices about their successors; the lock file decides what is used.
MKDOCS := NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true mkdocs

.PHONY: docs
docs: $(DOCS)  ## build the documentation site into build/site; a warning is an error
	$(MKDOCS) build --quiet

.PHONY: docs-serve
docs-serve: $(DOCS)  ## show the site at http://127.0.0.1:8000 while its pages change
	$(MKDOCS) serve

.PHONY: lock
lock: $(VENV)/.bootstrap  ## renew requirements/*.txt (UPGRADE=1 takes newer versions)
	$(eval COMPILE := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade))
	$(COMPILE) requirements/bootstrap.in --output-file requirements/bootstrap.txt
	$(COMPILE) pyproject.toml --extra train --constraint requirements/constraints.in --output-file requirements/train.txt
	$(COMPILE) pyproject.toml --extra train --extra dev --extra metrics --constraint requirements/train.txt --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --extra train --extra servers --constraint requirements/train.txt --output-file requirements/servers.txt
	$(COMPILE) pyproject.toml --extra train --extra docs --constraint requirements/train.txt --output-file requirements/docs.txt
	$(COMPILE) pyproject.toml --extra train --extra cluster --constraint requirements/train.txt --output-file requirements/cluster.txt

.PHONY: clean
clean:  ## remove everything built: environment, caches, models, reports (not the MLflow store)
	rm -rf $(VENV) build dist models .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find reports -name '*.parquet' -delete 2>/dev/null || true
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
