#!/bin/bash
# Puts into build/run what a run carries to a machine with GPUs: the package, its libraries and the
# programs, stripped, and the commit. Usage: bench/gpu_stage.sh BUILD [SITE]; BUILD: configured with
# PLAIT_PYTHON=ON for the machine's own Python and CMAKE_BUILD_RPATH_USE_ORIGIN=ON, after
# `ninja _core bench_gpu bench_links`. SITE: a
# folder of packages that the machine lacks (pip install --target).
# There: PYTHONPATH=build/run python3 bench/gpu_run.py --gpus 8 --build build/run --out "$OUT"
set -eu -o pipefail
build=$1; site=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)
run=$here/build/run
if ! readelf -d "$build"/_core*.so | grep -q 'R.*PATH.*\$ORIGIN'; then
  echo "wanted a module that finds its library beside itself: configure with" \
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON" >&2
  exit 1
fi
rm -rf "$run"
mkdir -p "$run"
[ -z "$site" ] || cp -r "$site/." "$run/"
cp -r "$here/python/plait" "$run/plait"
cp "$build"/_core*.so "$build"/libplait.so.0 "$build"/libplait_kernels.so "$run/plait/"
for program in bench_gpu bench_links test_gpu; do
  [ ! -e "$build/$program" ] || cp "$build/$program" "$run/"
done
strip --strip-unneeded "$run"/plait/*.so* "$run"/bench_* 2>/dev/null || true
find "$run" -name __pycache__ -type d -prune -exec rm -rf {} +
git -C "$here" rev-parse --short HEAD > "$run/commit"
du -sm "$run" | cut -f1 | xargs -I{} echo "build/run: {} MB of 64 at most"
