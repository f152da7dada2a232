#!/usr/bin/env bash
# What the scripts of this folder share: a file is got once, goes on where it was cut, and counts when it is verified.
# They source this; it does nothing by itself.
#
#   get FILE URL CHECK WHAT [NAME]   unless CHECK FILE is true: from the folder $ANVIL_MIRROR if that is set, else by curl
#                                    NAME: what messages and the mirror call it, else as FILE
#   $hub                             Hugging Face, or what HF_ENDPOINT says
#   hub_sha256 URL                   the sha256 that the hub has for a large file there
#   $tokenize                        data/tokenize, or the installed anvil-tokenize
#   $kept                            the folder of what the programs themselves ask for: data, or that of an installation
#
# Sourcing it goes to the repository's folder. Scripts that `make install` has put into PREFIX/share/anvil/data stay in the
# working directory and make data/ there. A relative $ANVIL_MIRROR is meant from where the script was started.
# shellcheck disable=SC2034  # for those who source this

fail() {
    echo "error: $*" >&2
    exit 2
}

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

export LC_ALL=C # of awk, sort and printf
mirror=${ANVIL_MIRROR-}
[ -z "$mirror" ] || mirror=$(realpath --canonicalize-missing "$mirror")
hub=${HF_ENDPOINT:-https://huggingface.co}
hub=${hub%/}
root=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
tokenize=data/tokenize kept=data
if [ "${root: -12}" = /share/anvil ] && [ -x "${root%/share/anvil}/bin/anvil-tokenize" ]; then
    tokenize=${root%/share/anvil}/bin/anvil-tokenize kept=${XDG_CACHE_HOME:-$HOME/.cache}/anvil
else
    cd "$root"
fi

# hub_sha256 URL: what the hub says of a file that it keeps apart from the repository.
hub_sha256() {
    local sum
    sum=$(curl -sI --connect-timeout 20 "$1" | tr -d '\r"' | awk 'tolower($1) == "x-linked-etag:" { print $2 }')
    [ ${#sum} = 64 ] || fail "$1: the server does not tell its sha256; is there a network? is HF_ENDPOINT right?"
    echo "$sum"
}

has_sha256() { [ -f "$1" ] && echo "$2  $1" | sha256sum --check --status; }

# download FILE URL: the rest of it, if there is a beginning
download() { curl -fL --retry 5 --connect-timeout 20 --silent --show-error -C - -o "$1" "$2"; }

get() {
    local file=$1 url=$2 check=$3 what=$4 name=${5:-${1##*/}}
    if "$check" "$file"; then return; fi
    [ ! -e "$file" ] || echo "$file is damaged: getting it again"
    mkdir -p "$(dirname "$file")"
    if [ -n "$mirror" ]; then
        [ -f "$mirror/$name" ] || fail "$mirror/$name: no such file; put it there, or unset ANVIL_MIRROR to download it"
        cp --no-preserve=mode --reflink=auto "$mirror/$name" "$file.part"
    elif ! "$check" "$file.part"; then
        command -v curl >/dev/null || fail "curl is missing: install it (apt-get install curl), or set ANVIL_MIRROR"
        echo "downloading $name ($what) from $url"
        local status=0
        download "$file.part" "$url" || status=$?
        # 33, 36: this server cannot go on in the middle of a file.
        if [[ $status =~ ^3[36]$ ]]; then
            rm -f "$file.part"
            status=0 && download "$file.part" "$url" || status=$?
        fi
        [ "$status" = 0 ] || fail "cannot download $url: run this again to go on, or set ANVIL_MIRROR to a folder with $name"
    fi
    if ! "$check" "$file.part"; then
        rm -f "$file.part"
        fail "${mirror:-${url%/*}}/$name is not $what, or was cut: run this again"
    fi
    mv "$file.part" "$file"
}
