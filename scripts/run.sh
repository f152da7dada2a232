#!/usr/bin/env bash
# Trains one of the models in the table on FineWeb, on all GPUs of this machine. Run it again to resume.
#
#   scripts/run.sh NAME [--gpus N] [--dry-run] [FLAGS]     --dry-run: only prints size, memory, time and cost on N or 8 GPUs
#   scripts/run.sh --check | --renew                       compares the table below with the output of `plan`; rewrites it
#
# NAME, and what it takes on 8 H100 as train_gpt plan predicts it:
#
#   gpt2-124M    10.26 G tokens, 8.182 EFLOP, 35.5 min and 14.2 USD
#   gpt2-355M    31.46 G tokens, 71.46 EFLOP, 4.7 h and 114 USD
#   gpt2-774M    150 G tokens, 737.4 EFLOP, 48.9 h and 1.17 k USD
#   gpt2-1558M   33.55 G tokens, 328.9 EFLOP, 20.6 h and 494 USD
#   d12          1.482 G tokens, 1.196 EFLOP, 374 s and 2.49 USD
#   d20          5.49 G tokens, 16.07 EFLOP, 69.7 min and 27.9 USD
#   d24          9.08 G tokens, 43.6 EFLOP, 3.0 h and 72.8 USD
#   stage-a      1.704 G tokens, 1.359 EFLOP, 401 s and 2.67 USD
#   record       1.704 G tokens, 1.359 EFLOP, 401 s and 2.67 USD
#   gpt2-grade   5.838 G tokens, 27.09 EFLOP, 92.3 min and 36.9 USD
#
# FLAGS are train_gpt's and come after the table's. data/fineweb.sh downloads the tokens unless FLAGS has --train-data. Without
# a GPU it trains only with --device cpu. $ANVIL_PROGRAMS: the folder of train_gpt, . by default.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$(realpath "$0")")/.."

fail() {
    echo "error: $*" >&2
    exit 2
}

names=(gpt2-124M gpt2-355M gpt2-774M gpt2-1558M d12 d20 d24 stage-a record gpt2-grade)

# look_up NAME: the model's title, its flags, and the loss that others have published, with its source
look_up() {
    # With 2^19 tokens per step, 8 GPUs take one micro-batch each up to 162M parameters, and several beyond.
    local half=524288 million=1048576
    # llm.c's schedule: 700 steps of warm-up, then cosine decay to a tenth or to zero. Betas, decay and clipping are the recipe's.
    local gpt2=(--recipe gpt2 --warmup-steps 700 --lr-schedule cosine --weight-decay 0.1 --grad-clip 1)
    # The depth and the vocabulary of these tokens determine everything else.
    local depth=(--vocab-size 50257 --depth)
    flags=(--val-every 250 --checkpoint-every 1000)
    expected="none published for these tokens" fp8=()
    case $1 in
        gpt2-124M)
            title="GPT-2 124M"
            flags+=(--model "$1" "${gpt2[@]}" --learning-rate 6e-4 --final-lr-fraction 0 --batch-size 64)
            flags+=(--total-batch-size $half --steps 19560)
            expected="3.29, llm.c's (its discussion 481)"
            ;;
        gpt2-355M)
            title="GPT-2 355M"
            flags+=(--model "$1" "${gpt2[@]}" --learning-rate 3e-4 --final-lr-fraction 0 --batch-size 32)
            flags+=(--total-batch-size $half --steps 60000)
            expected="2.92, llm.c's (modded-nanogpt, track 2)"
            ;;
        gpt2-774M)
            title="GPT-2 774M"
            flags+=(--model "$1" "${gpt2[@]}" --learning-rate 2.5e-4 --final-lr-fraction 0 --batch-size 16)
            flags+=(--total-batch-size $half --steps 286102)
            ;;
        gpt2-1558M)
            title="GPT-2 1558M"
            flags+=(--model "$1" "${gpt2[@]}" --learning-rate 6e-4 --final-lr-fraction 0.1 --batch-size 16)
            flags+=(--total-batch-size $million --steps 32000)
            ;;
        d12)
            title="The modern model, 12 layers"
            flags+=("${depth[@]}" 12)
            ;;
        d20)
            title="The modern model, 20 layers"
            flags+=("${depth[@]}" 20)
            ;;
        d24)
            title="The modern model, 24 layers"
            flags+=("${depth[@]}" 24)
            ;;
        stage-a | record)
            title="The baseline of modded-nanogpt's track 3"
            [ "$1" = stage-a ] || title+=", with the recipe record"
            flags=(--val-every 125 --checkpoint-every 500 --model stage-a --recipe "$1" --batch-size 64)
            flags+=(--total-batch-size $half --steps 3250)
            expected="3.279 of stage-a, the mean of ten runs (modded-nanogpt, track 3)"
            ;;
        gpt2-grade)
            # nanochat's runs/speedrun.sh, at commit 92d63d4: 8 tokens per parameter, in FP8; with the scales that `plan` predicts to be
            # fastest (doc/speedrun.md).
            title="nanochat's speedrun, 24 layers"
            flags=(--vocab-size 32768 --depth 24 --target-param-data-ratio 8 --dtype fp8 --batch-size 16)
            fp8=(--fp8-scaling delayed)
            flags+=(--val-every 250 --val-tokens 41943040 --checkpoint-every 1000)
            expected="0.718 bits per byte, and 0.2626 on CORE, after 99 minutes (nanochat's README, the mean of 5 runs on ClimbMix)"
            ;;
        *) fail "'$1': expected one of ${names[*]}" ;;
    esac
}

