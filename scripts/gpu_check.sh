#!/usr/bin/env bash
# Checks on a GPU what a machine without one cannot: that the kernels are correct there, and how fast they are.
#
#   scripts/gpu_check.sh [PART...]          default: first, second, third, fourth and comm
#
#   first         the most important checks, in this order: libraries and doctor; conformance; tests of Hopper's instructions
#                 and of attention (what fails is not trained with); GPT-2 124M with each attention (speed, equal losses);
#                 GPT-2 1558M; first losses against a CPU's; the same bits in two runs; benchmarks of matmul and attention; a
#                 micro-step op by op (--profile) and kernel by kernel (ncu); then, in the remaining time: the quickstart;
#                 --batch-size auto; the head in chunks of 320 and 8192 rows; --no-deterministic; PyTorch; other tests. It
#                 begins with a table of the seconds that each is expected to take on an H100
#   second, test  all tests that run on a GPU, those of the most important ops first
#   third, bench  a large GEMM for half a minute, then all benchmarks of dev/bench in bf16
#   fourth        training of nanochat's 12-layer model in bf16 and in FP8, and of modded-nanogpt's track 3; then, in the
#                 remaining time, tests under compute-sanitizer: memcheck, then racecheck
#   comm          several NCCL ranks, on all GPUs or, with NCCL 2.30.3 or later, 2 and 4 ranks on a single one: losses equal to
#                 those of virtual ranks, a rank that is killed, one that hangs, bf16 gradients, Muon, resume, memory
#   peers         GPT-2 124M by Anvil, by python3's PyTorch and by llm.c ($LLMC: its train_gpt2cu; $LLMC_COMMIT)
#   build, conformance, train, modern, sanitize     these parts alone
#
# A part takes at most $LIMIT seconds (590). Results are written at once, so a part that is killed keeps all that it has
# finished. Programs are built by make; NO_BUILD=1 uses those that exist. If there are none, those packed by
# scripts/carry_deps.sh --programs are used. Nothing is installed or downloaded. JOBS: the number of files to compile at
# once; RANKS: of comm, such as '2 4'; RUNS: a folder for what runs leave until they are judged (/dev/shm if it has 8 GB
# free, else build/cuda); ANVIL_COMMIT: the commit, if the sources are not in a git repository.
#
# Results go to $OUT if that is set, else to doc/results/GPU-DATE/PART/: summary.txt, results.jsonl (a row for each check,
# benchmark, training run and kernel), machine.json, PART.log, and for first also trace.json.gz. dev/results/perf_table.py writes
# them into doc/performance.md. Exit code 1 if anything failed or was not reached, 2 for a wrong PART. Needs Python 3.
set -euo pipefail
export LC_ALL=C
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "$0")/.."
exec python3 -B scripts/gpu_check/main.py "$@"
