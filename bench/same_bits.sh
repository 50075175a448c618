#!/bin/bash
# Compares plait's same bits on GPUs with NCCL as it is and with NCCL as serving programs pin it.
# Usage: bench/same_bits.sh GPUS STEP...   (steps: decode all_reduce train; all = each of them)
# plait must be importable by python3. Lines of JSON and logs go to $OUT; MODEL, BATCHES, STEPS set the
# work. Exits 1 if a variant failed, or if two runs of a bitwise variant differ.
set -u
gpus=$1; shift
OUT=${OUT:-bench/results}
here=$(dirname "$0")
mkdir -p "$OUT"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
failed=0
launch=(python3 -m torch.distributed.run --standalone --nproc-per-node "$gpus")
plait=(python3 -m plait.cli run)
bitwise=("${plait[@]}" --bitwise --)
# SGLang 0.5.23 and vLLM 0.33.0 in their deterministic modes, as their sources set them.
sglang=(env NCCL_ALGO=allreduce:tree NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=8)
vllm=(env NCCL_LAUNCH_MODE=GROUP NCCL_COLLNET_ENABLE=0 NCCL_P2P_NET_DISABLE=1 NCCL_MIN_NCHANNELS=1
  NCCL_MAX_NCHANNELS=1 NCCL_PROTO=Simple "NCCL_ALGO=ring,tree;allreduce:tree" NCCL_NTHREADS=1)
variant() {  # FILE NAME COMMAND...: appends its lines of JSON to the file
  local file=$1 name=$2; shift 2
  timeout -k 10 "${LIMIT_S:-300}" "$@" --variant "$name" > "$OUT/$name.log" 2> "$OUT/$name.err"
  local status=$?
  grep '^{' "$OUT/$name.log" | tee -a "$file"
  echo "## $name: status $status"
  [ $status -eq 0 ] || { tail -n 5 "$OUT/$name.err"; failed=1; }
}
variants() {  # FILE PREFIX SCRIPT...: the four variants, bitwise twice
  local file=$1 prefix=$2; shift 2
  variant "$file" "${prefix}_nccl" "${launch[@]}" "$@"
  variant "$file" "${prefix}_plait" "${plait[@]}" -- "${launch[@]}" "$@"
  variant "$file" "${prefix}_bitwise" "${bitwise[@]}" "${launch[@]}" "$@"
  variant "$file" "${prefix}_bitwise_again" "${bitwise[@]}" "${launch[@]}" "$@"
  variant "$file" "${prefix}_sglang" "${sglang[@]}" "${launch[@]}" "$@"
  variant "$file" "${prefix}_vllm" "${vllm[@]}" "${launch[@]}" "$@"
  python3 "$here/same_lines.py" "$file" "${prefix}_bitwise" "${prefix}_bitwise_again" || failed=1
}
one() {
  case $1 in
    decode) variants "$OUT/gpu_decode_${gpus}gpus.jsonl" "decode_${gpus}gpus" "$here/hf_decode.py" \
      --model "${MODEL:-8b}" --batches "${BATCHES:-1,3,8,64}" --steps "${STEPS:-128}" ;;
    train) variants "$OUT/gpu_train_${gpus}gpus.jsonl" "train_${gpus}gpus" "$here/train_twice.py" \
      --steps "${STEPS:-50}" ;;
    all_reduce)
      for pins in none sglang vllm; do
        local -n set_pins=$pins
        "${set_pins[@]}" timeout -k 10 "${LIMIT_S:-300}" python3 -m plait.cli bench all_reduce \
          -g "$gpus" --against nccl -b 1K -e 1G -f 4 -d bf16 \
          --csv "$OUT/gpu_pinned_${pins}_${gpus}gpus.csv" || failed=1
      done ;;
    all) for each in decode all_reduce train; do one $each; done ;;
    *) echo "no step $1" >&2; failed=1 ;;
  esac
}
none=(env)
for name in "$@"; do one "$name"; done
exit $failed
