# `make demo` and `make test` set up everything they need in .venv; nothing has to be installed beforehand
# but Python >= 3.10 and a C++ compiler.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests start hundreds of processes: what they import is compiled once, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE
# Every file in one process, those with slow tests first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# Tests with models and servers wait for nearly half of their time, so twice as many processes as there are cores.
CORES  := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
ALL    := $(shell echo $$(( 2 * $(CORES) )))
RUNS   := model or server or tui or slow
# What fails here is run once more, and both runs are shown: docs/tests.md.
AGAIN  := --reruns 1 -rR

# uv installs in seconds what takes pip a minute and a half. `make test` gets it; without it, pip does the work.
UV      := work/uv/bin/uv
install  = { test -x $(UV) && $(UV) pip install --quiet --python $(BIN)/python $(1); } || \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1)

# GCC would leave llama.cpp's AMX code without its tile configuration: see native/tile_config.h.
ifeq ($(shell uname -sm) $(words $(CURDIR)),Linux x86_64 1)
export CXXFLAGS := $(CXXFLAGS) -include $(CURDIR)/native/tile_config.h
endif

.PHONY: demo test test-fast clients lint bench-real dist setup setup-test clean

demo: setup
	$(BIN)/python scripts/demo.py

test: $(UV)
	@# the clients are downloaded while llama.cpp is compiled
	@mkdir -p work && { $(MAKE) -s -j 6 clients >work/clients.log 2>&1 & }; \
	  $(MAKE) --no-print-directory setup-test; code=$$?; wait; exit $$code
	@# the type checker keeps only one processor busy
	@$(MAKE) --no-print-directory -j 2 lint test-fast
	$(PYTEST) -n $(ALL) -m "$(RUNS)" $(AGAIN)

# What needs no model, no server and no screen, in about a minute.
test-fast: setup-test
	$(PYTEST) -n $(CORES) -m "not ($(RUNS))"

lint: setup-test
	$(BIN)/ruff check lcspec tui scripts tests
	$(BIN)/ruff format --check lcspec tui scripts tests
	@# tui/ is installed as lcspec.tui: mypy sees the package as it is installed
	@rm -rf build/types && mkdir -p build/types/lcspec
	@ln -s $(CURDIR)/lcspec/* build/types/lcspec/ && ln -s $(CURDIR)/tui build/types/lcspec/tui
	cd build/types && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml
	cd build/types && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(CURDIR)/pyproject.toml --no-logo

# Clients of other people for tests/server/test_clients.py, an environment each: what they need contradicts itself.
# litellm imports mcp wherever there are tools. One that cannot be installed is not tested.
CLIENTS := litellm langchain-openai pydantic-ai-slim instructor llm aider-chat
clients: $(CLIENTS:%=work/clients/%/.installed)
work/clients/litellm/.installed:          WANTED := "litellm>=1.80,<2" "mcp>=2,<3"
work/clients/langchain-openai/.installed: WANTED := "langchain-openai>=1,<2"
work/clients/pydantic-ai-slim/.installed: WANTED := "pydantic-ai-slim[openai]>=1,<3"
work/clients/instructor/.installed:       WANTED := "instructor>=1.10,<2"
work/clients/llm/.installed:              WANTED := "llm>=0.27,<1"
work/clients/aider-chat/.installed:       WANTED := "aider-chat>=0.86,<1"
work/clients/%/.installed: $(UV)
	-@$(UV) venv --quiet --clear --python $(PYTHON) $(@D) && \
	  $(UV) pip install --quiet --python $(@D)/bin/python $(WANTED) && touch $@

# SmolLM2 against plain decoding: make bench-real PROMPTS=question.jsonl OPTIONS="--minutes 10 --variants shipped"
bench-real: setup
	$(if $(PROMPTS),,$(error name the prompts: make bench-real PROMPTS=question.jsonl))
	$(BIN)/python scripts/real_bench.py $(PROMPTS) $(OPTIONS)

# A wheel and an sdist in dist/, for pip, pipx and uv.
dist: setup-test
	$(BIN)/python -m build --no-isolation

setup: $(VENV)/.installed
setup-test: $(VENV)/.installed-test

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "lcspec needs Python 3.10 or newer: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# lcspec uses neither llama.cpp's part for images and audio nor its common library.
LIBRARY_ONLY := -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE='$(CURDIR)/native/library_only.cmake'
$(VENV)/.installed: export CMAKE_ARGS := $(LIBRARY_ONLY) $(CMAKE_ARGS)
$(VENV)/.installed: pyproject.toml $(VENV)/bin/python
	@echo "Installing. The first time this compiles llama.cpp, which takes 3 to 8 minutes on two cores ..."
	@$(call install,-e .)
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.installed
	@$(call install,-e '.[test]')
	@touch $@

$(UV):
	-@$(PYTHON) -m venv work/uv && $(@D)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8,<1"

clean:
	rm -rf $(VENV) build dist *.egg-info work
