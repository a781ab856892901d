# Everything a developer types. `make help` lists the targets; ARGS="…" reaches the command behind one.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The first Python that is new enough; override with: make setup PYTHON=/path/to/python
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# etcd's RPCs are called by hand, so their stubs are not kept.
STUBS := scheduler/pb/control.proto scheduler/pb/agent.proto scheduler/pb/scheduler.proto \
	scheduler/pb/fleetbeat.proto scheduler/pb/etcdmin.proto
OUT := .

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup up down test lint format proto lock docs bench chaos clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(READY) ## Create .venv and install the pinned dependencies

# The two checks speak before pip or venv fail with something harder to read.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "fleetbeat needs Python 3.11 or later, and there is none on PATH." >&2; \
		echo "Install it, as root (on Debian 12 and Ubuntu 24.04: apt-get install python3 python3-venv), or name it:" >&2; \
		echo "  make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. Install its venv module, as root, and type make again:" >&2; \
		echo "  apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv $(VENV) # pip comes last: an interrupted one is made again
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

up: $(READY) ## Start a whole cluster on this machine; Ctrl-C stops it (ARGS="--detach" leaves it running)
	@exec $(BIN)/fleetbeat up $(ARGS)

down: $(READY) ## Stop the cluster of `make up`
	@exec $(BIN)/fleetbeat down $(ARGS)

test: $(READY) ## Run all tests, four at a time; most of them wait (ARGS="tests/unit -k name" runs some)
	$(BIN)/python -m pytest -n 4 --dist loadfile $(ARGS)

lint: $(READY) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY) ## Generate scheduler/pb from proto/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -Ischeduler/pb=proto --python_out=$(OUT) \
		--mypy_out=quiet:$(OUT) --grpc_python_out=$(OUT) --mypy_grpc_out=quiet:$(OUT) $(STUBS)
	rm -f $(OUT)/scheduler/pb/etcdmin_pb2_grpc.py $(OUT)/scheduler/pb/etcdmin_pb2_grpc.pyi

lock: ## Choose the dependencies anew and write requirements.lock (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv; install it with: pip install uv" >&2; exit 1; }
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--extra embedded --extra dev pyproject.toml -o requirements.lock

docs: $(READY) ## Generate the settings reference, and which tests prove which behaviour
	$(BIN)/python -m scheduler.cli.settings_doc > docs/reference/settings.md
	$(BIN)/python -m tests.support.behaviour_doc

bench: $(READY) ## Measure speeds, as ratios against a floor measured in the same run
	@for one in tests/bench/bench_*.py; do $(BIN)/python -m tests.bench.$$(basename $$one .py) $(ARGS) || exit 1; done

chaos: $(READY) ## Ten minutes of random kill -9 and SIGSTOP under 60 workloads (ARGS="--minutes 2 --seed 3")
	$(BIN)/python -m tests.chaos.run $(ARGS)

clean: ## Remove the virtual environment and all that tools left; not the data of clusters
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
