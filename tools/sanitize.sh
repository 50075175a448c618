#!/usr/bin/env bash
# Builds C++ tests with -fsanitize=$1 and runs them; any report fails the run. The run leaves out test_plans and
# test_planner (minutes of proofs without memory of their own). Under ThreadSanitizer it also leaves out programs
# without threads and programs whose threads test_conformance runs too; single-threaded libraries are those of `make
# install`. A second argument `build` runs nothing. Others run other tests instead (CI has no time for them). fake_gpu:
# tests over a driver without a GPU. drop-in: tests of the drop-in under NCCL, over the stand-in libnccl. mpi: tests of
# the drop-in under the MPIs of this machine. The latter two run with the sanitizer's runtime preloaded
# (address,undefined only). Reports have no lines of sources under SANITIZE_LINES=0, which saves compile time.
set -euo pipefail
cd "$(dirname "$0")/.."
what=$1
programs=(test_base test_comm test_conformance)
[ "$what" = thread ] || programs+=(test_cpu test_gpu_unit test_property test_driver test_topo test_plan test_verify test_sim)
[ "${2:-}" != fake_gpu ] || programs=(test_fake_gpu)
[ "${2:-}" != drop-in ] || programs=(plait_nccl_host nccl_linked standin_nvtx)
[ "${2:-}" != mpi ] || programs=(plait_mpi)
build=build/sanitize-${what//,/-}
unsanitized=
[ "$what" != thread ] || unsanitized=$PWD/build/dev
lines=-g$([ "${SANITIZE_LINES:-1}" = 0 ] && echo 0 || echo 1)
mkdir -p build
export PATH="$PWD/.venv/bin:$PATH"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="-O1 $lines" -DCMAKE_C_FLAGS="-O1 $lines" -DPLAIT_TESTS=ON -DPLAIT_FAULTS=ON \
  -DPLAIT_SANITIZE="$what" -DPLAIT_UNSANITIZED="$unsanitized" \
  -DPLAIT_CUDA=0 -DPLAIT_PYTHON=OFF \
  -DPLAIT_PRECOMPILE="$([ -n "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && echo OFF || echo ON)" \
  > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --target "${programs[@]}"
[ "${2:-}" != build ] || exit 0
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
# Tests of the watch fork while its thread runs, and the child has one of its own.
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:suppressions=$PWD/tests/fake_gpu/kernels.tsan
export PLAIT_TEST_SCALE=${PLAIT_TEST_SCALE:-0.05}  # sanitized code is about ten times slower
export SHIM_RUNTIME=$(g++ -print-file-name=libasan.so)
if [ "${2:-}" = mpi ]; then
  # MPIs leave memory behind, and look at their own in ways of their own: what the drop-in's code does is looked at.
  # Not the tests of Python's commands, whose processes would be looked at too.
  export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:verify_asan_link_order=0:use_sigaltstack=0
  export PLAIT_TEST_SCALE=${MPI_TEST_SCALE:-1} MPI_SHIM="$PWD/$build/shims/libplait_mpi.so"
  exec python3 -m pytest -q -p no:cacheprovider tests/mpi -k "not plait_ and not hosts and not example"
fi
if [ "${2:-}" != drop-in ]; then
  [ "${2:-}" = fake_gpu ] || programs+=(test_emulated test_kernels)  # parts of test_conformance
  ctest --test-dir "$build" --no-tests=error --output-on-failure -j2 -R "^($(IFS='|'; echo "${programs[*]}" | tr ' ' '|'))\$"
  exit 0
fi
# Not the test of a call's nanoseconds: those are the sanitizer's.
SHIM_TESTS="$PWD/$build/tests_shims" python3 -m pytest -q -p no:cacheprovider tests/shims/test_nccl.py tests/shims/test_nccl_ends.py -k "not 200_ns"
