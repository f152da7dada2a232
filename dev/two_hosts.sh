#!/usr/bin/env bash
# Training on two machines, on one: a walk-through of a CPU run whose two hosts are network namespaces, joined by a line
# of 1 Gbit/s, each with half of the cores.
#
#   dev/two_hosts.sh [--rate RATE|none] [--steps N] [--launcher tcp|mpi] [--only-collectives]
#   dev/two_hosts.sh [--rate RATE|none] --scaling [FLAGS]     scripts/scaling_table.sh with FLAGS, where each has all cores
#
# By default 1gbit (as tc writes it) and 20 steps, which take about a minute, and a command for each rank, as on two machines
# without MPI; with --launcher mpi one mpirun, which reaches the second host by a command of our own in place of ssh.
#
# It measures collectives between the hosts, then trains, and prints what the collectives of gradients and weights should
# take by bytes and rate beside what it took, and the bytes on the line beside those that must cross it. Then it stops one
# host again and again, and the trainer must warn that this rank is slow. Needs root, Linux with network namespaces and
# tc's token bucket, and ./train_gpt and data/tokenize as built by make ($ANVIL_PROGRAMS: where they lie). Nothing of it
# stays: neither interfaces nor files.
# Exit code 2: something is missing here, and says what; 1: the run went wrong.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

# shellcheck source=dev/hosts.sh
. dev/hosts.sh

rate=1gbit steps=20 launcher=tcp only_collectives='' scaling=''
while [ $# -gt 0 ]; do
    case $1 in
        --rate) rate=${2-} && shift ;;
        --steps) steps=${2-} && shift ;;
        --launcher) launcher=${2-} && shift ;;
        --only-collectives) only_collectives=1 ;;
        --scaling) scaling=1 && shift && break ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) fail 2 "$1: expected --rate RATE, --steps N, --launcher tcp|mpi, --only-collectives or --scaling" ;;
    esac
    shift || break
done
case $rate in
    *[0-9]gbit) bits_per_s=${rate%gbit}000000000 ;;
    *[0-9]mbit) bits_per_s=${rate%mbit}000000 ;;
    none) bits_per_s=1 only_collectives=1 ;; # as fast as this machine can
    *) bits_per_s= ;;
esac
[[ $bits_per_s =~ ^[1-9][0-9]*$ ]] || fail 2 "--rate '$rate': expected a whole number of gbit or mbit, such as 1gbit"
[[ $steps =~ ^[0-9]+$ ]] && [ "$steps" -ge 10 ] || fail 2 "--steps '$steps': expected a number of 10 or more"
[[ $launcher =~ ^(tcp|mpi)$ ]] || fail 2 "--launcher '$launcher': expected tcp or mpi"

find_programs
[ "$launcher" = tcp ] || need mpirun:openmpi-bin

cores=$(nproc)
if [ -n "$scaling" ]; then
    set_up_hosts "$rate" "0-$((cores - 1))" "0-$((cores - 1))"
    "$scratch/on_host" 1 scripts/scaling_table.sh "$@" --master "${addresses[0]}" --rank 1 >"$scratch/other" 2>&1 </dev/null &
    other=$!
    "$scratch/on_host" 0 scripts/scaling_table.sh "$@" --master "${addresses[0]}" </dev/null &
    wait $! || fail 1 'see above'
    wait "$other" && exit 0
    cat "$scratch/other" >&2
    exit 1
fi
if [ "$cores" -ge 2 ]; then
    threads=$((cores / 2)) cores_of=("0-$((cores / 2 - 1))" "$((cores / 2))-$((cores / 2 * 2 - 1))")
else
    threads=1 cores_of=(0 0)
fi
set_up_hosts "$rate" "${cores_of[@]}"

# As mpirun calls ssh: HOST COMMAND. It starts its daemon on the other host so; on its own it needs none.
cat >"$scratch/agent" <<SCRIPT
#!/bin/sh
shift
exec "$scratch/on_host" 1 sh -c "\$*"
SCRIPT
chmod +x "$scratch/agent"
printf '%s slots=1\n' "${addresses[@]}" >"$scratch/hostfile"

# One rank on each host, with the output in $scratch/NAME; in the background, so that a signal is heeded at once.
start() { # NAME COMMAND FLAGS...
    local output=$scratch/$1 command=$2
    shift 2
    set -- "$train" "$command" --device cpu --dtype fp32 --threads "$threads" "$@"
    other=
    if [ "$launcher" = tcp ]; then
        "$scratch/on_host" 1 "$@" --rank 1 --world-size 2 --master "${addresses[0]}" >"$output.1" 2>&1 </dev/null &
        other=$!
        "$scratch/on_host" 0 "$@" --rank 0 --world-size 2 --master "${addresses[0]}" >"$output" 2>&1 </dev/null &
        running=$!
        return
    fi
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$scratch/on_host" 0 \
        mpirun -np 2 --hostfile "$scratch/hostfile" --map-by node --bind-to none \
        --mca plm rsh --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include line \
        --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include line \
        "$@" >"$output" 2>&1 </dev/null &
    running=$!
}
finish() { # NAME
    wait "$running" && { [ -z "$other" ] || wait "$other"; } && return
    tail -n 20 "$scratch/$1"* >&2
    fail 1 "the run on two hosts failed"
}

