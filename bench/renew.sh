#!/bin/bash
# What a run's rows change in the repository, in order: results, choices, README, the simulator's
# parameters, the tables of docs/. Usage: bench/renew.sh OUT GPUS; plait and scipy are installed for
# PYTHON (python3). Build and run the tests afterwards, and write bench/NOTES.md by hand.
set -eu
out=$1; gpus=$2
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
"$python" "$here/run_tables.py" "$out" --gpus "$gpus" --write
"$python" "$here/engine_rows.py" --write
"$python" "$here/fit_prices.py" --write
"$python" "$here/../tools/doc_tables.py"
