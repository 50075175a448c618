#!/bin/bash
# Runs the checks of GPUs other than speed: accuracy, soak, killed ranks, the C API, symmetric memory,
# and how much calls slow concurrent matrix products.
# Usage: bench/gpu_evidence.sh BUILD GPUS STEP...   (steps: the cases below; all = each of them)
# BUILD holds test_gpu_c_api; plait must be importable by python3. Tables and logs go to $OUT, a
# verdict a step to stdout; exits 1 if a step failed. SOAK_S, KILL_ROUNDS: length of these steps.
set -u
build=$1; gpus=$2; shift 2
OUT=${OUT:-bench/results}
here=$(dirname "$0")
mkdir -p "$OUT"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1
failed=0
step() {  # NAME LIMIT_S COMMAND...: runs the command, stores its output, prints its status
  local name=$1 limit=$2 began=$SECONDS; shift 2
  timeout -k 10 "$limit" "$@" > "$OUT/$name.log" 2>&1
  local status=$?
  tail -n "${LINES_SHOWN:-4}" "$OUT/$name.log" | cut -c1-1500
  echo "## $name: status $status, $((SECONDS - began)) s"
  [ $status -eq 0 ] || failed=1
}
overlap() {  # NAME [LAUNCHER...]: products with all_reduces of 256 MiB; a row
  local name=$1; shift
  step "${name}_${gpus}gpus" 90 "$@" python3 -m torch.distributed.run --standalone \
    --nproc-per-node "$gpus" "$here/overlap.py" --mib 256 --csv "$OUT/gpu_overlap_${gpus}gpus.csv"
}
one() {
  case $1 in
    c_api) step c_api 90 "$build/test_gpu_c_api" ;;
    kills) step "kills_${gpus}gpus" $((${KILL_ROUNDS:-20} * 20 + 30)) python3 "$here/kills.py" --ranks "$gpus" \
      --rounds "${KILL_ROUNDS:-20}" --csv "$OUT/gpu_kills_${gpus}gpus.csv" ;;
    broken) step "soak_broken_${gpus}gpus" 120 python3 "$here/soak.py" --ranks "$gpus" --seconds 4 --break ;;
    soak) step "soak_${gpus}gpus" $((${SOAK_S:-600} + 120)) python3 "$here/soak.py" --ranks "$gpus" \
      --seconds "${SOAK_S:-600}" --seed "${SEED:-1}" --verbose ;;
    accuracy) LINES_SHOWN=14 step "accuracy_${gpus}gpus" 150 python3 "$here/accuracy.py" --ranks "$gpus" \
      --csv "$OUT/gpu_accuracy_${gpus}gpus.csv" ;;
    symmetric) LINES_SHOWN=24 step "symmetric_${gpus}gpus" 150 python3 -m torch.distributed.run --standalone \
      --nproc-per-node "$gpus" "$here/symmetric.py" --csv "$OUT/gpu_symmetric_${gpus}gpus.csv" ;;
    overlap)  # NCCL, then the drop-in by its own choice and under two budgets of SMs
      overlap overlap_nccl
      overlap overlap_plait python3 -m plait run --
      for budget in 64 16; do
        PLAIT_SM_BUDGET=$budget overlap "overlap_plait_$budget" python3 -m plait run --
      done ;;
    all) for each in c_api kills broken accuracy symmetric overlap soak; do one $each; done ;;
    *) echo "no step $1" >&2; failed=1 ;;
  esac
}
for name in "$@"; do one "$name"; done
exit $failed
