#!/usr/bin/env bash
# CORE's 22 tasks (a part of DCLM; Li et al., 2024, arXiv:2406.11794) as nanochat publishes them, unpacked as
# data/core/eval_bundle. scripts/make_core.py makes what train_gpt reads of it.
#
#   data/core.sh                 the last line of the output is the folder
#
# eval_bundle.zip comes from the folder $ANVIL_MIRROR if that is set, else from the network, unless it is there already;
# every file in it must have the checksum that the archive gives. Exit code 2: it cannot be had.
set -euo pipefail
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ $# = 0 ] || fail "$1: expected no arguments"

is_it() { [ -f "$1" ] && [ "$(python3 -I -m zipfile -t "$1" 2>/dev/null)" = "Done testing" ]; }
get data/core/eval_bundle.zip https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip is_it \
    "CORE's questions, an intact archive"
if [ ! -d data/core/eval_bundle ]; then
    rm -rf data/core/unpacking
    python3 -I -m zipfile -e data/core/eval_bundle.zip data/core/unpacking
    [ -f data/core/unpacking/eval_bundle/core.yaml ] ||
        fail "data/core/eval_bundle.zip holds no eval_bundle/core.yaml: it is another archive; delete it and run this again"
    mv data/core/unpacking/eval_bundle data/core/
    rm -rf data/core/unpacking
fi
realpath data/core/eval_bundle
