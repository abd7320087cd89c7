#!/usr/bin/env bash
# What only a GPU can say, in one go: tests on the device, expectations, the steps of the matrix products, a sweep. Results go to the
# directory given (default: gpu-results); expectations/ is rewritten by the benchmark. Takes about ten minutes on an H200.
#
#     scripts/on_gpu.sh [DIRECTORY] [STEP]...      steps: tests bench gemm sweep, all if none is named, and tuner, torch
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-gpu-results}")
mkdir -p "$out"
steps=("${@:2}")
((${#steps[@]})) || steps=(tests bench gemm sweep)
python=${PYTHON:-python3}
failed=()

for step in "${steps[@]}"; do
    echo "== $step"
    case $step in
    tests) # a fault costs a process its context, so the files are spread over several
        "$python" -m pytest -q -n 8 --dist loadfile --device gpu tests/kernels tests/emulator tests/runtime >"$out/tests.log" 2>&1 ;;
    bench)
        "$python" -m ptxkit bench run --time-budget 1 --no-counts --update-expectations --json "$out/bench.json" \
            --format markdown >"$out/bench.md" 2>"$out/bench.err" ;;
    gemm)
        "$python" -m ptxkit bench run micro_tiling_matmul matmul_mma matmul_wgmma --sizes 4096x4096x4096 --peers cublas,compile \
            --no-counts --profile ncu --json "$out/gemm.json" >"$out/gemm.log" 2>&1 &&
            "$python" scripts/gemm_steps.py "$out/gemm.json" --write docs/gemm.md ;;
    sweep)
        "$python" -m ptxkit sweep tiles micro_tiling_matmul:step9_stream_k 4096 4096 4096 --evaluations 150 --peers cublas \
            --journal "$out/step9_stream_k.jsonl" >"$out/sweep.log" 2>&1 ;;
    torch) # needs torch
        "$python" -m pytest -q --device gpu tests/torch_operations >"$out/torch.log" 2>&1 &&
            "$python" scripts/torch_overhead.py --json "$out/torch_overhead.json" >"$out/torch_overhead.log" 2>&1 &&
            "$python" scripts/torch_block.py --json "$out/torch_block.json" >"$out/torch_block.log" 2>&1 ;;
    tuner) # needs kernel_tuner
        "$python" scripts/against_kernel_tuner.py --configurations 120 >"$out/tuner.log" 2>&1 ;;
    *) echo "no step $step" >&2; exit 2 ;;
    esac || failed+=("$step")
    tail -n 3 "$out/$step.log" 2>/dev/null
done
((${#failed[@]})) && { echo "failed: ${failed[*]}" >&2; exit 1; }
exit 0