echo "== two hosts, $threads of $cores cores each, joined at $rate, started by $([ "$launcher" = tcp ] && echo a command each || echo mpirun)"
"$tokenize" --stories 200000 --tokenizer char --out "$scratch/data" >/dev/null
model=(--train-data "$scratch/data/train_*.bin" --val-data '' --num-layers 4 --num-heads 4 --channels 256 --seq-len 64
    --warmup-steps 0 --learning-rate 1e-3 --sample-tokens 0 --checkpoint-every 0)

echo "== collectives between them"
start collectives bench-comm --mib 16
finish collectives
sed -n '/^shared memory/p; /^|/p' "$scratch/collectives"
[ -z "$only_collectives" ] || exit 0

echo "== training"
# Bytes that the first host has sent, as a process there sees it, and steps that are over. No program is started: on a busy
# machine that takes as long as a step.
sent() {
    local words
    while read -r -a words; do [ "${words[0]}" != line: ] || bytes=${words[9]}; done <"/proc/$running/net/dev"
}
logged() {
    local text
    over=0
    while read -r text; do [[ $text != '{"type":"step"'* ]] || over=$((over + 1)); done <"$scratch/train/log.jsonl"
}
start training train "${model[@]}" --batch-size 4 --steps "$steps" --check-replicas 0 --out-dir "$scratch/train"
# The bytes between two moments: communication follows compute in a step, so one has hardly begun when the log has
# just got a line.
marks=() last=0
while kill -0 "$running" 2>/dev/null; do
    if logged 2>/dev/null && [ "$over" -gt "$last" ] && sent 2>/dev/null; then
        last=$over
        marks+=("$over $bytes")
    fi
    sleep 0.01
done
finish training
[ ${#marks[@]} -ge 4 ] || fail 1 "this machine is too busy to watch the line: only ${#marks[@]} steps were seen in time"
grep -E '^(model|data|ranks):|^ *[0-9]+ ranks' "$scratch/training" || true
python3 - "$scratch/train/log.jsonl" "$scratch/training" "$bits_per_s" "${marks[1]}" "${marks[-2]}" <<'PYTHON'
import json, re, statistics, sys
log, output, bits_per_s, first, last = sys.argv[1:]
steps = [record for record in map(json.loads, open(log, encoding="utf-8")) if record["type"] == "step"][3:]
parameters = float(re.search(r"model: ([\d.]+)M parameters", open(output, encoding="utf-8").read())[1]) * 1e6
# Of each of two buffers, a host sends the half that is the other's: of gradients, then of weights, 4 bytes each.
sent = 2 * 4 * parameters / 2
(step_a, bytes_a), (step_b, bytes_b) = (map(int, mark.split()) for mark in (first, last))
on_line = (bytes_b - bytes_a) / (step_b - step_a)
seconds = 8 * sent / float(bits_per_s)
measured = statistics.median(step["comm_ms"] for step in steps)
print(f"""
| of a step, median of {len(steps)} | computed | measured |
|---|--:|--:|
| bytes that a host sends, MB | {sent / 1e6:.2f} | {on_line / 1e6:.2f} |
| reduce-scatter and all-gather, ms | {seconds * 1e3:.1f} | {measured:.1f} |
| the whole step, ms | | {statistics.median(step["ms"] for step in steps):.1f} |

computed: parameters x 4 bytes x (hosts - 1) / hosts, twice, and that over the rate of the line. Measured on the line:
headers and acknowledgements as well; ms: as the trainer logs it on rank 0, waiting for the other rank included.""")
PYTHON

echo "== a straggler: the second host stands still for two thirds of the time"
start straggler train "${model[@]}" --batch-size 4 --steps "$steps" --check-replicas 5 --out-dir "$scratch/slow"
# By signals: programs beside it would slow down the first host as well, where cores are few.
while kill -0 "$running" 2>/dev/null; do
    for signal in STOP CONT; do
        # shellcheck disable=SC2046
        kill -"$signal" $(ip netns pids "${hosts[1]}") 2>/dev/null || true
        if [ "$signal" = STOP ]; then sleep 0.2; else sleep 0.1; fi
    done
done
finish straggler
grep -m 1 'rank 1 is slow' "$scratch/straggler" || fail 1 "no warning named rank 1, which was slow"
