#!/usr/bin/env bash
# FineWeb as token shards of GPT-2's vocabulary, as published in llm.c's format: about 200 MB and 100M tokens per file.
#
#   data/fineweb.sh [10B|100B|edu] [N] [--shards N] [--out DIR] [--list]
#
# N files to train on and one to validate on; 18 unless told otherwise. 10B and 100B are samples of FineWeb, up to 103 and
# 1030 files; edu is of FineWeb-Edu, up to 99. Unless told which: 10B, or 100B for more than 103. They go to
# data/fineweb10B and so on. With --list only the one to validate on comes, and shards.json, the list of all: train_gpt brings
# the others itself, with the --fetch that is printed, on a disk without room for them.
#
# Files that are there and whole are kept, and a download that was cut goes on where it stopped. They come from the folder
# $ANVIL_MIRROR if that is set, else from Hugging Face ($HF_ENDPOINT is honored). Exit code 2: a file cannot be had or is
# damaged, or a flag is wrong. The last line of the output is the folder.
set -euo pipefail
here=$PWD
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

shards=18 folder='' sample='' list=''
while [ $# -gt 0 ]; do
    case $1 in
        10B | 100B | edu) sample=$1 ;;
        --shards) shards=${2-} && shift ;;
        --shards=*) shards=${1#*=} ;;
        --out) folder=${2-} && shift ;;
        --out=*) folder=${1#*=} ;;
        --list) list=1 ;;
        -h | --help) usage && exit 0 ;;
        [0-9]*) shards=$1 ;;
        *) fail "$1: expected --shards, --out, --list, a number of files, or 10B, 100B or edu" ;;
    esac
    shift || break
done
[[ $shards =~ ^[1-9][0-9]{0,3}$ ]] && [ "$shards" -le 1030 ] || fail "--shards '$shards': expected 1 to 1030"
[ -n "$sample" ] || { [ "$shards" -le 103 ] && sample=10B || sample=100B; }
case $sample in
    10B) most=103 name=fineweb repository=fineweb10B title="FineWeb's 10B sample" ;;
    100B) most=1030 name=fineweb repository=fineweb100B title="FineWeb's 100B sample" ;;
    edu) most=99 name=finewebedu repository=finewebedu10B title="FineWeb-Edu's 10B sample" ;;
esac
[ "$shards" -le "$most" ] || fail "--shards $shards: $title has $most"
url=$hub/datasets/kjj0/$repository-gpt2/resolve/main
[ -z "$folder" ] || folder=$(cd "$here" && realpath --canonicalize-missing "$folder")
folder=${folder:-data/$repository}
mkdir -p "$folder"

# Is it a shard of 16-bit tokens, as long as its header says? (llmc/data/shards.h has the format.)
whole() {
    [ -f "$1" ] || return 1
    local magic version tokens
    read -r magic version tokens < <(od -An -td4 -N12 "$1") || return 1
    [ "$magic $version" = "20240520 1" ] && [ "$(stat -c %s "$1")" = $((1024 + 2 * tokens)) ]
}

files=("${name}_val_000000.bin")
for ((i = 1; i <= shards; i++)); do files+=("$(printf '%s_train_%06d.bin' $name "$i")"); done
if [ -n "$list" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    echo "$title: the list of $shards files to train on, and one to validate on, into $folder"
    get "$folder/${files[0]}" "$url/${files[0]}" whole "a shard of 16-bit tokens"
    # Of each file the beginning, which says how many tokens it has.
    if [ -n "$mirror" ]; then
        fetch="cp \"$mirror/\$ANVIL_SHARD\" \"\$ANVIL_SHARD_PATH\""
        for file in "${files[@]}"; do head -c 12 "$mirror/$file" >"$scratch/$file" || fail "$mirror/$file cannot be read"; done
    else
        fetch="curl -fsSL -o \"\$ANVIL_SHARD_PATH\" \"$url/\$ANVIL_SHARD\""
        printf '%s\n' "${files[@]}" |
            xargs -P 16 -I{} curl -fsSL --retry 5 --connect-timeout 20 -r 0-11 -o "$scratch/{}" "$url/{}" ||
            fail "cannot download from $url: run this again"
    fi
    for file in "${files[@]}"; do
        read -r magic version tokens < <(od -An -td4 -N12 "$scratch/$file") || true
        [ "$magic $version" = "20240520 1" ] || fail "$file is not a shard of 16-bit tokens"
        printf '  {"name": "%s", "tokens": %d, "bytes": %d},\n' "$file" "$tokens" $((1024 + 2 * tokens))
    done >"$scratch/rows"
    { printf '{\n "shards": [\n' && sed '$s/,$//' "$scratch/rows" && printf ' ]\n}\n'; } >"$folder/shards.json.tmp"
    mv "$folder/shards.json.tmp" "$folder/shards.json"
    echo "train_gpt --train-data '$folder/${name}_train_*.bin' --val-data '$folder/${name}_val_*.bin' --data-order shards --fetch '$fetch'"
    echo "$folder"
    exit 0
fi
missing=0
for file in "${files[@]}"; do [ -f "$folder/$file" ] || missing=$((missing + 1)); done
echo "$title: $shards files to train on and one to validate on; to get: $missing of 200 MB, $((missing / 5)).$((missing % 5 * 2)) GB, into $folder"
for file in "${files[@]}"; do get "$folder/$file" "$url/$file" whole "a shard of 16-bit tokens"; done
echo "$folder"
