#!/usr/bin/env bash
# Trains one of the models in the table below on FineWeb, on all GPUs of this machine. Run it again to resume.
#
#   scripts/run.sh NAME [--gpus N] [--dry-run] [FLAGS]     --dry-run: only prints size, memory, time and cost on N or 8 GPUs
#   scripts/run.sh --check | --renew                       compares scripts/run_*.sh with the output of `plan`; rewrites them
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

names=(gpt2-124M gpt2-355M gpt2-774M gpt2-1558M d12 d20 d24 stage-a gpt2-grade)

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
        stage-a)
            title="The baseline of modded-nanogpt's track 3"
            flags=(--val-every 125 --checkpoint-every 500 --model stage-a --recipe stage-a --batch-size 64)
            flags+=(--total-batch-size $half --steps 3250)
            expected="3.279, the mean of ten runs (modded-nanogpt, track 3)"
            ;;
        gpt2-grade)
            # nanochat's runs/speedrun.sh, at commit 92d63d4: 8 tokens per parameter, in FP8; with the scales and kernels of attention
            # that `plan` predicts to be fastest (doc/speedrun.md).
            title="nanochat's speedrun, 24 layers"
            flags=(--vocab-size 32768 --depth 24 --target-param-data-ratio 8 --dtype fp8 --attention mixed --batch-size 16)
            fp8=(--fp8-scaling delayed)
            flags+=(--val-every 250 --val-tokens 41943040 --checkpoint-every 1000)
            expected="0.718 bits per byte, and 0.2626 on CORE, after 99 minutes (nanochat's README, the mean of 5 runs on ClimbMix)"
            ;;
        *) fail "'$1': expected one of ${names[*]}" ;;
    esac
}

# The content of a model's script.
script_of() {
    look_up "$1"
    local plan
    plan=$("$train" plan --world-size 8 --gpu H100 "${flags[@]}")
    local figures
    # "run: 3250 steps, 1.704 G tokens, 1.36 EFLOP, 9.31 min (...), 4 (...) USD for ...": the middle of each range.
    figures=$(awk '/^run: / { split($0, part, ", "); gsub(/ *\([^)]*\)/, "", part[4]); gsub(/ *\([^)]*\)/, "", part[5])
                              sub(/ for .*/, "", part[5])
                              printf "%s, %s, %s and %s on 8 H100", part[2], part[3], part[4], part[5] }' \
        <<<"$plan")
    cat <<TEXT
#!/usr/bin/env bash
# $title on FineWeb: $figures,
# as train_gpt plan predicts them. Expected validation loss: $expected.
exec "\$(dirname "\$0")/run.sh" $1 "\$@"
TEXT
}

script_name() { echo "scripts/run_${1/-/_}.sh"; }

train=${ANVIL_PROGRAMS:-./}train_gpt
[ -x "$train" ] || [ "${1-}" = --help ] || fail "$train is missing: run scripts/setup.sh and make first"

case ${1-} in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --check | --renew)
        status=0
        for name in "${names[@]}"; do
            case $name in stage-a | gpt2-grade) continue ;; esac # scripts/speedrun.sh is their script
            file=$(script_name "$name")
            if [ "$1" = --renew ]; then
                script_of "$name" >"$file" && chmod +x "$file"
            elif ! diff "$file" <(script_of "$name"); then
                echo "$file is not what train_gpt plan says: scripts/run.sh --renew writes it" && status=1
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
