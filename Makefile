# Every target makes its own environment: `make demo` and `make test` work on a fresh clone with
# nothing but Python 3.11 or newer, pip and make. `make help` lists the targets.

VENV ?= .venv
# The first of these that is new enough; `make PYTHON=/path/to/python3.12 test` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

PY := $(VENV)/bin/python
CLI := $(VENV)/bin/inferway
# Stamps carry the content of what was asked for, so that file times (a fresh checkout's, a copied
# folder's) decide nothing. The editable install's path belongs to it.
KEY := $(shell (cat pyproject.toml constraints.txt; echo '$(CURDIR)') | cksum | cut -d' ' -f1)
STAMP = $(VENV)/.installed-$(1)-$(KEY)
# Both names: pip up to 25.2 takes the first for build requirements too, later ones want the second.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq

# Hundreds of processes start in the tests: each would compile the package, and pytest its tests, anew.
unexport PYTHONDONTWRITEBYTECODE

# Percent of lines and branches that `make coverage` reaches, less a little.
COVERAGE := 90
# A process more than the two cores that are planned for: tests of real servers mostly wait.
SHARED := --numprocesses=3 --dist
# In a process of its own: one that dies is a failed test with a name, and not the end of all. This
# way of sharing them out is one that lets such a test run again.
SLOW_LIVE := --numprocesses=1 --dist=worksteal
# Real servers mostly wait; what computes beside them lets them go first.
BESIDE := nice -n 10

.DEFAULT_GOAL := help
.PHONY: help demo test test-live test-browser test-slow slow-live slow-computed test-all coverage lint format wheel constraints notebook pictures guides clean
# Half an environment is worse than none.
.DELETE_ON_ERROR:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(call STAMP,dashboard) ## Serve real models on this machine and compare five policies (under 2 minutes)
	$(CLI) demo

test: $(call STAMP,test) ## Run the tests, but not the slow ones
	$(PY) -m pytest $(SHARED)=loadfile -m "not slow" $(PYTEST_ARGS)

test-live: $(call STAMP,test) ## Run the tests of real servers, but not the slow ones
	$(PY) -m pytest -m "not slow" tests/live $(PYTEST_ARGS)

test-all: coverage test-slow ## Run every test

coverage: $(call STAMP,test) ## Run what `make test` runs, and see how much of the code it reaches
	$(PY) -m pytest $(SHARED)=loadfile -m "not slow" --cov --cov-report=term \
		--cov-fail-under=$(COVERAGE) $(PYTEST_ARGS)

test-slow: $(call STAMP,test) $(call STAMP,learn) $(call STAMP,ray) $(call STAMP,dask) ## Run the slow tests, and those that need PyTorch, Ray or Dask
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=line \
		slow-live slow-computed

slow-live:
	$(PY) -m pytest $(SLOW_LIVE) -m slow tests/live $(PYTEST_ARGS)

slow-computed:
	$(BESIDE) $(PY) -m pytest $(SHARED)=worksteal -m "not slow" tests/unit/learning \
		tests/unit/exporting $(PYTEST_ARGS)
	INFERWAY_EXAMPLES=all $(BESIDE) $(PY) -m pytest $(SHARED)=worksteal \
		-m "property and not slow" --ignore=tests/live $(PYTEST_ARGS)
	$(BESIDE) $(PY) -m pytest $(SHARED)=worksteal -m slow --ignore=tests/live $(PYTEST_ARGS)

test-browser: $(call STAMP,test) $(call STAMP,browser) ## Run the tests of the page in Chromium, which it installs on Debian
	@command -v chromium >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium \
		|| { echo "The tests of the page need Chromium: install it, or set CHROMIUM=/path/to/it" >&2; exit 1; }
	$(PY) -m pytest -q tests/browser

lint: $(call STAMP,lint) ## Check style (ruff) and types (mypy)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(call STAMP,lint) ## Rewrite the code in the project's style
	$(PY) -m ruff check --fix-only
	$(PY) -m ruff format

wheel: $(call STAMP,lint) ## Build the wheel into dist/
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(PY) -m pip wheel -qq --no-deps --wheel-dir dist .

notebook: $(call STAMP,test) $(call STAMP,learn) ## Run the documentation's notebook again and keep what it shows
	$(PY) docs/execute.py docs/tour.ipynb --write

pictures: $(call STAMP,test) ## Pack changed pictures of the documentation, as they look (Debian's scour)
	$(PY) docs/pack.py \
		$$(git ls-files --modified --others 'docs/images/*.png' | sort -u)
	for file in $$(git ls-files --modified --others 'docs/images/*.svg' | sort -u); do \
		scour -q --set-precision=6 --remove-metadata --shorten-ids --indent=none --no-line-breaks \
			-i $$file -o $$file.packed && mv $$file.packed $$file || exit 1; done

guides: $(call STAMP,test) $(call STAMP,learn) ## Run the commands and the Python of README, tutorial and guides as written
	$(PY) docs/walk.py $(WALK_ARGS)

constraints: ## Resolve every extra afresh; rewrite constraints.txt and deploy/requirements*.txt
	$(call need_python)
	PYTHON=$(PYTHON) .ci/constraints

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) dist build out .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

define need_python
@test -n "$(PYTHON)" || { echo "Inferway needs Python 3.11 or newer, and no python3 on the PATH is; \
	install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
endef

# Some distributions ship venv without ensurepip; pip can then install itself from outside.
$(VENV)/.made:
	$(call need_python)
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(PY) install -qq pip; }
	@touch $@

define install
@echo "Installing what \`make $(MAKECMDGOALS)\` needs into $(VENV) ..."
@$(PIP) -e '$(1)'
@touch $@
endef

# With the page, which is small: the demo ends with a command that shows it.
$(call STAMP,dashboard): $(VENV)/.made
	$(call install,.[dashboard])

$(call STAMP,test): $(VENV)/.made
	$(call install,.[test])

$(call STAMP,lint): $(VENV)/.made
	$(call install,.[lint])

$(call STAMP,browser): $(VENV)/.made
	$(call install,.[browser])

$(call STAMP,learn): $(VENV)/.made
	$(call install,.[learn])

$(call STAMP,ray): $(VENV)/.made
	$(call install,.[ray-serve])

$(call STAMP,dask): $(VENV)/.made
	$(call install,.[dask])
