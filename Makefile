# make chat   set up, fetch the starter model if there is none, and start the application
# make test   set up, then check style and types and run the tests
# Both work without network once they have run.
# make gpu-test    run the tests that need an NVIDIA GPU
# make nvrtc-all   compile the CUDA kernels of many models for every architecture, without a GPU (minutes)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := $(wildcard kernels/cpu/*.c kernels/cpu/*.h)

# The newest Python that will do; PYTHON=... overrides.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# The CUDA extra where an NVIDIA driver is present: cuda12 or cuda13.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p')
EXTRA := $(if $(CUDA),$(if $(filter 12,$(CUDA)),cuda12,cuda13))

.PHONY: chat setup test check pytest bytecode test-models gpu-test nvrtc-all clean
.DEFAULT_GOAL := chat

chat: setup
	@test -n "$$($(BIN)/tiercel models 2>/dev/null)" || $(BIN)/tiercel pull smollm2
	@$(BIN)/tiercel

setup: $(VENV)/.ready

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "tiercel: Python 3.11 or newer with venv is needed: install python3 and python3-venv, or say make PYTHON=/path/to/python3"; exit 1; }
	@echo "making the environment in $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# With $(1) extras. The tools for tests come in the same go: each installing builds the C kernels anew.
define install
@$(PIP) install -c constraints.txt setuptools
@$(PIP) install -c constraints.txt --no-build-isolation -e '.$(if $(strip $(1)),[$(strip $(1))])'
@$(BIN)/python -c 'import kernels._cpu' 2>/dev/null || echo "tiercel: warning: the C kernels were not built, so NumPy computes, many times slower: install a C compiler (gcc or clang), then: touch pyproject.toml && make setup"
endef

comma := ,

$(VENV)/.ready: $(BIN)/python pyproject.toml constraints.txt $(SOURCES)
	@echo "installing Tiercel$(if $(EXTRA), with $(EXTRA))"
	$(call install,$(EXTRA))
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt $(SOURCES)
	@echo "installing Tiercel and the tools for tests$(if $(EXTRA), with $(EXTRA))"
	$(call install,dev$(if $(EXTRA),$(comma)$(EXTRA)))
	@touch $(VENV)/.ready $@

test: check pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Four processes also on two cores: many tests wait for clocks and terminals. Modules stay together as long as
# they can, for what their tests share. Byte code is kept: many tests start Python again.
pytest: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist worksteal

# What Python makes of the tests, before four processes make the same of them at once.
bytecode: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq > /dev/null

# Two small real models for the tests marked `model`; without them those tests skip and say so.
test-models: $(VENV)/.dev
	TIERCEL_MODELS=.cache/models $(BIN)/tiercel pull smollm2
	TIERCEL_MODELS=.cache/models $(BIN)/tiercel pull gemma3-270m

gpu-test: $(VENV)/.dev
	@$(BIN)/python -m kernels.cuda.devices
	$(BIN)/python -m pytest -m gpu

nvrtc-all: $(VENV)/.dev
	$(BIN)/python -m kernels.cuda.instances

clean:
	rm -rf $(VENV) build *.egg-info kernels/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
