# Every command of the project. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
BENCHES := quick near-duplicates catch-up watchers trimming first-sync identity
.PHONY: help run demo test lint protos promises robustness robustness-sabotage bench $(BENCHES:%=bench-%) test-embedders clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-20s %s\n", $$1, $$2}'

$(VENV)/runtime: requirements/runtime.txt pyproject.toml gen/python/pyproject.toml embedder/pyproject.toml clients/python/pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 needs its venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "making the environment (once; one to two minutes)"
	@$(BIN)/pip install -q --disable-pip-version-check --progress-bar off --require-hashes -r requirements/runtime.txt
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e gen/python -e embedder -e clients/python -e .
	@touch $@

$(VENV)/dev: $(VENV)/runtime requirements/dev.txt
	@$(BIN)/pip install -q --disable-pip-version-check --progress-bar off --require-hashes -r requirements/dev.txt
	@touch $@

run: $(VENV)/runtime ## start everything on this machine, tell the story, stay up until Ctrl-C
	@exec $(BIN)/python -m stack run

demo: $(VENV)/runtime ## tell the whole story on a private stack that then goes
	@exec $(BIN)/python -m stack demo

protos: $(VENV)/dev ## regenerate the stubs from the protos
	@protos/generate.sh $(CURDIR)/$(BIN)/python $(CURDIR)/gen/python $(CURDIR)/protos/image.binpb

lint: $(VENV)/dev ## check protos, style, types, imports and manifests
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/lint.sh

test: $(VENV)/dev ## run every test: two files at a time, then alone what takes processes away from each other
	@$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/robustness
	@$(BIN)/python -m pytest tests/robustness

.venv-embedders/done: requirements/embedders.txt
	@test -x .venv-embedders/bin/python || $(PYTHON) -m venv .venv-embedders
	@echo "making the environment of the sentence-transformers embedder (torch: some minutes)"
	@.venv-embedders/bin/pip install -q --disable-pip-version-check --progress-bar off -r requirements/embedders.txt
	@touch $@

test-embedders: .venv-embedders/done ## prove one contract on both embedders, in an environment with torch of its own
	@HF_HUB_OFFLINE=1 PYTHONPATH=embedder .venv-embedders/bin/python -m pytest -q -c /dev/null --noconftest -p no:cacheprovider --rootdir embedder embedder/tests --ignore embedder/tests/test_polarity.py

bench: $(BENCHES:%=bench-%) ## measure all (an hour); bench-quick does push and catch-up in under five minutes

$(BENCHES:%=bench-%): bench-%: $(VENV)/dev
	@$(BIN)/python -m bench.$(subst -,_,$*)

robustness: $(VENV)/dev ## writers, watchers and laptops under random faults; MINUTES=30, SEED, ONLY and REPORT may be set
	@$(BIN)/python -m tests.robustness
	@HELD_SECONDS=60 RACE_SECONDS=30 $(BIN)/python -m pytest -o timeout=600 tests/robustness/test_held_commit.py tests/robustness/test_restore.py tests/robustness/test_full_disk.py services/sync/tests/test_guard.py

robustness-sabotage: $(VENV)/dev ## take one guard away after the other and see that the harness notices
	@$(BIN)/python -m tests.robustness.sabotage $(NAMES)

promises: $(VENV)/dev ## run the tests of docs/promises.md; P="1 4" runs only those
	@$(BIN)/python tests/promises.py $(P)

clean: ## remove the environment and the data of `make run`
	@test ! -e $(VENV)/runtime || $(BIN)/python -m stack clean
	@rm -rf $(VENV) .data
