#!/usr/bin/env bash
# From a fresh clone to a trained model with a report: installs packages, builds, gets the tokens, trains on all GPUs of this
# machine, and compares the validation loss with published ones. Run it again to resume.
#
#   scripts/speedrun.sh [--target NAME] [--gpus N] [--out DIR]      stage-a, into run/speedrun-stage-a
#   NAME: stage-a, record, gpt2-124M, d12 or gpt2-grade
#   scripts/speedrun.sh --target d12 --text PATH      on your own text, or on that of data/climbmix.sh, with its own vocabulary
#   scripts/speedrun.sh --target gpt2-grade -- FLAGS  nanochat's speedrun; FLAGS are train_gpt's, such as --dtype bf16
#   scripts/speedrun.sh --dry-run       prints parameters, tokens, FLOPs, memory, time and cost on 8 GPUs or N; downloads nothing
#   scripts/speedrun.sh --smoke         the whole path in about a minute on the CPU: a tiny model of the same
#                                       architecture and recipe on built-in stories; N ranks
#
# doc/speedrun.md describes the targets. $ANVIL_PROGRAMS: a folder with programs that are already built. Exit codes are
# those of the step that failed; 2: something is missing, or a flag is wrong.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$(realpath "$0")")/.."

fail() {
    echo "error: $*" >&2
    exit 2
}

target=stage-a gpus= dry_run= smoke= out= text=
while [ $# -gt 0 ]; do
    case $1 in
        --target) target=${2-} && shift ;;
        --target=*) target=${1#*=} ;;
        --gpus) gpus=${2-} && shift ;;
        --gpus=*) gpus=${1#*=} ;;
        --out) out=${2-} && shift ;;
        --out=*) out=${1#*=} ;;
        --text) text=${2-} && shift ;;
        --text=*) text=${1#*=} ;;
        --dry-run) dry_run=1 ;;
        --smoke) smoke=1 ;;
        --) shift && break ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) fail "$1: expected --target, --gpus, --out, --text, --dry-run, --smoke, or -- and train_gpt's flags" ;;
    esac
    shift || break
done
[ -z "$text" ] || [[ $target$smoke =~ ^(d12|gpt2-grade)$ ]] ||
    fail "--text: expected --target d12 or gpt2-grade with it; the others' tokens are GPT-2's"
[[ $gpus =~ ^([1-9][0-9]*)?$ ]] || fail "--gpus '$gpus': expected how many to train on, 1 or more"

# The cost of a GPU machine is what `plan` assumes for H100s. A target's published losses are for the same tokens and batch.
usd_per_gpu_hour=3
references=(--published "$target") tiny=() tokenizer=(--tokenizer byte)
case $target in
    stage-a | record)
        references=(--published stage-a)
        tiny=(--num-layers 2 --num-heads 2 --channels 64 --vocab-size 256)
        ;;
    gpt2-124M)
        tiny=(--num-layers 2 --num-heads 2 --channels 64 --vocab-size 256 --warmup-steps 10)
        ;;
    d12)
        references=() # none is published for these tokens
        tiny=(--depth 2 --model configs/smoke.conf --vocab-size 512 --warmup-steps 10)
        tokenizer=(--train-tokenizer --vocab-size 512)
        ;;
    gpt2-grade)
        tiny=(--depth 2 --model configs/smoke.conf --vocab-size 512 --warmup-steps 10)
        ;;
    *) fail "--target '$target': expected stage-a, record, gpt2-124M, d12 or gpt2-grade" ;;
esac
out=${out:-run/speedrun-$target${smoke:+-smoke}}
flags=(--out-dir "$out" "$@")
if [ -n "$smoke" ]; then
    flags+=("${tiny[@]}" --device cpu --seq-len 64 --batch-size 8 --total-batch-size 4096 --steps 100)
    flags+=(--val-every 20 --val-tokens 8192 --checkpoint-every 20 --print-every 20 --sample-tokens 200 --prompt "The ")
    flags+=(--train-data "$out/data/train_*.bin" --val-data "$out/data/val_*.bin")
fi
[ -z "$gpus" ] || flags+=(--gpus "$gpus")
programs=${ANVIL_PROGRAMS:-./}

if [ "$target" = gpt2-grade ]; then
    # run.sh's dry run of nanochat's own text says what nanochat had from it.
    if [ -z "$smoke" ] && { [ -z "$dry_run" ] || [ -n "$text" ]; }; then
        flags+=(--train-data "$out/data/train_*.bin" --val-data "$out/data/val_*.bin" --sample-every 2000)
    fi
    [ -n "$dry_run" ] || flags+=(--eval-tasks "$out/core.tasks,$out/hellaswag.bin" --eval-tasks-every "$([ -n "$smoke" ] && echo 50 || echo 2000)")
elif [ -n "$text" ]; then
    flags+=(--train-data "$out/data/train_*.bin" --val-data "$out/data/val_*.bin" --vocab-size 32768)
elif [ "$target$smoke" = d12 ]; then
    echo "note: the tokens are GPT-2's, and the vocabulary larger than nanochat's: --text trains one of 32,768 tokens on text"
fi
if [ -n "$dry_run" ]; then
    [ -z "$smoke" ] || flags+=(--dtype bf16) # too small for FP8
    exec scripts/run.sh "$target" --dry-run "${flags[@]}"
fi

