#!/usr/bin/env bash
# Tiny Shakespeare (1.1 MB of plays, public domain) as token shards in data/tinyshakespeare/.
#
#   data/tinyshakespeare.sh [FLAGS]      FLAGS are data/tokenize's; without any --tokenizer char: 65 symbols, as nanoGPT's
#                                        shakespeare_char
#
# The text comes from the folder $ANVIL_MIRROR if that is set, else from the network, unless it is there already. Its
# sha256 is verified in every case. Exit code 2: the text cannot be had, or a flag is wrong.
set -euo pipefail
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

case ${1-} in -h | --help) usage && exit 0 ;; esac
[ -x "$tokenize" ] || fail "data/tokenize is missing: run make first"
[ $# -gt 0 ] || set -- --tokenizer char

text=data/tinyshakespeare/tinyshakespeare.txt
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
is_it() { has_sha256 "$1" 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed; }
get $text $url is_it "tiny Shakespeare, 1115394 bytes"
exec "$tokenize" $text "$@" --out data/tinyshakespeare
