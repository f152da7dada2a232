#!/usr/bin/env bash
# Proves on a GPU what a machine without one cannot: that the kernels are right there, and how fast they are.
#
#   scripts/gpu_check.sh [PART...]          all parts unless told otherwise, each within ten minutes
#
#   build         the trainer, the tests and the benchmarks for this GPU, on all cores (without a GPU: for sm_90a)
#   conformance   each wrapper of llmc/cuda/device.cuh against its definition
#   test          every test that runs on a GPU
#   comm          of these, what a GPU settles about several: virtual ranks on it, and one rank of NCCL
#   sanitize      the same under compute-sanitizer: memcheck, then racecheck
#   bench         every benchmark of dev/bench in bf16
#   train         100 steps of GPT-2 124M in bf16 on synthetic tokens, with each attention there is
#   modern        the same of nanochat's model of 12 layers, in bf16 and in fp8, and of modded-nanogpt's track 3
#
# Needs nvcc, cuBLASLt and what `make` needs; installs and downloads nothing. scripts/carry_deps.sh collects what a bare
# machine lacks; where the sources lie without git, ANVIL_COMMIT names the commit. JOBS: how many to compile at once.
# Results go to $OUT if that is set, else to doc/results/GPU-DATE/: summary.txt, machine.json, bench.jsonl, train.jsonl and logs, for
# scripts/perf_table.py. A part that fails does not stop the others; exit code 1 if any failed, 2 for a wrong PART.
set -uo pipefail
cd "$(dirname "$0")/.."

parts=(build conformance test comm sanitize bench train modern)
cores=${JOBS:-$(nproc)}
part_seconds=590 # the most a part may take

gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1; }
gpu=$(gpu_name)
[ -n "$gpu" ] || export GPU_ARCHS=${GPU_ARCHS:-90}

make_gpu() { make --no-print-directory VARIANT=cuda "$@"; }

