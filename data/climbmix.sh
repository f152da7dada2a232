#!/usr/bin/env bash
# ClimbMix (NVIDIA; shuffled and cut into files by A. Karpathy), the text that nanochat trains on: about 100 MB of
# .parquet and 250M characters a file, the last of 6543 for validation.
#
#   data/climbmix.sh [N] [--out DIR]      N files to train on and that one; 8 unless told otherwise
#
# data/tokenize reads them where python3 has pyarrow. They come from the folder $ANVIL_MIRROR if that is set, else from
# Hugging Face ($HF_ENDPOINT is honored). Files that are there and whole are kept, and a download that was cut goes on.
# Exit code 2: a file cannot be had, or a flag is wrong. The last line of the output is the folder.
set -euo pipefail
here=$PWD
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

shards=8 folder=data/climbmix
while [ $# -gt 0 ]; do
    case $1 in
        --out) folder=$(cd "$here" && realpath --canonicalize-missing "${2-}") && shift ;;
        -h | --help) usage && exit 0 ;;
        -*) fail "$1: expected a number of files, or --out DIR" ;;
        *) shards=$1 ;;
    esac
    shift || break
done
[[ $shards =~ ^[1-9][0-9]{0,3}$ ]] && [ "$shards" -le 6542 ] || fail "'$shards' files: expected 1 to 6542"

# Begins and ends as the format says, and a download is what the hub has.
sha256=
whole() { [ -f "$1" ] && [ "$(head -c 4 "$1")$(tail -c 4 "$1")" = PAR1PAR1 ] && { [ -z "$sha256" ] || has_sha256 "$1" "$sha256"; }; }
echo "ClimbMix: $shards files to train on and one to validate on, about $(((shards + 1) / 10)).$(((shards + 1) % 10)) GB, into $folder"
for i in 6542 $(seq 0 $((shards - 1))); do
    name=$(printf 'shard_%05d.parquet' "$i")
    sha256= url=$hub/datasets/karpathy/climbmix-400b-shuffle/resolve/main/$name
    [ -n "$mirror" ] || whole "$folder/$name" || sha256=$(hub_sha256 "$url")
    get "$folder/$name" "$url" whole "a whole .parquet file, as the hub has it"
done
echo "$folder"
