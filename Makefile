# A thin task runner over CMake presets: every target is one or two commands that can be typed by hand.
#
#   make demo              install what is missing, build, and run daemon, C client and Python clients together
#   make test              install what is missing, build, and run the tests           (PRESET=dev|asan|tsan|release)
#   make test-all          all that a release must pass: takes hours
#   make build             build the release preset in build/release
#   make help              the rest
#
# Settings: PRESET (build preset), JOBS (parallel jobs), KOPS_NO_INSTALL=1 (never install packages), PYTHON (interpreter),
# CMAKE_ARGS (further arguments for configure, such as -DKOPS_CUDA=OFF), TESTS (arguments for ctest, such as '-R demo'),
# CTEST_PARALLEL_LEVEL (how many tests at once: two for each processor, at most 8), TIER (all: `make test` runs the long tests, too).

PRESET ?= release
JOBS ?= $(shell nproc)
BUILD ?= build/$(PRESET)
CMAKE_ARGS ?=
TESTS ?=
TIER ?= short
# Most tests wait for something most of the time: two for each processor keep it busy.
export CTEST_PARALLEL_LEVEL ?= $(shell jobs=$$(nproc); echo $$((jobs < 4 ? 2 * jobs : 8)))

.PHONY: build demo test test-all lint tidy asan tsan fuzz simulation cuda gpu-test bench install package wheel package-test boot-test wheel-test fresh-test clean deps help
.DEFAULT_GOAL := build

help:
	@sed -n 's/^## //p' Makefile

## build    build $(PRESET) into build/$(PRESET)
build: deps
	tools/build $(PRESET) $(BUILD) $(JOBS) $(CMAKE_ARGS)

## demo     one daemon, a C client and two Python clients at once; results checked against NumPy, timings printed
##          (builds only what it needs, in build/demo, with CUDA kernels for this machine's GPUs)
demo: export KOPS_PYTHON_MODULES = numpy,msgpack
demo:
	tools/install-dependencies demo
	tools/configure demo build/demo $(CMAKE_ARGS)
	cmake --build build/demo --parallel $(JOBS) --target demo_programs
	tools/with-python tests/demo/run --build build/demo

## test     the tests that this machine can run, but for those labelled `long`
## test-all all tests, sanitizers, architectures, packages and the wheel: before a release (as root; takes hours)
test: build
	tools/run-tests $(BUILD) $(if $(filter all,$(TIER)),,-LE long) $(TESTS)

test-all:
	tests/all

## asan     the tests under AddressSanitizer and UBSan
## tsan     the tests under ThreadSanitizer
asan tsan:
	$(MAKE) test PRESET=$@

## fuzz     every fuzz target for FUZZ_SECONDS (60) from the committed corpus; needs clang
fuzz:
	tools/install-dependencies build test clang
	tools/configure fuzz build/fuzz
	tests/fuzz/run $(or $(FUZZ_SECONDS),60)

## simulation   the daemon, its executors and clients in virtual time, for SIMULATION_SECONDS (60)
simulation: build
	tests/simulation/build build/simulation $(BUILD) $(JOBS)
	KOPS_BUILD=build/simulation tools/with-python tests/simulation/run --seconds $(or $(SIMULATION_SECONDS),60)

## cuda     the build with the CUDA backend required and dependencies linked in, for binaries that travel
cuda:
	$(MAKE) build PRESET=cuda

## gpu-test the suite that needs a GPU
gpu-test: cuda
	KOPS_BUILD=build/cuda tests/gpu/run

## lint     formatting, layers, generated files, Python: the house rules that a program can check
lint:
	tools/install-dependencies build test lint
	tools/install-python-checkers
	tools/with-python tests/lint/lint.py --strict

## tidy     clang-tidy over all C files of the last build of PRESET
tidy: build
	tools/install-dependencies lint
	tools/tidy $(BUILD)

## bench    side-by-side benchmarks; records go to build/bench
bench: build
	KOPS_BUILD=$(BUILD) tools/with-python bench/run --out build/bench

## install  install the release build below PREFIX (/usr/local), DESTDIR respected
install: build
	cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

## package  Debian packages of the daemon and of the C client's library, in build/release/package
package: build
	tools/install-dependencies package
	cd $(BUILD) && cpack -G DEB

## wheel    a wheel with the Python client, kopsd, kopsctl and the kernels, in build/wheel/dist: pip installs all of kops
##          (for systems with glibc 2.28 or newer; KOPS_WHEEL_COMPILER=system, or no network: as new as this system's)
wheel: deps
	tools/install-dependencies wheel
	tools/build-wheel build/wheel $(JOBS) $(CMAKE_ARGS)

## package-test, boot-test, wheel-test   the packages in a clean Debian root, and in one that is booted; the wheel in an old Debian
##          (as root; see deploy/README.md)
package-test: build
	tools/install-dependencies package
	tests/deploy/package $(BUILD)

wheel-test: wheel
	tools/install-dependencies root package
	tests/deploy/wheel build/wheel/dist/*.whl

boot-test: build
	tools/install-dependencies package
	tests/deploy/boot $(BUILD)

## fresh-test   both README commands in a clean Debian 12: as root, and as a user with sudo (as root; takes debootstrap)
fresh-test:
	tests/fresh/run

## clean    remove every build folder
clean:
	rm -rf build

deps:
	tools/install-dependencies build test