# The model's row in the table at the top.
row_of() {
    look_up "$1"
    # "run: 3250 steps, 1.704 G tokens, 1.36 EFLOP, 9.31 min (...), 4 (...) USD for ...": the middle of each range.
    "$train" plan --world-size 8 --gpu H100 "${flags[@]}" "${fp8[@]}" | awk -v name="$1" '/^run: / {
        split($0, part, ", "); gsub(/ *\([^)]*\)/, "", part[4]); gsub(/ *\([^)]*\)/, "", part[5]); sub(/ for .*/, "", part[5])
        printf "#   %-12s %s, %s, %s and %s\n", name, part[2], part[3], part[4], part[5] }'
}

train=${ANVIL_PROGRAMS:-./}train_gpt
[ -x "$train" ] || [ "${1-}" = --help ] || fail "$train is missing: run scripts/setup.sh and make first"

case ${1-} in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --check | --renew)
        status=0
        for name in "${names[@]}"; do
            row=$(row_of "$name")
            grep -qxF "$row" scripts/run.sh && continue
            if [ "$1" = --renew ]; then
                sed -i "s/^#   $name .*/$row/" scripts/run.sh
            else
                echo "scripts/run.sh: $name is not what train_gpt plan says: scripts/run.sh --renew writes ${row##*  }" && status=1
            fi
        done
        exit $status
        ;;
esac

name=${1-}
look_up "$name"
shift
gpus= dry_run= own=()
while [ $# -gt 0 ]; do
    case $1 in
        --gpus) gpus=${2-} && shift ;;
        --gpus=*) gpus=${1#*=} ;;
        --dry-run) dry_run=1 ;;
        *) own+=("$1") ;;
    esac
    shift || break
done
[[ $gpus =~ ^([1-9][0-9]*)?$ ]] || fail "--gpus '$gpus': expected how many to train on, 1 or more"
asked() { [[ " ${own[*]-} " == *" $1 "* || " ${own[*]-} " == *" $1="* ]]; }
on_cpu() { [[ " ${own[*]-} " =~ " --device"[\ =]"cpu " ]]; }

# A --dtype of the user's comes without our flags of FP8. Of a flag that is given twice train_gpt takes the last.
asked --dtype || flags+=("${fp8[@]}")
flags+=("${own[@]}")
if [ -n "$dry_run" ]; then
    asked --train-data || echo "$title on $([ "$name" = gpt2-grade ] && echo ClimbMix || echo FineWeb); expected validation loss: $expected"
    exec "$train" plan --world-size "${gpus:-8}" "${flags[@]}"
fi

if [ -z "$gpus" ]; then
    if on_cpu; then gpus=1; else gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true); fi
fi
[ "$gpus" -gt 0 ] ||
    fail "no GPU here (nvidia-smi lists none): --dry-run says what it would take; scripts/speedrun.sh --smoke tries the path"

if ! asked --train-data; then
    [ "$name" != gpt2-grade ] || fail "gpt2-grade without --train-data: scripts/speedrun.sh --target gpt2-grade makes its tokens"
    # Downloads as many shards of 100M tokens as the run reads, if that many exist: "run: 3250 steps, 1.704 G tokens, ..."
    shards=$("$train" plan --world-size "$gpus" "${flags[@]}" | awk '/^run: / {
        size["M"] = 0.01; size["G"] = 10; size["T"] = 10000; n = $4 * size[$5]; n = n > int(n) ? int(n) + 1 : n
        print n < 1 ? 1 : n < 1030 ? n : 1030 }')
    data=$(data/fineweb.sh --shards "$shards" | tee /dev/stderr | tail -n 1)
    flags+=(--train-data "$data/fineweb_train_*.bin")
    asked --val-data || flags+=(--val-data "$data/fineweb_val_*.bin")
    # Published losses are of the first 10485760 tokens.
    asked --val-tokens || flags+=(--val-tokens 10485760)
    [ -f "$data/tokenizer.json" ] ||
        echo "no samples: these tokens are GPT-2's, and $data/tokenizer.json, which would turn them to text, is missing"
fi
asked --out-dir || flags+=(--out-dir "run/$name")
asked --resume || flags+=(--resume auto)

exec scripts/run_ranks.sh "$gpus" "$train" "${flags[@]}"