benches() { for file in dev/bench/*.cu; do basename "$file" .cu; done; }

# row NAME RESULT NOTE: a line of a part's table
row() { printf '  %-34s %-8s %s\n' "$@"; }

# ---- the parts: each prints its table last and returns 0 or 1 --------------------------------------------------

part_build() {
    local target status=0 began targets=(all build/cuda/gpu-tests)
    for target in $(benches); do targets+=("build/cuda/bench/$target"); done
    # All at once on all cores; then one by one, to tell which failed.
    make_gpu -k -j"$cores" "${targets[@]}" || status=1
    echo
    for target in "${targets[@]}"; do
        began=$SECONDS
        if [ $status = 0 ] || make_gpu -s -j"$cores" "$target" >/dev/null 2>&1; then
            row "$target" ok ""
        else
            row "$target" FAILED "make VARIANT=cuda $target"
        fi
    done
    return $status
}

# The tests with these tags, by the program that `build` made.
run_tests() {
    local status=0
    make_gpu -s -j"$cores" all build/cuda/gpu-tests || return 1 # some run the programs
    ANVIL_PROGRAMS=./ build/cuda/gpu-tests "$@" || status=$?
    return $((status != 0))
}

part_conformance() { run_tests '[conformance]'; }

part_test() { run_tests '[gpu]'; }

part_comm() { run_tests '[sum_ranks][gpu],[local_comm][gpu],[nccl_comm][gpu]'; }

find_sanitizer() {
    local nvcc_folder=
    nvcc_folder=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
    command -v compute-sanitizer || ls "$nvcc_folder/compute-sanitizer" /usr/local/cuda/bin/compute-sanitizer \
        /opt/nvidia/*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1
}

# A topic at a time, because a tool that hangs in one should not hide the others, and because time may run out.
part_sanitize() {
    local sanitizer tool options file topic status=0 began note left deadline=$((SECONDS + part_seconds - 40)) log table=()
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        row compute-sanitizer "not run" "not found"
        return 0
    fi
    make_gpu -s -j"$cores" all build/cuda/gpu-tests || return 1
    log=$(mktemp)
    for tool in memcheck racecheck; do
        # Not the programs that tests start: what they run has tests of its own.
        options=(--tool $tool --error-exitcode 9 --target-processes application-only)
        # Every call is checked by us, and some tests ask for more memory than there is.
        [ $tool = racecheck ] || options+=(--report-api-errors no)
        for file in test/*_cuda_test.cu; do
            topic=$(basename "$file" _cuda_test.cu) began=$SECONDS note=ok left=$((deadline - SECONDS))
            # What only the emulator can run has no tests here.
            if build/cuda/gpu-tests --list-tests "[$topic][gpu]" | grep -q '^0 matching'; then continue; fi
            if [ $left -lt 5 ]; then
                note="not reached: out of time" status=1
            elif ! ANVIL_PROGRAMS=./ timeout --kill-after=5 $((left < 150 ? left : 150)) "$sanitizer" "${options[@]}" \
                build/cuda/gpu-tests "[$topic][gpu]" >"$log" 2>&1; then
                note=FAILED status=1
                [ $((SECONDS - began)) -lt 150 ] || note="FAILED: too slow"
                cat "$log"
            fi
            table+=("$(row "$tool $topic" "$note" "$((SECONDS - began)) s")")
        done
    done
    rm -f "$log"
    echo && printf '%s\n' "${table[@]}"
    return $status
}

# The clocks and the power while the benchmarks run: the largest seen, into machine.json.
watch_clocks() {
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw --format=csv,noheader,nounits -lms 500 2>/dev/null
}

part_bench() {
    local bench status=0 watcher table=() result rows=$OUT/bench.jsonl clocks
    rm -f "$rows" && : >"$rows"
    clocks=$(mktemp)
    watch_clocks >"$clocks" &
    watcher=$!
    # Of the library's algorithms the fastest for each product, as the trainer takes them.
    export ANVIL_MATMUL_CACHE=${ANVIL_MATMUL_CACHE:-build/cuda/matmul.txt}
    for bench in $(benches); do
        result=ok
        if ! make_gpu -s -j"$cores" "build/cuda/bench/$bench"; then
            result="FAILED" # to build
        elif ! timeout --kill-after=5 240 "build/cuda/bench/$bench" --json "$rows"; then
            result=FAILED
        fi
        [ $result = ok ] || status=1
        table+=("$(row "$bench" "$result" "")")
    done
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    describe_machine "$clocks"
    rm -f "$clocks"
    python3 scripts/perf_table.py --validate "$rows" || status=1
    echo && printf '%s\n' "${table[@]}"
    return $status
}

# Shards of N tokens in the format of doc/formats.md. Token k comes with a probability of about 1/(k + 1), as words do.
write_tokens() { # FILE N V SEED
    python3 - "$@" <<'PYTHON'
import array, random, sys
path, n, vocab, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
draw = random.Random(seed).random
header = array.array("i", [20240520, 1, n] + [0] * 253)
with open(path, "wb") as file:
    file.write(header.tobytes() + array.array("H", (int(vocab ** draw()) - 1 for _ in range(n))).tobytes())
PYTHON
}

# What a log says: tokens a second of the steps after the tenth, and whether the loss fell. Adds a line to train.jsonl.
judge_training() { # LOG STDOUT ATTENTION WHAT PEAK
    python3 - "$@" "$OUT/train.jsonl" <<'PYTHON'
import json, math, re, statistics, sys
log, stdout, attention, what, peak, rows = sys.argv[1:]
steps = [json.loads(line) for line in open(log, encoding="utf-8") if '"type":"step"' in line.replace(" ", "")]
timed = steps[10:]
tokens_per_second = sum(s["tokens_per_s"] * s["ms"] for s in timed) / sum(s["ms"] for s in timed)
flops = re.search(r"([\d.]+) MFLOP a token", open(stdout, encoding="utf-8").read())
mfu = 100 * tokens_per_second * float(flops[1]) * 1e6 / float(peak) if flops and float(peak) > 0 else None
row = {"type": "train", "what": f"{what}, {len(steps)} steps", "attention": attention,
       "tokens_per_second": tokens_per_second, "step_ms": statistics.median(s["ms"] for s in timed),
       "first_loss": steps[0]["loss"], "last_loss": steps[-1]["loss"], "mfu_percent": mfu}  # fmt: skip
with open(rows, "a", encoding="utf-8") as file:
    file.write(json.dumps(row) + "\n")
fell = math.isfinite(row["last_loss"]) and row["last_loss"] < row["first_loss"] - 1
print(f"{tokens_per_second:.0f} tok/s, {row['step_ms']:.1f} ms a step, "
      f"MFU {'not known' if mfu is None else f'{mfu:.1f} %'}, loss {row['first_loss']:.2f} to {row['last_loss']:.2f}"
      + ("" if fell else ": it should have fallen by more than 1"))  # fmt: skip
sys.exit(0 if fell else 1)
PYTHON
}

# bf16 FLOP/s of a large product: of the benchmarks that ran, or measured now.
matmul_peak() {
    local rows
    rows=$(mktemp)
    cat "$OUT/bench.jsonl" >"$rows" 2>/dev/null
    grep -q '"op": "matmul".*"bf16"' "$rows" || build/cuda/bench/matmul --shape small --json "$rows" >/dev/null
    sed -n 's/.*"op": "matmul".*"dtype": "bf16".*"peak": \([0-9.e+]*\).*/\1/p' "$rows" | head -n 1
    rm -f "$rows"
}

