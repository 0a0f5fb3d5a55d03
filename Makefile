# `make demo` and `make test` need nothing but python3: the virtual environment is made on the way.
#
#   make demo       trains the bundled model on the bundled prompts: about ten minutes on two CPU cores
#   make test       every test that is not marked slow
#   make test-all   every test
#   make lint       ruff: rules and format
#   make types      mypy, strict on flowrl/
#   make bench      overhead of rollout and replay over the plain pipeline
#
# Another interpreter or folder: `make test PYTHON=python3.12 VENV=/tmp/venv`. Another number of test workers: `JOBS=8`.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

bin := $(VENV)/bin
# Written last, so an install that was interrupted is done again.
installed := $(VENV)/.flowrl-installed

# Tests never ask a model hub. One thread a worker: two workers with two threads each would fight over two cores.
pytest := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(bin)/python -m pytest -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all lint format types bench

help:
	@sed -n 's/^#   //p' Makefile

venv: $(installed)

$(installed): pyproject.toml
	test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --disable-pip-version-check --quiet --editable '.[dev]'
	@touch $@

demo: $(installed)
	$(bin)/python -m flowrl demo

test: $(installed)
	$(pytest) -m "not slow"

test-all: $(installed)
	$(pytest)

lint: $(installed)
	$(bin)/ruff check .
	$(bin)/ruff format --check .

format: $(installed)
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

types: $(installed)
	$(bin)/mypy

bench: $(installed)
	$(bin)/python -m flowrl bench
