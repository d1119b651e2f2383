PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# a process for every core; one that is done takes over half of what another has left
PYTEST := $(BIN)/python -m pytest -n $${JOBS:-auto} --dist worksteal

# where the environment sets it, every process of every test compiles the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test-fast test test-browser test-sweeps test-faults test-cuda style lint docs results wheel clean

demo: $(VENV)/.demo            ## every method on 5,000 digits, three orders of the tasks
	$(BIN)/orderless run splitmnist --preset demo --permutations 3 --out runs/demo

check: $(VENV)/.dev            ## style, types and the fast tests, before every commit
	+$(MAKE) --no-print-directory --jobs 2 style test-fast  # types need one core alone

# what is slow as a whole is not even imported: Ray, Selenium, Hypothesis, ProcGen
test-fast: $(VENV)/.dev
	$(PYTEST) -m 'not slow and not sweep and not browser' -p no:hypothesispytest \
	    $(addprefix --ignore tests/,fuzz distributed/test_ray.py) \
	    $(addprefix --ignore lab/tests/system/,browser equality faults/test_ray.py)

test: $(VENV)/.dev             ## all tests that CI runs
	$(PYTEST)

test-browser: $(VENV)/.dev     ## the report page in headless Chromium
	$(BIN)/python -m pytest -m browser

test-sweeps: $(VENV)/.dev      ## what takes long
	$(PYTEST) -m sweep

test-faults: $(VENV)/.dev      ## 200 kills and 200 damaged files, others every time
	ORDERLESS_FAULTS=$${ORDERLESS_FAULTS:-200} \
	ORDERLESS_FAULTS_SEED=$${ORDERLESS_FAULTS_SEED:-$$(date +%s)} \
	    $(BIN)/python -m pytest lab/tests/system/faults

test-cuda: $(VENV)/.dev        ## what needs a GPU, and nothing else
	$(BIN)/python -c 'import torch, sys; sys.exit(None if torch.cuda.is_available() else "no GPU here")'
	$(BIN)/python -m pytest -rs tests/cuda lab/tests/rl/test_kernels.py lab/tests/rl/test_on_a_gpu.py \
	    lab/tests/system/equality/test_matrix.py::test_the_gpu_holds_what_is_promised \
	    'tests/test_docs.py::test_the_code_on_the_page_runs[docs/your-own-network.md]'

style: $(VENV)/.dev            ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint: style                    ## style, types, and the tables of the result pages
	$(BIN)/python -m docs.tools.tables --check

docs: $(VENV)/.dev             ## the site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet hides warnings from --strict, too

results: $(VENV)/.dev          ## put the tables of docs/results in place
	$(BIN)/python -m docs.tools.tables

# three times: the library alone, with its commands, and with the lab beside it
wheel: $(VENV)/.dev            ## build both wheels and try them in an empty environment
	rm -rf build dist lab/build
	$(BIN)/python -m build --quiet --wheel --outdir dist
	$(BIN)/python -m build --quiet --wheel --outdir dist lab
	$(PYTHON) -m venv build/empty
	for wheels in "$$(echo dist/orderless-*.whl)" "$$(echo dist/orderless-*.whl)[cli]" \
	    "$$(echo dist/orderless_lab-*.whl)"; do \
	    build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$wheels" \
	        && (cd build && empty/bin/python ../docs/tools/try_wheel.py ../dist) || exit 1; \
	done

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "orderless needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[cli]' -e lab
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -e '.[cli,dev]' -e 'lab[procgen,ray]'
	touch $@

clean:
	rm -rf $(VENV) runs site build dist lab/build src/*.egg-info lab/*.egg-info
