#!/usr/bin/env bash
# A Slurm job that trains on all GPUs of some nodes, and goes on by itself where the time limit or a failing node ends it.
#
#   sbatch --nodes 4 --time 12:00:00 scripts/slurm.sh --model gpt2-1558M --out-dir run/large ...
#
# Flags before the script are sbatch's and win over those below; flags after it are train_gpt's. Submit from the folder of
# train_gpt, which all nodes must see, data and --out-dir too. doc/distributed/failures.md, "Restart by itself", tells the rest.
#
# A run that has lost a rank goes back into the queue, ANVIL_MAX_REQUEUES times (10) at most. The node of the rank that is
# named is written into OUT_DIR/lost_nodes; a later try that gets it again leaves it out, and trains with the others.
# `rm OUT_DIR/lost_nodes` when the node is well again.
#
#SBATCH --job-name=train_gpt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
set -euo pipefail
: "${SLURM_JOB_ID:?is not set: submit this script with sbatch}"

out_dir=run/default
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --out-dir) out_dir=${2-} ;;
        --out-dir=*) out_dir=${1#*=} ;;
    esac
    shift
done
mkdir -p "$out_dir"
lost_nodes=$out_dir/lost_nodes
touch "$lost_nodes"

# Of this job's nodes, in the order of their ranks, those that no try has lost.
mapfile -t all_nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes < <(printf '%s\n' "${all_nodes[@]}" | grep -vxFf "$lost_nodes" || true)
fewer=()
if [ ${#nodes[@]} -lt ${#all_nodes[@]} ]; then
    if [ ${#nodes[@]} -eq 0 ]; then
        echo "error: $lost_nodes names all nodes of this job: submit it with more, or remove the file" >&2
        exit 3
    fi
    echo "without the nodes that $lost_nodes names: on ${nodes[*]}" >&2
    fewer=(--nodes="${#nodes[@]}" --ntasks="$((${#nodes[@]} * SLURM_NTASKS_PER_NODE))" --nodelist="$(IFS=, && echo "${nodes[*]}")")
fi

# A rank for each task, GPUs by its number on the node. --kill-on-bad-exit: one that fails ends all. Two minutes before the
# limit Slurm sends SIGUSR1 to all ranks, which save a checkpoint and end with code 0.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
set +e
{
    srun "${fewer[@]}" --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 ./train_gpt --resume auto "${arguments[@]}" \
        2>&1 >&3 3>&- | tee "$errors" >&2 3>&-
    code=${PIPESTATUS[0]}
} 3>&1
set -e

if [ "$code" -eq 0 ]; then
    # Stopped, not finished: back into the queue.
    if tail -n 1 "$out_dir/log.jsonl" | grep -q '"reason":"\(SIGUSR1\|a signal\)'; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit 0
fi

# srun's exit code is the highest of all tasks', and of those that it has killed itself 137. So what they said tells
# whether a rank was lost, and which: "rank 3 (10.0.0.2:41000) is gone", "rank 3 (pid 77) has died", "not there yet: rank 3".
# The error of a rank's own (a wrong flag, a full disk) names none, and another try would not help.
lost=$(grep -oE 'rank [0-9]+ (\([^)]*\) )?(is gone|has died|did not come)|not there yet: rank [0-9]+' "$errors" | head -n 1 | grep -oE '[0-9]+' | head -n 1 || true)
if [ -z "$lost" ] && [ "$code" -ne 3 ]; then exit "$code"; fi
if [ "${SLURM_RESTART_COUNT:-0}" -ge "${ANVIL_MAX_REQUEUES:-10}" ]; then
    echo "error: a rank was lost, and the job has been requeued $SLURM_RESTART_COUNT times (ANVIL_MAX_REQUEUES)" >&2
    exit "$code"
fi
if [ -n "$lost" ] && [ ${#all_nodes[@]} -gt 1 ]; then
    node=${nodes[$((lost / SLURM_NTASKS_PER_NODE))]-}
    echo "rank $lost was lost, on ${node:-an unknown node}: the job goes back into the queue" >&2
    if [ -n "$node" ]; then echo "$node" >>"$lost_nodes"; fi
fi
scontrol requeue "$SLURM_JOB_ID"
