# Everything is reached through make, here and in CI. `make` alone lists the targets.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiled modules are kept, outside of the source tree: otherwise every process that a test starts compiles them again.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache
# Three processes for two cores: tests also wait, for timeouts and for programs that they start.
PYTEST = $(BIN)/pytest -q -n $${PENSTOCK_TEST_JOBS:-3} --dist worksteal --reruns $${PENSTOCK_TEST_RERUNS:-0} --durations 30

.DEFAULT_GOAL := help
.PHONY: help setup system-packages demo apps image test test-all fuzz check lock format bench bench-quick faults screenshots seeded attack schema docs site clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment and install everything into it

# Runs again only when pyproject.toml or requirements.lock changes. Versions come from the lock file; where it cannot
# be used, or lacks a package, they come from pyproject.toml. uv is fast; pip is the fallback where only pip knows the
# index.
$(STAMP): pyproject.toml requirements.lock
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock \
	  || echo 'requirements.lock cannot be installed here: using the versions that pyproject.toml allows'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]' \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

system-packages: ## Install the PostgreSQL 15 server, pgbouncer, Chromium and LibreOffice for the tests, where possible
	@scripts/system-packages

demo: setup ## Start the embedded database, the API and a worker, and make a small book: PDFs and MP3s
	@$(BIN)/penstock demo

apps: setup ## Run the demo of each app on the embedded database and simulators, with its figures; ARGS=notes runs one
	@$(BIN)/python scripts/apps.py $(ARGS)

test: setup ## Run everything that is not slow, on the embedded PostgreSQL 18; ARGS="tests/test_app.py" narrows it
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: setup system-packages ## Run the rest: PostgreSQL 15, the browser, fuzzing, races, small fault runs
	PENSTOCK_TEST_PG=$${PENSTOCK_TEST_PG:-contract} $(PYTEST) -m 'slow or postgres15' $(ARGS)

fuzz: setup ## Fuzz the API against its OpenAPI schema for some minutes, with a new seed that is printed
	PENSTOCK_FUZZ=$${PENSTOCK_FUZZ:-100} $(BIN)/pytest -q -rP tests/api/test_schema.py $(ARGS)

check: setup ## Check format, lint, types, import layers, lines of SQL, and that generated files are up to date
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/schema.py --check
	$(BIN)/python -m scripts.docs --check
	$(BIN)/python -m scripts.sql_lines

lock: setup ## Renew requirements.lock; ARGS=--upgrade takes the newest versions
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
	  --custom-compile-command 'make lock' --extra dev --output-file requirements.lock pyproject.toml $(ARGS)

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## Measure everything, beside its peers (long)
	$(BIN)/python -m bench
	$(BIN)/python -m bench.report

bench-quick: setup ## Measure the queue beside its peers, briefly
	$(BIN)/python -m bench --quick --json bench/results/quick.json

faults: setup system-packages ## Kill, pause, cut and fill up everything under load, on PostgreSQL 18 and 15, and check the history (long)
	$(BIN)/python -m faults --server 18 --save $(ARGS)
	$(BIN)/python -m faults --server 15 --save $(ARGS)

seeded: setup ## Plant known bugs and holes, one by one, and see that the tests catch each
	$(BIN)/python scripts/seeded.py $(ARGS)

attack: setup system-packages ## Try every attack of docs/security.md, look for known holes, list what a release installs
	$(BIN)/python -m scripts.attack $(ARGS)

schema: setup ## Rewrite penstock/sql/schema.sql, the picture of a fresh install, and freeze new migrations
	$(BIN)/python scripts/schema.py
	$(BIN)/python -m scripts.freeze

docs: setup ## Rewrite the generated parts of docs/
	$(BIN)/python -m scripts.docs

image: ## Build the image with docker, podman or buildah, and print its size and how long it takes to start
	@ARGS='$(ARGS)' scripts/image

site: setup ## Build the documentation site into build/site, with a Markdown twin of each page and llms.txt
	$(BIN)/python scripts/website.py

screenshots: setup system-packages ## Check every page in every theme and size, and rewrite docs/images/
	PENSTOCK_SCREENSHOTS=1 $(BIN)/pytest -q tests/dashboard/test_browser.py -k 'every_page or bulk'

clean: ## Remove what the other targets made (the data in .penstock stays)
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
