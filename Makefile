# Every target creates .venv by itself on first use and reuses it afterwards; see scripts/setup_venv.sh.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
SOURCES := packages tests benchmarks examples

# Three test processes of one thread each for two cores: torch's own threads would fight over them, and a process waits
# for browsers, servers and sandboxes a fifth of its time. One that has done its part of the list takes half of another's
# rest, so that most modules stay whole and share their fixtures.
# With ARGS=--without-browser the tests of the pages are skipped.
BROWSER := $(if $(findstring --without-browser,$(ARGS)),,browser)
# Bytecode is kept whatever the environment says: without it each process compiles the packages, and pytest
# rewrites all tests.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal --all-packages $(ARGS)
MEASURED := tests/core/ops tests/hw/torch_ops tests/core/train/test_precision.py tests/core/train/test_step.py \
	tests/hw/cpu/native/test_moe_experts.py tests/hw/cpu/native/test_attention_varlen.py

.PHONY: help
help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  MINUTES=3 make run       a run of another length;  make run ARGS=\"attention=gqa seed=1\"  adds options"
	@echo "  TORCH_INDEX_URL=URL ...  a further package index for torch, e.g. the one of its CPU builds"

.PHONY: venv
venv:  ## create or update .venv
	@scripts/setup_venv.sh

.PHONY: browser
browser: venv  ## install Chromium for the tests of the pages, if there is none
	@scripts/setup_browser.sh

.PHONY: run
run: venv  ## train the small GLM-5-shaped model on real text and write a report
	@$(BIN)/arcforge-train experiment=mini $(if $(MINUTES),trainer.minutes=$(MINUTES) trainer.max_tokens=null) $(ARGS)

.PHONY: demo
demo: venv  ## chat with a small fine-tuned model in the browser;  make demo ARGS=rl  teaches it in four minutes
	@$(BIN)/arcforge demo $(ARGS)

.PHONY: test
test: lint types test-calibrations test-only  ## lint, format check, types and tests

.PHONY: test-only
test-only: venv $(BROWSER)  ## tests alone
	$(PYTEST)

.PHONY: test-calibrations
test-calibrations: venv  ## what is chosen by measurement, with figures that choose one side and then the other
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --calibration float32 $(MEASURED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --calibration bfloat16 $(MEASURED)

.PHONY: nightly
nightly: venv $(BROWSER)  ## all tests, those marked nightly too, with eight times as many generated examples
	$(PYTEST) -m "not network" --hypothesis-profile=nightly

.PHONY: network
network: venv  ## the tests that fetch from package registries
	$(PYTEST) -n 0 -m network

.PHONY: lint
lint: venv  ## ruff: lint and format check
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

.PHONY: format
format: venv  ## ruff: repair and format
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.PHONY: types
types: venv  ## mypy, strict
	$(BIN)/mypy packages/*/src examples/plugins/*/src

.PHONY: bench
bench: venv  ## the benchmarks in their quick form, and a page of all ratios;  ARGS="attention optimizer" chooses
	$(BIN)/python scripts/bench $(ARGS)

.PHONY: bench-page
bench-page: venv  ## that page again;  ARGS="outputs/bench FOLDER" adds results of other machines
	$(BIN)/python scripts/bench --page $(ARGS)

.PHONY: bench-peers
bench-peers: venv  ## compared with llama.cpp, which is compiled on first use into .venv-peers
	@test -x .venv-peers/bin/python || $(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -c "import llama_cpp" 2>/dev/null || .venv-peers/bin/python -m pip install llama-cpp-python==0.3.36
	$(BIN)/python scripts/bench vs_llama_cpp $(ARGS)

.PHONY: harnesses
harnesses: sdks  ## the SDKs, then lm-eval and inspect-ai against arcforge-serve: ARGS="--checkpoint DIR"
	@test -x .venv-harnesses/bin/python || $(BIN)/python -m venv .venv-harnesses
	@.venv-harnesses/bin/python -c "import inspect_ai, lm_eval" 2>/dev/null || .venv-harnesses/bin/python -m pip install -r benchmarks/harnesses/requirements.txt
	@mkdir -p outputs/bench
	$(BIN)/python benchmarks/harnesses/run.py --python .venv-harnesses/bin/python --json outputs/bench/harnesses.json $(ARGS)

.PHONY: sdks
sdks: venv  ## client libraries against arcforge-serve, each in its own environment in .venv-sdks
	@benchmarks/harnesses/sdks/install.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks/harnesses/sdks $(ARGS)

.PHONY: entrypoints
entrypoints: venv  ## vLLM's tests of its HTTP server, from its source distribution, against arcforge-serve
	@benchmarks/harnesses/entrypoints/install.sh
	benchmarks/harnesses/entrypoints/run.sh $(ARGS)

.PHONY: clean
clean:  ## delete caches and build products; keeps .venv and outputs
	rm -rf build dist packages/*/dist examples/plugins/*/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find packages tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## clean, and delete the environments too
	rm -rf .venv .venv-peers .venv-harnesses .venv-sdks .venv-entrypoints
