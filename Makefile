# Every target sets up .venv itself, once, from the versions and hashes in requirements/. PYTHON may be
# overridden, and TORCH, to take another build: make test TORCH="torch==2.13.0 --index-url URL"
PYTHON ?= python3
TORCH ?=
SECONDS ?= 3600
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
LOCKED := $(PIP) --require-hashes
PINNED_TORCH := $(shell grep ^torch== constraints.txt)
PARALLEL := -n 2 --dist worksteal
QUICK := not long and not browser
LEFT_OUT := not nightly and not slow and not gpu and not alone and not frameworks
# These files hold all of them: to collect the other ten thousand tests takes longer.
ALONE = -m alone $(shell grep -rl --include="*.py" mark.alone tests)

.PHONY: demo docs site test test-long test-all test-nightly test-slow test-gpu test-frameworks explore-properties bench compat audit reliability mutants soak lint lock clean

demo: .venv/core           ## simulate a real scenario; show its curves and its pick
	$(BIN)/paceline simulate scenarios/quickstart.toml

docs: .venv/core           ## what is generated in docs/: keys, parameters, results, figures
	$(BIN)/python docs/build.py

site: .venv/dev            ## the documentation as a site that needs no network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# A test that fails is run once more, alone, at the end: if it passes then, it is listed as FLAKY.
AGAIN := $(BIN)/python -m tests.helpers.again

test: .venv/dev            ## most tests, every algorithm on every engine among them: minutes
	$(AGAIN) '$(PARALLEL) -m "$(QUICK) and $(LEFT_OUT)"'

test-long: .venv/dev       ## the others: fuzzing, kills, browsers, commands of the docs, ...
	$(AGAIN) '$(PARALLEL) -m "not ($(QUICK)) and $(LEFT_OUT)"' "$(ALONE)"

test-all: test test-long   ## all of these

test-nightly: .venv/dev    ## every program with every option: an hour
	$(AGAIN) '$(PARALLEL) -m "nightly and not gpu"'

test-slow: .venv/dev       ## what takes minutes
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/dev        ## what needs GPUs: one that ranks share, then one for each; says which parts ran
	$(BIN)/python -m pytest -m gpu -rsp

test-frameworks: .venv/dev ## emitted code, in those of accelerate, torchft, ... that are installed
	$(BIN)/python -m pytest -m frameworks -rs

explore-properties: .venv/dev ## the property tests, with new random inputs: what they find is a defect
	$(BIN)/python -m pytest $(PARALLEL) -m "hypothesis and $(LEFT_OUT)" --hypothesis-profile explore

bench: .venv/dev           ## how fast we are, side by side with others; writes docs/evidence/benchmarks.md
	$(BIN)/python -m tests.lab.bench

compat: .venv/dev          ## the quick tests with other Pythons, and with the oldest dependencies
	for python in 3.12 3.13; do \
	  if command -v python$$python >/dev/null; then \
	    python$$python -m venv .compat/python$$python && \
	    .compat/python$$python/bin/python -m pip install --quiet -c constraints.txt -e ".[dev]" || exit 1; \
	  else echo "python$$python: not here, left out"; fi; \
	done
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .compat/oldest
	$(BIN)/uv pip install --quiet --resolution lowest-direct --python .compat/oldest/bin/python -e ".[dev]"
	$(BIN)/python -m tests.lab.reliability compatibility --seconds 1800

audit: .venv/dev           ## known vulnerabilities of all that is installed; needs a network
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > .venv/installed.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement .venv/installed.txt

reliability: .venv/dev     ## faults, wrong inputs, coverage, ...: writes docs/evidence/reliability.md
	$(BIN)/python -m tests.lab.reliability

mutants: .venv/dev         ## an hour of changes to the core that tests must notice
	$(BIN)/python -m pip install --quiet "cosmic-ray>=8.3"
	$(BIN)/python -m tests.lab.reliability mutants --seconds $(SECONDS)

soak: .venv/dev            ## an hour of mixed commands: nothing may grow; into docs/evidence/reliability.md
	$(BIN)/python -m tests.lab.reliability soak --seconds $(SECONDS)

lint: .venv/dev            ## formatting, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

RESOLVE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
  --generate-hashes --no-header --no-annotate -c constraints.txt

# The CPU build of torch has an index of its own: name it in PIP_EXTRA_INDEX_URL.
lock: .venv/dev            ## requirements/ anew, after a change of pyproject.toml or constraints.txt
	$(PIP) uv
	echo torch > .venv/torch.in
	printf 'pip\nsetuptools\n' | $(RESOLVE) --extra dev --excludes .venv/torch.in pyproject.toml - -o requirements/dev.lock
	printf 'pip\nsetuptools\n' | $(RESOLVE) -c requirements/dev.lock pyproject.toml - -o requirements/core.lock
	$(RESOLVE) -c requirements/dev.lock .venv/torch.in -o requirements/torch.lock
	$(BIN)/python -m pip download --quiet --no-deps --dest .venv/wheels $(PINNED_TORCH)+cpu
	sed -i "/^$(PINNED_TORCH) /a\    $$($(BIN)/python -m pip hash .venv/wheels/torch-*+cpu-*.whl | tail -1) \\\\" requirements/torch.lock

clean:
	rm -rf .venv .compat build site *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml requirements/core.lock
	$(LOCKED) -r requirements/core.lock
	PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation -e .
	touch $@

# A CPU build of torch where there is one with a hash in the lock, else the build for this system;
# first, as what needs torch then takes the one that is there.
.venv/dev: .venv/core requirements/dev.lock requirements/torch.lock
ifdef TORCH
	$(PIP) $(TORCH)
else
	$(LOCKED) -c requirements/torch.lock $(PINNED_TORCH)+cpu 2>/dev/null || \
	$(LOCKED) -r requirements/torch.lock
endif
	$(LOCKED) -r requirements/dev.lock
	touch $@
