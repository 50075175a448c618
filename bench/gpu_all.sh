#!/bin/bash
# Checks, then times, everything that needs GPUs; tables on stdout, CSV in $OUT.
# Usage: bench/gpu_all.sh BUILD GPUS STEP...   (steps: the cases below)
set -u
build=$1; gpus=$2; shift 2
OUT=${OUT:-bench/results}
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
nccl=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0] + '/lib/libnccl.so.2')" 2>/dev/null)
[ -n "$nccl" ] && [ -e "$nccl" ] && export PLAIT_NCCL_LIB=$nccl
run() { echo "## $*"; timeout -k 5 "${limit:-120}" "$@" 2>&1; local status=$?; [ $status -ne 0 ] && echo "## status $status"; return 0; }
bench() { run "$build/bench_gpu" --gpus "$gpus" --commit "$commit" "$@"; }
for step in "$@"; do
  echo "# $step $(date +%T)"
  case $step in
    test)
      limit=${TEST_LIMIT:-400} run "$build/test_gpu" ;;
    split)
      for engine in kernel copy; do ONLY_ENGINE=$engine limit=${TEST_LIMIT:-60} run "$build/test_gpu" -tc='every*'; done ;;
    trace) limit=60 run cuda-gdb -batch -ex 'handle SIGALRM nostop' -ex run -ex bt --args "$build/test_gpu" -tc='every*' ;;
    copy)
      for share in 0 60 80 100; do
        limit=40 bench --eager --engine copy_engines --collective copy --what plan --min 1073741824 --max 1073741824 --plan direct:host_permille=$share,pieces=1 --csv "$OUT/copy_$gpus.csv"
        limit=40 bench --eager --engine copy_engines --collective send_recv --what plan --min 1073741824 --max 1073741824 --plan direct:host_permille=$share,pieces=1 --csv "$OUT/copy_$gpus.csv"
      done
      limit=40 bench --eager --collective copy --what nccl --min 1073741824 --max 1073741824 --csv "$OUT/copy_$gpus.csv" ;;
    plans) limit=${TEST_LIMIT:-100} run "$build/test_gpu" -tc='every plan*' ;;
    tiles) limit=150 bench --sweep --kernel tiled --what fused,nccl --min ${LEAST:-16777216} --max 1073741824 --factor 8 --csv "$OUT/tiles_$gpus.csv" ;;
    collectives)
      for what in reduce_scatter all_gather broadcast reduce all_to_all send_recv; do
        limit=60 bench --eager --collective $what --what fused,nccl --min ${LEAST:-4096} --max ${MOST:-1073741824} --factor ${FACTOR:-16} --csv "$OUT/collectives_$gpus.csv"
      done ;;
    paths) limit=100 bench --processes --what engines,host --ring-mib ${RING:-8} ;;
    gather)
      limit=100 bench --processes --sweep --eager --no-graphs --what fused --kernel tiled --blocks ${BLOCKS:-64,100} --host-path 0,155,180,200 --ring-mib ${RING:-16} --min 134217728 --max 4294967296 --factor 2 --csv "$OUT/gather_$gpus.csv" ;;
    push) limit=40 bench --what push --max 268435456 --min 2000000000 ;;
    sweep) limit=150 bench --sweep --what fused,nccl --min 1024 --max 67108864 --factor 4 --csv "$OUT/sweep_$gpus.csv" ;;
    large) limit=150 bench --sweep --what fused,nccl --min ${LEAST:-4194304} --max 1073741824 --factor 4 ${MORE:-} --csv "$OUT/sweep_$gpus.csv" ;;
    cores)
      for kernel in tiled rotation; do
        limit=60 bench --processes --sweep --eager --what fused --kernel $kernel --blocks 48 --piece-mib 0 --host 0 --cuts 1 --host-cpu 0,50,90,130 --min 268435456 --max 1073741824 --factor 4 --csv "$OUT/host_cpu_$gpus.csv"
      done ;;
    fused) limit=100 bench --eager --what fused,nccl --min 1024 --max ${MOST:-4294967296} --factor 2 --types fp32,bf16 ${MORE:-} --csv "$OUT/fused_$gpus.csv" ;;
    kernels)
      for blocks in 16,64 32,32 32,64 56,48; do set -- ${blocks/,/ }
        limit=60 bench --eager --engine one_kernel --copy-blocks $1 --reduce-blocks $2 --what plan --min 67108864 --max 1073741824 --factor 4 ${PLANS:-} --csv "$OUT/plan_$gpus.csv"
      done ;;
    mixed)
      for blocks in 24 64; do
        limit=60 bench --eager --engine copy_engines --reduce-blocks $blocks --what plan --min 268435456 --max 1073741824 --factor 4 ${PLANS:-} --csv "$OUT/plan_$gpus.csv"
      done ;;
    engines) limit=150 bench --eager --engine copy_engines --what plan --min 67108864 --max 1073741824 --factor 4 ${PLANS:-} --csv "$OUT/plan_$gpus.csv" ;;
    plan) limit=150 bench --eager --what plan,nccl --min 16777216 --max 1073741824 --factor 4 ${PLANS:-} --csv "$OUT/plan_$gpus.csv" ;;
    process) limit=100 bench --processes --eager --what fused,plan,nccl --min 4096 --max 268435456 --factor 8 ${PLANS:-} --csv "$OUT/process_$gpus.csv" ;;
  esac
done
echo "# end $(date +%T)"
