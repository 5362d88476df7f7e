# Every target sets up .venv itself, once. PYTHON and PIP_ARGS may be overridden, e.g. to take a
# torch build for your GPU: make test PIP_ARGS="-c my-constraints.txt"
PYTHON ?= python3
PIP_ARGS ?= -c constraints.txt
BIN := .venv/bin

.PHONY: demo docs test test-slow test-gpu bench lint clean

demo: .venv/core           ## simulate a real scenario; show its curves and its pick
	$(BIN)/paceline simulate scenarios/quickstart.toml --jobs 2

docs: .venv/core           ## the generated part of docs/programs: parameters, results, figures
	$(BIN)/python docs/build.py

test: .venv/dev            ## the whole test suite
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not alone"
	$(BIN)/python -m pytest -m alone

test-slow: .venv/dev       ## what takes minutes
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/dev        ## what needs a CUDA device
	$(BIN)/python -m pytest -m gpu

bench: .venv/dev           ## how fast we are, side by side with others; writes docs/benchmarks.md
	$(BIN)/python -m tests.bench

lint: .venv/dev            ## formatting, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=23.2"

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e .
	touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[dev]"
	touch $@
