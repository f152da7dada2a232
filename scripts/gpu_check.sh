#!/usr/bin/env bash
# Proves on a GPU what a machine without one cannot: that the kernels are right there, and how fast they are.
#
#   scripts/gpu_check.sh [PART...]          first, second, third, fourth and comm unless told otherwise
#
#   first         what matters most, in this order: libraries and doctor; conformance; GPT-2 124M with each attention (speed,
#                 equal losses); its first losses as on a CPU; the same bits twice; the quickstart with its samples; the head
#                 in chunks of 320 and 8192 rows; benchmarks of matmul, attention and cross_entropy; a micro-step op by op
#                 (--profile) and kernel by kernel (ncu); GPT-2 1558M; then tests until the time is over
#   second, test  every test that runs on a GPU, those of the most important ops first
#   third, bench  a large GEMM for half a minute, then every benchmark of dev/bench in bf16
#   fourth        training of nanochat's model of 12 layers in bf16 and in FP8, and of modded-nanogpt's track 3; then, in
#                 what time is left, tests under compute-sanitizer: memcheck, then racecheck
#   comm          several ranks of NCCL, on all GPUs or, with NCCL 2.30.3 or later, 2 and 4 on the only one: losses as
#                 virtual ranks have them, a rank that is killed, one that hangs, bf16 gradients, Muon, resume, memory
#   build, conformance, train, modern, sanitize     these alone
#
# A part takes at most $LIMIT seconds (590). What it finds is written as it comes: a part that is killed has lost nothing of
# what was over. Programs are made by make; NO_BUILD=1 takes those that lie there, and those that scripts/carry_deps.sh
# --programs packed are taken where there are no others. Nothing is installed or downloaded. JOBS: how many files to compile
# at once; RANKS: of comm, such as '2 4'; ANVIL_COMMIT: the commit, where the sources lie without git.
#
# Results go to $OUT if that is set, else to doc/results/GPU-DATE/PART/: summary.txt, results.jsonl (a row for each check,
# benchmark, training run and kernel), machine.json, PART.log, of first trace.json.gz as well. scripts/perf_table.py makes
# doc/performance.md of them. Exit code 1 if anything failed or was not reached, 2 for a wrong PART. Needs Python 3.
set -euo pipefail
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "$0")/.."
exec python3 -B scripts/gpu_check/main.py "$@"
