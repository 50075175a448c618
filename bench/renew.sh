#!/bin/bash
# Writes a run's rows into the repository. Build and install plait between both calls, since choices
# are compiled. PYTHON (python3) needs scipy.
#   bench/renew.sh OUT GPUS     results, choices, the simulator's parameters
#   bench/renew.sh --docs       tables of docs/ from lists and results, the evidence, memory; tables of
#                               bench/notes
# Run the tests afterwards, and add an experiment to bench/notes by hand.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ "$1" = --docs ]; then
  "$python" "$here/../tools/doc_tables.py"
  "$python" -m plait.evidence.papers --write "$here/../docs/evidence.md"
  "$python" "$here/memory_table.py" --write
  "$python" "$here/notes_state.py"
  exit
fi
out=$1; gpus=$2
"$python" "$here/run_tables.py" "$out" --gpus "$gpus" --write
"$python" "$here/engine_rows.py" --write
"$python" "$here/fit_prices.py" --write
echo "now build and install plait, then: bench/renew.sh --docs"
