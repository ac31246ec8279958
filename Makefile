# Everything a newcomer needs: `make demo`, then `make test`. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PYTHON ?=
ARGS ?=
DEMO ?= fix-failing-test
MINUTES ?= 120
SEED ?= 1

export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: help setup demo up down status test lint format bench endurance faults slow all-tests histories lock clean distclean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET\n"} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: PYTHON=/path/to/python3  ARGS="further arguments"  DEMO=slug  MINUTES=120  SEED=1\n'

setup: $(STAMP) ## Install everything into .venv (skipped when up to date)

$(STAMP): pyproject.toml uv.lock infra/bin/setup
	@PYTHON="$(PYTHON)" infra/bin/setup
	@touch $@

demo: $(STAMP) ## Watch agents repair a failing test, verified at the end; starts and stops the stack by itself
	@$(BIN)/journeyman demo $(DEMO) $(ARGS)

up: $(STAMP) ## Start the whole platform on this machine, in the foreground
	@$(BIN)/journeyman up $(ARGS)

down: $(STAMP) ## Stop it
	@$(BIN)/journeyman down $(ARGS)

status: $(STAMP) ## Show what runs, where, and what this machine cannot enforce
	@$(BIN)/journeyman status $(ARGS)

test: $(STAMP) ## Run the tests, against the real servers
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

lint: $(STAMP) ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks; ARGS names some of them; tables on the terminal, JSON in benchmarks/results
	@$(BIN)/python -m benchmarks $(ARGS)

faults: $(STAMP) ## Run the fault-injection tests, minutes-long ones included
	$(BIN)/python -m pytest tests/faults $(ARGS)

endurance: $(STAMP) ## One long task with a kill -9 a minute, compared with an undisturbed run (MINUTES, SEED)
	@$(BIN)/python -m benchmarks.endurance --minutes $(MINUTES) --seed $(SEED) $(ARGS)

slow: $(STAMP) ## Run the tests that `make test` leaves out: long courses, kills at every point
	$(BIN)/python -m pytest -m slow $(ARGS)

all-tests: $(STAMP) ## Run every test, the slow ones too
	$(BIN)/python -m pytest $(ARGS)

histories: $(STAMP) ## Record the golden histories anew, after a change of the workflow code
	$(BIN)/python -m tests.support.record_histories $(ARGS)

lock: $(STAMP) ## Resolve the dependencies anew into uv.lock
	@if command -v uv >/dev/null 2>&1; then uv lock --upgrade; else .tools/uv/bin/uv lock --upgrade; fi

clean: ## Remove caches and build results
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -path ./$(VENV) -prune -o -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## Also remove .venv and .tools (never the data directory)
	rm -rf $(VENV) .tools
