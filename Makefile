# Every target sets up .venv itself, once, from the versions and hashes in requirements.lock. PYTHON may be
# overridden, and TORCH, to take another build: make test TORCH="torch==2.13.0 --index-url URL"
PYTHON ?= python3
TORCH ?=
SECONDS ?= 3600
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
LOCKED := $(PIP) --require-hashes
PINNED_TORCH := torch==2.13.0
PARALLEL := -n 2 --dist worksteal
QUICK := not long and not browser
LEFT_OUT := not nightly and not slow and not gpu and not alone and not frameworks
COMPATIBLE := test_theory.py load/test_load.py engines/test_conformance.py programs/test_codecs.py \
  distributions/test_random_streams.py results/test_store.py results/test_statistics.py \
  results/test_figures.py studies/test_tune.py studies/test_sweep.py command_line/test_command_line.py
# These files hold all of them: to collect the other tests takes longer.
ALONE = -m alone $(shell grep -rl --include="*.py" mark.alone tests)

.PHONY: demo docs site test test-long test-all test-nightly test-slow test-gpu test-frameworks explore-properties bench published compat audit reliability mutants lint lock release clean

demo: .venv/core           ## simulate a real scenario; show its curves and its pick
	$(BIN)/paceline simulate scenarios/quickstart.toml

docs: .venv/core           ## what is generated in docs/: keys, parameters, results, figures
	$(BIN)/python docs/build.py

site: .venv/dev            ## the documentation as a site that needs no network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Tests that fail are run once more, alone: what passes then is flaky, a defect to mend.
PYTEST := $(BIN)/python -m pytest --cache-clear
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

test: .venv/dev            ## most tests, every algorithm on every engine among them: minutes
	$(PYTEST) $(PARALLEL) -m "$(QUICK) and $(LEFT_OUT)" || $(AGAIN)

test-long: .venv/dev       ## the others: fuzzing, kills, browsers, commands of the docs, ...
	$(PYTEST) $(PARALLEL) -m "not ($(QUICK)) and $(LEFT_OUT)" || $(AGAIN)
	$(PYTEST) $(ALONE) || $(AGAIN)

test-all: test test-long   ## all of these

test-nightly: .venv/dev    ## every program with every option: an hour
	$(PYTEST) $(PARALLEL) -m "nightly and not gpu" || $(AGAIN)

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

published: .venv/core      ## predict what others measured; writes docs/evidence/published.md
	$(BIN)/python -m tests.lab.published

compat: .venv/tools        ## the quick tests with other Pythons, and with the oldest dependencies
	for python in 3.12 3.13; do \
	  if command -v python$$python >/dev/null; then \
	    python$$python -m venv .compat/python$$python && \
	    .compat/python$$python/bin/python -m pip install --quiet --require-hashes -r .venv/core.txt -r .venv/torch.txt -r .venv/dev.txt && \
	    .compat/python$$python/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . || exit 1; \
	  else echo "python$$python: not here, left out"; fi; \
	done
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .compat/oldest
	$(BIN)/uv pip install --quiet --resolution lowest-direct --python .compat/oldest/bin/python -e ".[dev]"
	for python in .compat/*/bin/python; do \
	  $$python -m pytest -m "not browser and $(LEFT_OUT)" $(addprefix tests/,$(COMPATIBLE)) || exit 1; \
	done

audit: .venv/tools         ## known vulnerabilities of all that is installed; needs a network
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > .venv/installed.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement .venv/installed.txt

reliability: .venv/dev     ## faults, wrong inputs, coverage, ...: writes docs/evidence/reliability.md
	$(BIN)/python -m tests.lab.reliability

mutants: .venv/tools       ## an hour of changes to the core that tests must notice
	$(BIN)/python -m tests.lab.reliability mutants --seconds $(SECONDS)

lint: .venv/dev            ## formatting, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

RESOLVE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
  --generate-hashes --no-header --no-annotate

# The CPU build of torch has an index of its own: name it in PIP_EXTRA_INDEX_URL.
lock: .venv/tools          ## requirements.lock anew, after a change of pyproject.toml
	rm -rf .venv/new && mkdir .venv/new
	echo $(PINNED_TORCH) > .venv/new/torch.in
	printf 'pip\nsetuptools\n' | $(RESOLVE) --extra dev --excludes .venv/new/torch.in pyproject.toml - -o .venv/new/dev.txt
	printf 'pip\nsetuptools\n' | $(RESOLVE) -c .venv/new/dev.txt pyproject.toml - -o .venv/new/core.txt
	$(RESOLVE) -c .venv/new/dev.txt .venv/new/torch.in -o .venv/new/torch.txt
	$(RESOLVE) -c .venv/new/dev.txt --group tools -o .venv/new/tools.txt
	$(BIN)/python -m pip download --quiet --no-deps --dest .venv/wheels $(PINNED_TORCH)+cpu
	sed -i "/^$(PINNED_TORCH) /a\    $$($(BIN)/python -m pip hash .venv/wheels/torch-*+cpu-*.whl | tail -1) \\\\" .venv/new/torch.txt
	$(BIN)/python -m tests.helpers.lock .venv/new/core.txt .venv/new/dev.txt .venv/new/torch.txt .venv/new/tools.txt > .venv/new/lock
	cp .venv/new/lock requirements.lock

release: .venv/tools       ## build, check in a bare environment, and tag the version of pyproject.toml
	rm -rf dist && $(BIN)/python -m build --no-isolation && $(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv .venv/bare && .venv/bare/bin/python -m pip install --quiet --require-hashes -r .venv/core.txt
	.venv/bare/bin/python -m pip install --quiet --no-deps dist/*.whl
	cd .venv/bare && bin/paceline simulate quickstart --seeds 1
	git tag -a v$$($(BIN)/python -c "import importlib.metadata as m; print(m.version('paceline'))") -m "Release"

clean:
	rm -rf .venv .compat build site *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A part of the lock as a file that pip reads: core, dev, torch, tools.
.venv/%.txt: requirements.lock .venv/bin/python
	sed '1,/^# $*$$/d; /^# /,$$d' requirements.lock > $@

.venv/core: .venv/core.txt pyproject.toml
	$(LOCKED) -r .venv/core.txt
	PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation -e .
	touch $@

# A CPU build of torch where there is one with a hash in the lock, else the build for this system;
# first, as what needs torch then takes the one that is there.
.venv/dev: .venv/core .venv/dev.txt .venv/torch.txt
ifdef TORCH
	$(PIP) $(TORCH)
else
	$(LOCKED) -c .venv/core.txt -c .venv/dev.txt -c .venv/torch.txt $(PINNED_TORCH)+cpu 2>/dev/null || \
	$(LOCKED) -r .venv/core.txt -r .venv/dev.txt -r .venv/torch.txt
endif
	$(LOCKED) -r .venv/core.txt -r .venv/dev.txt
	touch $@

.venv/tools: .venv/dev .venv/tools.txt
	$(LOCKED) -r .venv/core.txt -r .venv/dev.txt -r .venv/tools.txt
	touch $@