# What both parts of training begin with: a folder for runs, synthetic tokens of a vocabulary, a batch for the memory.
prepare_training() { # V
    make_gpu -s -j"$cores" all build/cuda/bench/matmul || return 1
    memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
    batch=8
    [ "$memory" -lt 20000 ] || batch=16
    [ "$memory" -lt 36000 ] || batch=32
    [ "$memory" -lt 72000 ] || batch=64
    rm -rf "$run"
    mkdir -p "$run"
    write_tokens "$run/train_000000.bin" 4000000 "$1" 1 || return 1
    peak=$(matmul_peak)
}

# A hundred steps in $dtype, bf16 if that is not set, and what they come to: a line of the part's table and one of
# train.jsonl.
train_steps() { # LABEL ATTENTION WHAT FLAGS...
    local label=$1 attention=$2 what="$3, ${dtype:=bf16}" note=FAILED status=0
    shift 3
    if timeout --kill-after=10 240 ./train_gpt --device cuda --dtype "$dtype" "$@" --total-batch-size 524288 --steps 100 \
        --warmup-steps 20 --train-data "$run/train_*.bin" --val-data '' --sample-tokens 0 --checkpoint-every 0 \
        --tune-matmul build/cuda/matmul.txt --out-dir "$run/$label" 2>&1 | tee "$run/stdout"; then
        note=$(judge_training "$run/$label/log.jsonl" "$run/stdout" "$attention" "$what" "${peak:-0}") || status=1
    else
        status=1
    fi
    table+=("$(row "$label" "" "$note")")
    return $status
}

