# Everything here sets itself up: it needs make, Python 3.10 or newer, and the network once.
PYTHON ?= python3
ARGS ?= --arch sm90 --seqlen 8192

VENV := .venv
READY := $(VENV)/ready

.DEFAULT_GOAL := help
.PHONY: help search test test-ascend lint bench-search venv clean

help: ## this list
	@echo "usage: make TARGET [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile

search: $(READY) ## search without a GPU for the default workload; ARGS="--arch sm80" for another
	@$(VENV)/bin/tunefa search $(ARGS)

# Tests of one file share what they compile, so they stay in one process. In the order of the files,
# long ones are not left for the end.
test: lint ## ruff, mypy and all tests
	$(VENV)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Without the compiler, `make test` skips what this runs. It is fetched once, into tunefa's folder.
test-ascend: $(READY) ## the tests with Huawei's real compiler; fetches it, about 200 MB
	$(VENV)/bin/tunefa ascend setup
	$(VENV)/bin/python -m pytest tests/ascend

# Through python -m: the tools of a reused environment have no scripts in .venv/bin.
lint: $(READY) ## ruff and mypy
	$(VENV)/bin/python -m ruff check
	$(VENV)/bin/python -m ruff format --check
	$(VENV)/bin/python -m mypy

# One thread per process: there is a process for every core.
bench-search: $(READY) ## compare search strategies on recorded landscapes; rewrites docs/search.md
	@PIP_USER=0 $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint $(VENV)/constraints.txt --editable ".[bench]"
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.bakeoff

venv: $(READY) ## .venv with tunefa and its tools; reuses the torch of PYTHON if it has one

clean: ## remove .venv, builds and caches; results of searches are kept
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Holds the folder it was made for: a .venv copied along with the tree still runs the old tree.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt scripts/make_venv.py
	@command -v $(PYTHON) >/dev/null || { \
	  echo "there is no '$(PYTHON)' here: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) scripts/make_venv.py
