#!/bin/bash
# Collects in RUN the files that a run needs on a machine with GPUs: the package, its libraries, the
# drop-ins of `plait run` and the programs, stripped, and the commit.
# Usage: bench/gpu_stage.sh BUILD [SITE [RUN]]   RUN: build/run
# BUILD: configured with PLAIT_PYTHON=ON for the machine's own Python and
# CMAKE_BUILD_RPATH_USE_ORIGIN=ON, after `ninja _core plait_nccl plait_audit plait_mpi plait_forward
# test_gpu test_gpu_c_api bench_gpu bench_links bench_gpu_nodes`. SITE: a folder of packages that
# the machine lacks (pip install --target).
# There: PYTHONPATH=build/run python3 bench/gpu_run.py --gpus 8 --build build/run --out "$OUT"
#        PYTHONPATH=build/run OUT="$OUT" bench/gpu_evidence.sh build/run 8 all
#        PYTHONPATH=build/run python3 bench/gpu_drop_in.py \
#          --drop-in build/run/plait/libplait_nccl.so --gpus 8 --out "$OUT" STEP...
set -eu -o pipefail
build=$1; site=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)
run=${3:-$here/build/run}
if ! readelf -d "$build"/_core*.so | grep -q 'R.*PATH.*\$ORIGIN'; then
  echo "wanted a module that finds its library in its own folder: configure with" \
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON" >&2
  exit 1
fi
drop_ins=(libplait_nccl.so libplait_audit.so libplait_mpi.so libplait_mark.so)
programs=(bench_gpu bench_links bench_gpu_nodes test_gpu test_gpu_c_api)
missing=()
for file in libplait.so.0 libplait_kernels.so "${drop_ins[@]/#/shims/}" shims/nccl/libnccl.so.2 \
  "${programs[@]}"; do
  [ -e "$build/$file" ] || missing+=("$file")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "wanted in $build what a run carries, found no ${missing[*]}: build it first (see the head" \
    "of $0)" >&2
  exit 1
fi
rm -rf "$run"
mkdir -p "$run"
[ -z "$site" ] || cp -r "$site/." "$run/"
cp -r "$here/python/plait" "$run/plait"
cp "$build"/_core*.so "$build"/libplait.so.0 "$build"/libplait_kernels.so "$run/plait/"
cp "${drop_ins[@]/#/$build/shims/}" "$run/plait/"  # the folder where `plait run` looks
mkdir "$run/plait/nccl"
cp "$build/shims/nccl/libnccl.so.2" "$run/plait/nccl/"
cp "${programs[@]/#/$build/}" "$run/"
cp "$build/libplait_kernels.so" "$run/"  # for programs without device code: test_gpu_c_api
for file in "$run"/plait/*.so* "$run"/plait/nccl/*.so* "$run/libplait_kernels.so" \
  "${programs[@]/#/$run/}"; do
  strip --strip-unneeded "$file"
done
find "$run" -name __pycache__ -type d -prune -exec rm -rf {} +
# A source distribution has no repository, or a repository without a commit.
git -C "$here" rev-parse --short --verify --quiet HEAD > "$run/commit" || echo unknown > "$run/commit"
du -sm "$run" | cut -f1 | xargs -I{} echo "$run: {} MB of 64 at most"
