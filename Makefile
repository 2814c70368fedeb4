# Every target that needs the environment depends on $(STAMP): the first one to run
# creates .venv, and later ones install again only if a pin or a dependency changed.

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Extra arguments, for example `make test ARGS="-k mesh -x"` or `make demo ARGS=--help`.
ARGS   ?=
# Test files are spread over the cores; each worker holds its own 8 CPU devices.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# Modules with an example in a docstring. These run without a device: an example that
# needs one belongs in examples/ or tests/.
DOCTESTED = $(shell grep -rl --include='*.py' '>>>' \
              $(wildcard spmd fsdpv2 flags profiling) | sort)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test test-slow examples doctest lint types format check \
        bench clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13: install one of these, or" \
	    "name yours with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  $(BIN)/python -m pip install --disable-pip-version-check \
	  -c constraints.txt -e ".[all]"
	@touch $@

install: $(STAMP) ## Create .venv with the pinned versions

demo: $(STAMP) ## Train a small language model under FSDPv2 on 8 CPU devices
	$(BIN)/python examples/02_fsdp.py $(ARGS)

test: $(STAMP) ## Run the tests, without the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(STAMP) ## Run the slow tests
	$(PYTEST) -m slow $(ARGS)

examples: $(STAMP) ## Run every example for a few steps
	$(PYTEST) tests/examples $(ARGS)

doctest: $(STAMP) ## Run the examples in docstrings
	$(BIN)/python -m pytest --doctest-modules $(DOCTESTED)

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	$(BIN)/pyright

format: $(STAMP) ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

check: lint types doctest test ## Everything CI runs

bench: $(STAMP) ## Run the benchmarks; each prints a ratio
	@set -e; for file in benchmarks/bench_*.py; do \
	  echo "== $$file"; $(BIN)/python $$file $(ARGS); done

clean: ## Remove caches and build outputs; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
