#!/usr/bin/env bash
# HellaSwag's validation set (Zellers et al., 2019, arXiv:1905.07830; MIT): 10,042 questions with four endings each, one
# JSON object a line, as data/hellaswag/hellaswag_val.jsonl. scripts/make_hellaswag.py makes what train_gpt reads of it.
#
#   data/hellaswag.sh            12 MB; the last line of the output is the file
#
# From the folder $ANVIL_MIRROR if that is set, else from the network, unless it is there already. It must be the file
# that its authors' repository names, by git's checksum. Exit code 2: it cannot be had.
set -euo pipefail
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ $# = 0 ] || fail "$1: expected no arguments"

blob=0f5ee25d72216f12317d5d8a7b92deafa423d81e
is_it() {
    [ -f "$1" ] || return 1
    local sum
    sum=$({ printf 'blob %d\0' "$(stat -c %s "$1")" && cat "$1"; } | sha1sum)
    [ "${sum%% *}" = "$blob" ]
}
get data/hellaswag/hellaswag_val.jsonl \
    https://raw.githubusercontent.com/rowanz/hellaswag/a29ff8e9a04bba4bd6588223785ce105328adc57/data/hellaswag_val.jsonl \
    is_it "HellaSwag's validation set"
realpath data/hellaswag/hellaswag_val.jsonl
