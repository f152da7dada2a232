#!/usr/bin/env bash
# TinyStories (Eldan and Li, 2023, arXiv:2305.07759; CDLA-Sharing-1.0): 2.7 million little stories of GPT-4's, as token
# shards in data/tinystories/.
#
#   data/tinystories.sh [FLAGS]      FLAGS are data/tokenize's; without any --train-tokenizer --vocab-size 4096
#
# Its two files, 2.2 GB to train on and 23 MB to validate on, come from the folder $ANVIL_MIRROR if that is set, else from
# Hugging Face ($HF_ENDPOINT is honored), whose sha256 of them is verified. What is there is kept, and a download that was
# cut goes on. Exit code 2: they cannot be had, or a flag is wrong.
set -euo pipefail
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ -x "$tokenize" ] || fail "data/tokenize is missing: run make first"
[ $# -gt 0 ] || set -- --train-tokenizer --vocab-size 4096

folder=data/tinystories
names=(TinyStoriesV2-GPT4-train.txt TinyStoriesV2-GPT4-valid.txt)
sha256=
is_it() { [ -s "$1" ] && { [ -z "$sha256" ] || has_sha256 "$1" "$sha256"; } && grep -aqm 1 '<|endoftext|>' "$1"; }

echo "TinyStories: 2.2 GB of text, and about 2 GB of tokens, into $folder"
for name in "${names[@]}"; do
    [ ! -s "$folder/$name" ] || continue # it got this name when it was verified
    url=$hub/datasets/roneneldan/TinyStories/resolve/main/$name
    [ -n "$mirror" ] || sha256=$(hub_sha256 "$url")
    get "$folder/$name" "$url" is_it "what TinyStories has by this name"
done
exec "$tokenize" "$folder/${names[0]}" --val-input "$folder/${names[1]}" --document-separator '<|endoftext|>' "$@" \
    --out $folder
