#!/usr/bin/env bash
# From a fresh clone to samples of a GPT you trained: installs packages, builds, gets data, trains for some minutes, reports.
#
#   scripts/quickstart.sh [--minutes M] [--threads N]        4 minutes on all cores by default
#
# Trains the small model of nanoGPT's CPU example (0.8M parameters) on tiny Shakespeare; without a network, on built-in
# stories. Run it again to resume. It builds only for this processor's ISA level (CPU_ARCH=here); `make` adds the other
# levels. The first build takes 2 to 4 minutes on two cores. NO_BUILD=1: uses ./train_gpt and data/tokenize as they are; OUT_DIR: the run's folder, run/quickstart by default.
# Exit codes are those of the step that failed; 2: something is missing.
set -euo pipefail
locale=${LC_ALL:-${LC_CTYPE:-${LANG-}}} # train_gpt draws its bar with the terminal's characters
export LC_ALL=C
cd "$(dirname "$0")/.."

minutes=4 threads=0 steps=2000
while [ $# -gt 0 ]; do
    case $1 in
        --minutes) minutes=${2-} && shift ;;
        --threads) threads=${2-} && shift ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) echo "error: $1: expected --minutes M or --threads N" >&2 && exit 2 ;;
    esac
    shift || break
done
if ! [[ $minutes =~ ^[0-9]*\.?[0-9]+$ && $threads =~ ^[0-9]+$ ]]; then
    echo "error: --minutes '$minutes' --threads '$threads': expected a number of minutes and a whole number" >&2
    exit 2
fi
seconds=$(awk "BEGIN {print $minutes * 60}")

if [ "${NO_BUILD-}" != 1 ]; then
    scripts/setup.sh

    echo "== building (the first time it takes 2 to 4 minutes on two cores)"
    CPU_ARCH=${CPU_ARCH:-here} make -j"$(nproc)"
fi

echo "== data"
if data/tinyshakespeare.sh; then
    data=tinyshakespeare run=run/quickstart
else
    echo "tiny Shakespeare cannot be had (see above): training on the built-in stories instead"
    data=stories run=run/quickstart-stories
    data/tokenize --stories 2000000 --tokenizer char --out data/stories
fi

run=${OUT_DIR:-$run}
echo "== training, at most $minutes minutes"
LC_ALL=$locale ./train_gpt \
    --train-data "data/$data/train_*.bin" --val-data "data/$data/val_*.bin" \
    --num-layers 4 --num-heads 4 --channels 128 --seq-len 64 --batch-size 12 --steps "$steps" \
    --learning-rate 1e-3 --warmup-steps 100 --lr-schedule cosine --final-lr-fraction 0.1 --beta2 0.99 --weight-decay 0.1 \
    --val-every 250 --checkpoint-every 500 --keep 2 --sample-tokens 500 \
    --time-budget "$seconds" --threads "$threads" --out-dir "$run" --resume auto

echo "== results"
report=$(python3 scripts/report.py "$run")
cat <<TEXT
loss curve   $report   (open it in a browser)
checkpoint   $(ls -d "$run"/step_* | tail -n 1)   (model.safetensors, config.json, tokenizer.json, ...)
log          $run/log.jsonl   (one JSON object per line)

TEXT
# The last record: {"type":"end","step":1723,"reason":"time budget", ...}
ended=$(grep -a '^{"type":"end"' "$run/log.jsonl" | tail -n 1)
reason=$(sed -E 's/.*"reason":"([^"]*)".*/\1/' <<<"$ended")
progress="not finished: step $(sed -E 's/.*"step":([0-9]+).*/\1/' <<<"$ended") of $steps"
case $reason in
    finished) echo "Next: ./train_gpt --help, and doc/tutorials/train_on_your_text.md." ;;
    'time budget') echo "$progress after $minutes minutes of training. To go on: scripts/quickstart.sh --minutes $(awk "BEGIN {print 2 * $minutes}")" ;;
    *) echo "$progress, stopped by $reason. To go on, run this again." ;;
esac
