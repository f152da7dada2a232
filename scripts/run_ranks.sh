#!/usr/bin/env bash
# Runs a command as N ranks on this machine, with mpirun if N is more than one.
#
#   scripts/run_ranks.sh N COMMAND [FLAGS]
#
# Exit code 2: mpirun is missing.
set -euo pipefail
export LC_ALL=C
ranks=$1 && shift
[ "$ranks" -gt 1 ] || exec "$@"
command -v mpirun >/dev/null || {
    echo "error: mpirun is missing, which starts $ranks ranks: scripts/setup.sh --tests installs it" >&2
    exit 2
}
# Allows root and more ranks than cores. The variables are those of Open MPI 4 and 5.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
exec mpirun -np "$ranks" --bind-to none "$@"
