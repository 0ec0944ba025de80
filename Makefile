# The short way in. Each target does what it needs first; a second run does no work that was done.
#   make build   release build into build/           make demo    run the small model that is part of the project
#   make check   build everything, run every test    make bench   figures for SmolLM2 and its peers
#   make lint    formatting and static checks        make asan, make tsan   the tests under sanitizers
#   make fuzz    damaged and hostile files, FUZZ_SECONDS for each kind of file (default 15)
SHELL := /bin/bash
SETUP ?= yes
JOBS ?= $(shell nproc)
MODEL := models/stories260K

.PHONY: build demo check bench lint asan tsan fuzz setup setup-check clean

setup:
	@[[ $(SETUP) == no ]] || tools/setup
setup-check:
	@[[ $(SETUP) == no ]] || tools/setup --check

# What a user needs: the command line and the ExecuTorch plugin.
build: setup
	@cmake --preset release $(if $(wildcard build/CMakeCache.txt),,-DOFFGRAPH_BUILD_TESTS=OFF -DOFFGRAPH_BUILD_BENCHMARKS=OFF) >/dev/null
	@cmake --build build -j $(JOBS) --target offgraph offgraph_executorch

demo: build
	@build/offgraph run $(MODEL) --temp 0 -n 255

check: setup-check
	@cmake --preset release -DOFFGRAPH_BUILD_TESTS=ON -DOFFGRAPH_BUILD_BENCHMARKS=ON >/dev/null
	@cmake --build build -j $(JOBS)
	@ctest --test-dir build --output-on-failure --timeout 900 -j $(JOBS)

# BENCH: arguments for tools/bench/bench.py, such as BENCH="--rounds 9 --only 4-bit".
bench: build
	@python3 tools/bench/bench.py $(BENCH)

asan tsan: setup-check
	@cmake --preset $@ >/dev/null
	@cmake --build build-$@ -j $(JOBS)
	@ctest --test-dir build-$@ --output-on-failure --timeout 3600

FUZZ_SECONDS ?= 15
# In CI the mutations follow from the commit: new ones for each, and what fails there fails again.
FUZZ_SEED ?= $(if $(CI),$(shell printf %d 0x$$(git rev-parse --short=7 HEAD)),0)
fuzz: setup-check
	@cmake --preset fuzz -DFUZZ_SECONDS=$(FUZZ_SECONDS) -DFUZZ_SEED=$(FUZZ_SEED) >/dev/null
	@cmake --build build-fuzz -j $(JOBS) --target fuzzers
	@ctest --test-dir build-fuzz --output-on-failure --timeout 900 -j $(JOBS)

lint: setup-check
	@tools/lint

clean:
	rm -rf build build-asan build-tsan build-debug build-fuzz