part_train() {
    local status=0 memory batch attention flags peak dtype table=() run=build/cuda/gpu_check_run
    rm -f "$OUT/train.jsonl"
    prepare_training 50257 || return 1
    for attention in $(./train_gpt --help | sed -n 's/^ *--attention \([a-z|]*\) .*/\1/p' | tr '|' ' ') default; do
        flags=(--attention "$attention")
        if [ "$attention" = auto ]; then continue; fi # one of the others
        if [ "$attention" = default ]; then
            if [ ${#table[@]} -gt 0 ]; then break; fi # there was a choice
            flags=()
        fi
        train_steps "attention-$attention" "$attention" "GPT-2 124M, T 1024, B $batch" "${flags[@]}" --model gpt2-124M \
            --vocab-size 50257 --seq-len 1024 --learning-rate 6e-4 --batch-size $batch || status=1
    done
    rm -rf "$run"
    echo && printf '%s\n' "${table[@]}"
    return $status
}

part_modern() {
    local status=0 memory batch peak dtype table=() run=build/cuda/gpu_check_run
    prepare_training 32768 || return 1
    train_steps nanochat-d12 auto "nanochat d12, T 2048, SSSL, B auto" --depth 12 --vocab-size 32768 --batch-size auto ||
        status=1
    # Eight bits begin with Ada.
    if [ "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)" -ge 89 ]; then
        dtype=fp8 train_steps nanochat-d12-fp8 auto "nanochat d12, T 2048, SSSL, B auto" --depth 12 \
            --vocab-size 32768 --batch-size auto || status=1
    fi
    train_steps stage-a auto "modded-nanogpt's track 3, T 1024, B $batch" --model stage-a --seq-len 1024 \
        --batch-size $batch || status=1
    rm -rf "$run"
    echo && printf '%s\n' "${table[@]}"
    return $status
}

# ---- around them -----------------------------------------------------------------------------------------------

# machine.json: where and with what it was measured. With a file of clocks: the largest seen in it.
describe_machine() {
    local query=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit
    nvidia-smi --query-gpu=$query --format=csv,noheader | head -n 1 | python3 -c '
import datetime, json, os, re, subprocess, sys
def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
gpu, driver, memory, sm, mem, power = (field.strip() for field in sys.stdin.readline().split(","))
cuda = re.search(r"release ([\d.]+)", output(sys.argv[1], "--version"))
machine = {"GPU": gpu, "memory": memory, "driver": driver, "CUDA": cuda[1] if cuda else "?",
           "highest clocks": f"SM {sm}, memory {mem}", "power limit": power}
seen = [line.split(",") for line in open(sys.argv[2])] if len(sys.argv) > 2 else []
seen = [[float(field) for field in fields] for fields in seen if re.fullmatch(r"[\d., ]+", ",".join(fields).strip())]
if seen:
    sm, mem, power = (max(column) for column in zip(*seen))
    machine["during the benchmarks, at most"] = f"SM {sm:.0f} MHz, memory {mem:.0f} MHz, {power:.0f} W"
machine["commit"] = os.environ.get("ANVIL_COMMIT") or output("git", "describe", "--always", "--dirty") or "?"
machine["date"] = datetime.date.today().isoformat()
machine["command"] = "scripts/gpu_check.sh"
print(json.dumps(machine, indent=1))' "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" "$@" >"$OUT/machine.json"
}

log_of() {
    case $1 in
        conformance | test | comm) echo "$OUT/test.log" ;;
        bench | train) echo "$OUT/speed.log" ;;
        *) echo "$OUT/$1.log" ;;
    esac
}

if [ "${1-}" = --inside ]; then # one part, under the time limit that the line below sets
    "part_$2"
    exit
fi

case " $* " in *" -h "* | *" --help "*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
asked=("$@")
if [ $# = 0 ] || [ "$*" = all ]; then asked=("${parts[@]}"); fi
for part in "${asked[@]}"; do
    if [[ " ${parts[*]} " != *" $part "* ]]; then
        echo "error: $part: expected some of ${parts[*]}, or all" >&2
        exit 2
    fi
done

if [ -z "${OUT:-}" ]; then
    OUT=build/gpu_check
    [ -z "$gpu" ] || OUT=doc/results/$(echo "${gpu#NVIDIA }" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')-$(date +%Y-%m-%d)
fi
export OUT
mkdir -p "$OUT"
[ -z "$gpu" ] || describe_machine
: >"$OUT/summary.txt"
for part in "${asked[@]}"; do : >"$(log_of "$part")"; done

failed=0
for part in "${asked[@]}"; do
    if [ -z "$gpu" ] && [ "$part" != build ]; then
        echo "$part: not run: no GPU here (nvidia-smi lists none)" | tee -a "$OUT/summary.txt"
        continue
    fi
    printf '==== %s\n' "$part"
    began=$SECONDS status=0
    timeout --kill-after=5 $part_seconds "$0" --inside "$part" 2>&1 | tee -a "$(log_of "$part")" || status=$?
    note=ok
    [ $status = 0 ] || note=FAILED
    [ $status != 124 ] || note="FAILED: took longer than $part_seconds s"
    [ $status = 0 ] || failed=1
    printf '%-12s %4d s  %s\n' "$part" $((SECONDS - began)) "$note" >>"$OUT/summary.txt"
done

printf '\n==== summary, in %s\n' "$OUT"
cat "$OUT/summary.txt"
exit $failed
