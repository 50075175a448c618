#!/usr/bin/env bash
# Unpacks Debian's package of doctest into .deps, without root, if the system lacks the header.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -e /usr/include/doctest/doctest.h ] || [ -e .deps/usr/include/doctest/doctest.h ] && exit 0
command -v apt-get >/dev/null || {
  echo "doctest/doctest.h is missing, and apt-get too: install doctest by hand" >&2; exit 1; }
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" .deps
options=(-qq -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=)
apt-get "${options[@]}" update
(cd "$state" && apt-get "${options[@]}" download doctest-dev)
dpkg -x "$state"/doctest-dev_*.deb .deps
