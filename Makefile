# feedrate: `make demo` and `make test` are all a newcomer needs; both set everything up first, in .venv.
SOURCES := pyproject.toml CMakeLists.txt scripts/setup $(wildcard scripts/*.txt) $(wildcard native/*.cpp native/*.h native/hot/*.h) src/feedrate/kernel/cuda/layout.h
PY := .venv/bin/python
CXX_FILES = $(shell find native src -name '*.cpp' -o -name '*.h' -o -name '*.cu')

.PHONY: help demo test test-slow test-gpu check format build clean
help:            ## show this list
	@sed -n 's/^\([a-z-]*:\).*## /\1\t/p' Makefile | expand -t 12

demo: .venv/ready-to-run     ## see feedrate do its main job on data it makes (about two minutes)
	.venv/bin/feedrate demo

test: .venv/ready-to-test    ## the tests, side by side on the cores (at most eight at once)
	$(PY) -m pytest -q -n auto -m "not slow"

test-slow: .venv/ready-to-test   ## sanitizers, fuzzing, kill loops, real servers
	$(PY) -m pytest -q -m "slow or examples" --hypothesis-profile=thorough

test-gpu: .venv/ready-to-test    ## what needs a GPU; a CUDA build of torch must be there
	$(PY) -m pytest -q -m gpu

check: .venv/ready-to-test   ## format, lint, types, size
	$(PY) -m ruff format --check src tests benchmarks examples
	$(PY) -m ruff check src tests benchmarks examples
	.venv/bin/clang-format --dry-run --Werror $(CXX_FILES) || \
		{ echo "error: C++ is not laid out as .clang-format says; type: make format" >&2; exit 1; }
	$(PY) -m mypy
	$(PY) scripts/size --check

format: .venv/ready-to-test  ## format and fix what can be fixed
	$(PY) -m ruff format src tests benchmarks examples
	$(PY) -m ruff check --fix src tests benchmarks examples
	.venv/bin/clang-format -i $(CXX_FILES)

build: .venv/ready-to-run    ## build the kernel and install feedrate into .venv

.venv/ready-to-run: $(SOURCES)
	@scripts/setup run

.venv/ready-to-test: $(SOURCES)
	@scripts/setup test

clean:           ## remove .venv and build outputs
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
