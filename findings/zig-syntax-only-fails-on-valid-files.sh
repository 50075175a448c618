#!/usr/bin/env bash
# ziglang 0.17.1 (PyPI), Debian 12, x86-64.
# Behaviour: `zig c++ -fsyntax-only FILE` fails on a valid file: zig looks for the object file that
# the option forbids. `zig c++ -c FILE -o OBJECT` compiles the same file. gcc and clang exit 0 with
# both. So a check of syntax by zig must write an object.
# Output seen (the name in the cache differs from run to run):
#   error: failed to rename 'tmp/...-valid.o' into '...': FileNotFound
#   syntax-only 1, object 0
# Exits 1 if either changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q ziglang==0.17.1
export ZIG_GLOBAL_CACHE_DIR=$here/cache
cd "$here"
echo 'int twice(int number) { return 2 * number; }' >valid.cpp
zig() { "$here/venv/bin/python" -m ziglang "$@"; }
only=0
zig c++ -fsyntax-only valid.cpp 2>said || only=$?
grep -o "error: failed to rename.*" said
object=0
zig c++ -c valid.cpp -o valid.o || object=$?
echo "syntax-only $only, object $object"
[ "$only" = 1 ] && [ "$object" = 0 ]
