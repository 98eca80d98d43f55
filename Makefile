# make            what there is to make
# make run        serve the embedded demo models
# make test       lint, types and tests, with a real Triton
#
# Everything is made in .venv and .peers; PYTHON chooses the interpreter (3.11 or newer).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
BASE ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
SOURCES := pyproject.toml $(shell find src -name '*.egg-info' -prune -o -type f ! -name '*.pyc' -print)
PAGES := $(wildcard *.md) $(shell find docs config deploy -type f ! -path '*/__pycache__/*')
CODE := src tests bench proto fbs deploy docs/mkdocs
BRANCH_FLOOR := 95

.PHONY: help run test test-peers compiled lint format types bench bench-check soak docs docs-config fidelity proto fbs lock dist clean distclean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: .venv/installed  ## serve the embedded demo models (ARGS="--config routes.yaml" for others)
	@exec $(BIN)/infergate $(ARGS)

test: lint .venv/tested  ## lint, types, tests with a real Triton, branch coverage
	@$(MAKE) -j2 types compiled
	@PYTHONPATH=tests PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not peers" \
	    --cov --cov-report= -p branch_floor --branch-floor=$(BRANCH_FLOOR)

test-peers: .venv/tested  ## the tests that need MLServer, KServe, Envoy and others (large downloads), and whole searches
	@INFERGATE_SEARCH=whole INFERGATE_FORKED=no $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "peers or hypothesis"

# Compile the bytecode for all test processes while mypy runs; the tests report any errors.
compiled: .venv/tested
	@PYTHONPATH=tests PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq > /dev/null 2>&1 || true

lint: .venv/tested  ## ruff and the plain-language check, without changing anything
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/python tests/plain_language.py src docs README.md CHANGELOG.md CONTRIBUTING.md tests bench

format: .venv/tested  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

types: .venv/tested  ## mypy, strict
	@$(BIN)/mypy

bench: .venv/tested  ## side by side with Triton and Envoy: the targets (ARGS="--help" for choices)
	@$(BIN)/python -m bench $(ARGS)

bench-check: .venv/tested  ## whether a change makes requests dearer than at BASE, by CPU (not in test)
	@$(BIN)/python -m bench.check $(if $(BASE),--base $(BASE)) $(ARGS)

soak: .venv/tested  ## every kind of client for 10 minutes, some broken: does anything leak? (ARGS="--help")
	@$(BIN)/python -m bench.soak $(ARGS)

docs: site/index.html  ## make the site of docs/, in site/; a warning is an error

site/index.html: .venv/documented Makefile $(PAGES)
	@said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f docs/mkdocs/mkdocs.yml 2>&1) || \
	    { echo "$$said" >&2; rm -rf site; exit 1; }
	@echo "the site is in site/index.html"

docs-config: .venv/installed  ## write docs/configuration.md, the JSON schema, and the tables of docs/cli.md
	@$(BIN)/python -m infergate.config.reference docs
	@$(BIN)/python -m infergate.cli.reference docs

fidelity: .venv/installed  ## write docs/fidelity.md from what is found
	@$(BIN)/infergate matrix --page > docs/fidelity.md.new
	@mv docs/fidelity.md.new docs/fidelity.md

proto: .venv/tested  ## compile proto/*.proto into the package
	@$(BIN)/python proto/generate.py

fbs: .venv/tested  ## compile fbs/graphpipe.fbs for the tests (needs flatc)
	@$(BIN)/python fbs/generate.py

LOCKED := deploy/docker/requirements.txt
lock: .venv/released  ## pin anew what the image is made of, by version and hash
	@echo "# What the image is made of besides infergate, with the extras jwt, otel and redis. Made by \`make lock\`; not to be edited." \
	    > $(LOCKED).new
	@$(BIN)/uv pip compile -q --upgrade --extra jwt --extra otel --extra redis --generate-hashes --no-header \
	    --no-emit-index-url --python-version 3.11 --python-platform linux --only-binary :all: \
	    pyproject.toml >> $(LOCKED).new
	@mv $(LOCKED).new $(LOCKED)

dist: .venv/released  ## wheel, source and list of contents (SBOM) into dist/, tried where nothing else is
	@rm -rf build dist
	@$(BIN)/python -m build -o dist . > /dev/null
	@$(BIN)/twine check --strict dist/*
	@empty=$$(mktemp -d); trap 'rm -rf "$$empty"' EXIT; \
	 $(BIN)/python -m venv --without-pip $$empty; \
	 pip="$(BIN)/python -m pip --disable-pip-version-check --python $$empty/bin/python install -q"; \
	 $$pip --require-hashes --only-binary :all: -r $(LOCKED); $$pip --no-deps dist/*.whl; \
	 $$empty/bin/infergate --config config/demo.yaml --check > /dev/null; \
	 named=$$(basename dist/*.tar.gz .tar.gz); \
	 $(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	    --mc-type application -o dist/$$named.cdx.json $$empty/bin/python
	@rm -rf build; ls -l dist

clean:  ## remove what building and testing leave behind
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	@find . -path ./.venv -prune -o -path ./.peers -prune -o \
	    \( -name __pycache__ -o -name '*.egg-info' \) -type d -print0 | xargs -0 rm -rf

distclean: clean  ## also remove .venv and the installed peers
	@rm -rf .venv .peers

# ---- the virtual environment ---------------------------------------------------------------------
# build/ is removed around each installation: setuptools would install files that are gone from src.

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "infergate needs Python 3.11 or newer and '$(PYTHON)' is not:" \
	         "try 'make PYTHON=/path/to/python3.11'" >&2; exit 1; }
	@rm -rf .venv; said=$$($(PYTHON) -m venv .venv 2>&1) || { rm -rf .venv; \
	    echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: sudo apt install python3-venv" >&2; \
	    echo "$$said" | sed 's/^/    /' >&2; exit 1; }
	@touch $@

.venv/installed: $(SOURCES) | .venv/made
	@echo "installing infergate into .venv …" >&2
	@rm -rf build; $(PIP) .; rm -rf build
	@touch $@

.venv/tested: $(SOURCES) | .venv/made
	@echo "installing infergate and what its tests need into .venv …" >&2
	@rm -rf build; $(PIP) '.[test]'; rm -rf build
	@touch .venv/installed $@

.venv/documented: .venv/installed
	@$(PIP) '.[docs]'; rm -rf build
	@touch $@

.venv/released: .venv/installed
	@$(PIP) '.[release]'; rm -rf build
	@touch $@
