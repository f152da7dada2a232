#!/usr/bin/env bash
# How a training run scales on what there is, in one table: 1, 2 and 4 processes of one thread each, two hosts, a GPU.
#
#   scripts/scaling_table.sh                                    this machine: processes, and a GPU if there is one
#   scripts/scaling_table.sh --master alpha:29500               on alpha: and two hosts, when the other one has come
#   scripts/scaling_table.sh --master alpha:29500 --rank 1      on the other one, which only takes part
#   scripts/scaling_table.sh --smoke                            a few steps of a tiny model: does all of it run?
#
# The same batch a step in every row, on tokens that are made up here. tok/s, the time in collectives (communication), of it
# with nothing else to do (exposed), and what its bytes should take by the bandwidth measured at the start (predicted) are
# medians of what the runs log in log.jsonl; efficiency is one process's time over N times that of N. It takes two minutes
# on two cores. Other flags are those of scripts/bench_scaling.py, which does the work: --models small,middle, --rounds 5; --write puts the
# table into doc/performance.md.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
programs=${ANVIL_PROGRAMS:-./}
[ -x "${programs}train_gpt" ] || {
    echo "error: ${programs}train_gpt is missing: run make" >&2
    exit 2
}
exec python3 scripts/bench_scaling.py --program "${programs}train_gpt" --device cpu --gpu --models small --no-write "$@"
