#!/usr/bin/env bash
# A Slurm job that trains on all GPUs of some nodes, and goes on by itself where the time limit or a failing node ends it.
#
#   sbatch --nodes 4 --time 12:00:00 scripts/slurm.sh --model gpt2-1558M --out-dir run/large ...
#
# Flags before the script are sbatch's and win over those below; flags after it are train_gpt's. Submit from the folder of
# train_gpt, which all nodes must see, data and --out-dir too. doc/distributed.md, "Launching", tells the rest.
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

# A rank for each task, GPUs by its number on the node. --kill-on-bad-exit: one that fails ends all. Two minutes before the
# limit Slurm sends SIGUSR1 to all ranks, which save a checkpoint and end with code 0.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 ./train_gpt --resume auto "$@"

# Stopped, not finished: back into the queue. After an error the script has ended with srun's exit code.
out_dir=run/default
while [ $# -gt 0 ]; do
    case $1 in
        --out-dir) out_dir=${2-} ;;
        --out-dir=*) out_dir=${1#*=} ;;
    esac
    shift
done
if tail -n 1 "$out_dir/log.jsonl" | grep -q '"reason":"\(SIGUSR1\|a signal\)'; then
    scontrol requeue "$SLURM_JOB_ID"
fi
