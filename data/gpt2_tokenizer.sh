#!/usr/bin/env bash
# GPT-2's tokenizer: vocab.bpe, the list of its merges, from which all ids follow (MIT, OpenAI), as data/gpt2/vocab.bpe;
# when installed, in ~/.cache/anvil/.
#
#   data/gpt2_tokenizer.sh       what data/tokenize --tokenizer gpt2 calls; the last line of the output is the file
#
# From the folder $ANVIL_MIRROR if that is set, else from the network, unless it is there already. Its sha256 is verified
# in every case. Exit code 2: it cannot be had.
set -euo pipefail
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ $# = 0 ] || fail "$1: expected no arguments"

is_it() { has_sha256 "$1" 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5; }
get "$kept/gpt2/vocab.bpe" https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe is_it \
    "GPT-2's merges, 456318 bytes"
realpath "$kept/gpt2/vocab.bpe"