# Downloads the text of gpt2-grade, 170 files as in nanochat's speedrun, while the programs are built.
source=$out/source questions=data/core/eval_bundle hellaswag=data/hellaswag/hellaswag_val.jsonl
texts=${text:-data/climbmix}
[ -z "$smoke" ] || texts=$source/climbmix questions=$source/eval_bundle hellaswag=$source/hellaswag_val.jsonl
mkdir -p "$out"
fetching=
if [ "$target$smoke" = gpt2-grade ]; then
    echo "== downloads, in the background: $out/downloads.log"
    { data/core.sh && data/hellaswag.sh && { [ -n "$text" ] || data/climbmix.sh 170; }; } >"$out/downloads.log" 2>&1 &
    fetching=$!
    trap 'kill "$fetching" 2>/dev/null || true' EXIT
fi

if [ -z "${ANVIL_PROGRAMS-}" ]; then
    # --tests installs MPI, which several ranks need.
    if [ "${gpus:-${smoke:-2}}" = 1 ]; then scripts/setup.sh; else scripts/setup.sh --tests; fi
    echo "== building"
    make -j"$(nproc)"
fi

if [ "$target" = gpt2-grade ]; then
    # For .parquet, core.yaml and the questions' tokens.
    if ! python3 -c 'import pyarrow, tokenizers, yaml' 2>/dev/null; then
        scripts/setup.sh --venv
        [ -x .deps/speedrun/bin/python3 ] || python3 -m venv .deps/speedrun
        PATH=$PWD/.deps/speedrun/bin:$PATH
        python3 -m pip install -q --disable-pip-version-check pyarrow tokenizers pyyaml
    fi
    if [ -n "$fetching" ]; then
        wait "$fetching" || { tail -n 1 "$out/downloads.log" >&2 && exit 2; }
        trap - EXIT
    fi
    size=(--vocab-size 32768) most=() longest=2048
    if [ -n "$smoke" ]; then
        size=(--vocab-size 512) most=(--max-examples 60) longest=64
        "${programs}data/tokenize" --stories 400000 --tokenizer byte --out "$source/stories"
        scripts/smoke_data.py "$source/stories" "$source"
    fi
    if [ ! -f "$out/data/dataset.json" ]; then
        echo "== tokenizer and tokens"
        of_text=("$texts" --val-fraction 0.01)
        # As in nanochat, the last file is for validation.
        [ -n "$text" ] || of_text=("$texts"/shard_0[0-5]*.parquet --val-input "$texts/shard_06542.parquet")
        "${programs}data/tokenize" "${of_text[@]}" --train-tokenizer "${size[@]}" --pattern nanochat --out "$out/data"
    fi
    if [ ! -f "$out/core_all.tasks" ]; then
        echo "== questions"
        # As in nanochat: 500 examples of each task during training, all of them at the end.
        scripts/make_core.py "$questions" "$out/core.tasks" --tokenizer "$out/data/tokenizer.json" --max-tokens $longest
        scripts/make_hellaswag.py --tokenizer "$out/data/tokenizer.json" "${most[@]}" "$hellaswag" "$out/hellaswag.bin"
        scripts/make_core.py "$questions" "$out/core_all.tasks" --tokenizer "$out/data/tokenizer.json" --max-tokens $longest --max-per-task 0
    fi
elif [ -n "$smoke" ]; then
    echo "== data"
    "${programs}data/tokenize" --stories 400000 "${tokenizer[@]}" --out "$out/data"
elif [ -n "$text" ] && [ ! -f "$out/data/dataset.json" ]; then
    echo "== data"
    "${programs}data/tokenize" "$text" --train-tokenizer --vocab-size 32768 --pattern nanochat --val-fraction 0.01 \
        --out "$out/data"
fi

echo "== training"
[ -z "$smoke" ] || flags+=(--dtype fp32) # does not depend on the processor
scripts/run.sh "$target" "${flags[@]}"

log=$out/log.jsonl
# last TYPE KEY: the value in the last record of this type
last() { grep -a "^{\"type\":\"$1\"" "$log" | tail -n 1 | sed -E "s/.*\"$2\":\"?([^,\"}]*).*/\1/"; }
echo "== results"
[ -n "$gpus" ] || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
# The tiny model of --smoke has no published reference.
if [ -n "$smoke" ]; then references=(); else references+=(--usd-per-hour $((gpus * usd_per_gpu_hour))); fi
report=$(python3 scripts/report.py "$out" "${references[@]}")
ended=$(last end reason)
if [ "$target$ended" = gpt2-gradefinished ]; then
    echo "== all of CORE"
    scripts/run_ranks.sh "$([ -n "$smoke" ] && echo 1 || echo "$gpus")" "${programs}train_gpt" eval --resume "$out" \
        --val-data '' --eval-tasks "$out/core_all.tasks" ${smoke:+--device cpu} | tee "$out/core.txt"
fi
[ "$ended" = finished ] || echo "stopped at step $(last end step) by $ended: run this again to go on"
cat <<TEXT
validation   $(printf %.4f "$(last val loss)") nats per token at step $(last val step)
report       $report   (open it in a browser: the loss beside what others published, time, cost)
checkpoint   $(ls -d "$out"/step_* | tail -n 1)   (model.safetensors, config.json, ...)
log          $log   (one JSON object per line)
TEXT

if [ -n "$smoke" ] && [ "$ended" = finished ]; then
    # Checks that it has learned: from the first validation to the last, the loss must fall by at least half a nat.
    first=$(grep -a '^{"type":"val"' "$log" | head -n 1 | sed -E 's/.*"loss":([0-9.e+-]*).*/\1/')
    awk "BEGIN { exit !($(last val loss) < $first - 0.5) }" ||
        { echo "error: the model did not learn: from $first to $(last val loss) nats per token" >&2 && exit 1; }
fi
