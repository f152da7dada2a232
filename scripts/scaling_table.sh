#!/usr/bin/env bash
# Measures how a training run scales on the available hardware: 1, 2 and 4 processes of one thread each, two hosts, a GPU.
#
#   scripts/scaling_table.sh                                    this machine: processes, and a GPU if there is one
#   scripts/scaling_table.sh --master alpha:29500               on alpha: also two hosts, once the other one has connected
#   scripts/scaling_table.sh --master alpha:29500 --rank 1      on the other host, which only takes part
#   scripts/scaling_table.sh --smoke                            a few steps of a tiny model, to test that all of it runs
#
# Every row has the same batch per step, of random tokens. These columns are medians of the values in log.jsonl: tok/s, the
# time in collectives (communication), the part of it that overlaps with no computation (exposed), and the time of its bytes
# at the bandwidth measured at the start (predicted). Efficiency is one process's time over N times that of N. Takes two
# minutes on two cores. Other flags are those of dev/results/bench_scaling.py, which does the work: --models small,middle,
# --rounds 5; --write puts the table into doc/performance.md.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$(realpath "$0")")/.."

case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
programs=${ANVIL_PROGRAMS:-./}
[ -x "${programs}train_gpt" ] || {
    echo "error: ${programs}train_gpt is missing: run make" >&2
    exit 2
}
exec python3 dev/results/bench_scaling.py --program "${programs}train_gpt" --device cpu --gpu --models small --no-write "$@"
