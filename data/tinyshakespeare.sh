#!/usr/bin/env bash
# Tiny Shakespeare (1.1 MB of plays, public domain) as token shards in data/tinyshakespeare/.
#
#   data/tinyshakespeare.sh [--tokenizer char|byte]      char is the default: 65 symbols, as nanoGPT's shakespeare_char
#
# The text comes from the folder $ANVIL_MIRROR if that is set, else from an earlier download, else from the network.
# Its sha256 is verified in every case. Exit code 2: the text cannot be had, or a flag is wrong.
set -euo pipefail

name=tinyshakespeare.txt
bytes=1115394
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt

fail() {
    echo "error: $*" >&2
    exit 2
}

tokenizer=char
while [ $# -gt 0 ]; do
    case $1 in
        --tokenizer) tokenizer=${2-} && shift ;;
        --tokenizer=*) tokenizer=${1#*=} ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) fail "$1: expected --tokenizer char or --tokenizer byte" ;;
    esac
    shift || break
done
case $tokenizer in char | byte) ;; *) fail "--tokenizer $tokenizer: expected char or byte" ;; esac

mirror=${ANVIL_MIRROR-}
[ -z "$mirror" ] || mirror=$(realpath --canonicalize-missing "$mirror")
cd "$(dirname "$(realpath "$0")")/.."
[ -x data/prepare ] || fail "data/prepare is missing: run make first"

verified() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

folder=data/tinyshakespeare
text=$folder/$name
mkdir -p "$folder"
trap 'rm -f "$text.part"' EXIT
if [ -n "$mirror" ]; then
    [ -f "$mirror/$name" ] || fail "$mirror/$name: no such file; put the text there, or unset ANVIL_MIRROR to download it"
    cp --no-preserve=mode "$mirror/$name" "$text.part"
    verified "$text.part" || fail "$mirror/$name is not tiny Shakespeare: expected $bytes bytes with the sha256 $sha256"
    mv "$text.part" "$text"
elif ! verified "$text"; then
    [ ! -e "$text" ] || echo "$text is damaged: downloading it again"
    command -v curl > /dev/null || fail "curl is missing: install it (apt-get install curl), or set ANVIL_MIRROR to a folder with $name"
    echo "downloading tiny Shakespeare, $bytes bytes, from $url"
    curl -fL --retry 2 --connect-timeout 20 --silent --show-error -o "$text.part" "$url" ||
        fail "cannot download $url: is there a network? Set ANVIL_MIRROR to a folder with $name, or train on built-in text: data/prepare --stories 2000000 --out data/stories"
    verified "$text.part" || fail "$url gave something else: expected $bytes bytes with the sha256 $sha256"
    mv "$text.part" "$text"
fi
data/prepare "$text" --tokenizer "$tokenizer" --out "$folder"
