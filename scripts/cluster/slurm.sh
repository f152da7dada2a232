#!/usr/bin/env bash
# A Slurm job that trains on all GPUs of its nodes, and is requeued after the time limit or the failure of a node.
#
#   sbatch --nodes 4 --time 12:00:00 scripts/cluster/slurm.sh --model gpt2-1558M --out-dir run/large ...
#
# Flags before the script are sbatch's and override those below; flags after it are train_gpt's. Submit from the folder of
# train_gpt. All nodes must see it, the data and --out-dir. See also doc/distributed/failures.md, "Restart by itself".
#
# A job that has lost a rank is requeued, at most ANVIL_MAX_REQUEUES times (10). The node of the lost rank is written to
# OUT_DIR/lost_nodes; a later attempt that gets it again leaves it out, and trains on the others. Run
# `rm OUT_DIR/lost_nodes` when the node is repaired.
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
export LC_ALL=C
: "${SLURM_JOB_ID:?is not set: submit this script with sbatch}"

# --out-dir, of which the command line counts first, then a line of --config FILE.
out_dir='' config=''
arguments=("$@")
while [ $# -gt 0 ]; do
    case ${1//_/-} in
        --out-dir) out_dir=${2-} ;;
        --out-dir=*) out_dir=${1#*=} ;;
        --config) config=${2-} ;;
        --config=*) config=${1#*=} ;;
    esac
    shift
done
if [ -z "$out_dir" ] && [ -n "$config" ]; then
    out_dir=$(sed -nE "s/^[\"[:space:]]*out[-_]dir\"?[[:space:]]*[=:][[:space:]]*[\"']?([^\"'#]*[^\"'#,[:space:]]).*/\\1/p" "$config" | tail -n 1)
fi
out_dir=${out_dir:-run/default}
mkdir -p "$out_dir"
lost_nodes=$out_dir/lost_nodes
touch "$lost_nodes"

# This job's nodes in rank order, without those that an earlier attempt has lost.
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

# One rank per task; its number on the node selects its GPU. --kill-on-bad-exit: a failed rank ends all others. Two minutes
# before the time limit Slurm sends SIGUSR1 to all ranks, which save a checkpoint and end with code 0.
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
    # The run was stopped before its end.
    if tail -n 1 "$out_dir/log.jsonl" | grep -q '"reason":"\(SIGUSR1\|a signal\)'; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit 0
fi

# srun's exit code is the highest of all tasks', which is 137 for tasks that srun itself has killed. So the messages tell
# whether a rank was lost, and which: "rank 3 (10.0.0.2:41000) is gone", "rank 3 (pid 77) has died", "not there yet: rank 3".
# A rank's own error (a wrong flag, a full disk) names no rank, and another attempt would not help.
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
