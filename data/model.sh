#!/usr/bin/env bash
# A model of the Hugging Face hub, for --init-from, which calls this for the names below: the safetensors, config.json
# and the tokenizer, in the hub's own cache and layout, which transformers shares.
#
#   data/model.sh NAME           the only line of standard output is the folder; NAME also OWNER/NAME of any other
#   data/model.sh --names        the names it knows
#
# Each file is verified: by the checksum that the hub tells with it, and by the sha256 in data/models.lock, which is written
# when a model is first got and holds it at that revision from then on. To follow the hub again, remove its lines there.
# (When installed, the file is ~/.cache/anvil/models.lock.) What is there is kept, and a download that was cut goes on.
# Honored: HF_ENDPOINT, HF_HOME and HF_HUB_CACHE; with ANVIL_MIRROR the folder NAME in it is taken as it lies there. Exit
# code 2: it cannot be had, or is not what it was.
set -euo pipefail
here=$PWD
# shellcheck source=data/fetch.sh
. "$(dirname "$(realpath "$0")")/fetch.sh"

known=(
    openai-community/{gpt2,gpt2-medium,gpt2-large,gpt2-xl}
    HuggingFaceTB/{SmolLM2-135M,SmolLM2-360M,SmolLM2-1.7B}{,-Instruct} HuggingFaceTB/SmolLM3-3B{-Base,}
    Qwen/{Qwen2.5-0.5B,Qwen2.5-1.5B}{,-Instruct} Qwen/Qwen3-0.6B{-Base,}
)
case ${1-} in
    -h | --help) usage && exit 0 ;;
    --names) printf '%s\n' "${known[@]##*/}" && exit 0 ;;
esac
[ $# = 1 ] || fail "expected one name of a model, such as gpt2 or OWNER/NAME"
repository=
for one in "${known[@]}"; do
    if [ "$1" = "${one##*/}" ] || [ "$1" = "$one" ]; then repository=$one; fi
done
[[ -n $repository || ! $1 =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+$ ]] || repository=$1
[ -n "$repository" ] || fail "$1: expected OWNER/NAME of the hub, or one of ${known[*]##*/}"

exec 3>&1 >&2 # what is said is not the answer
lock=$kept/models.lock
weights=model.safetensors index=model.safetensors.index.json
others=(tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json special_tokens_map.json)

# What the lock has of this model: "SHA256  OWNER/NAME@COMMIT/FILE" lines.
locked() { [ ! -f "$lock" ] || awk -v r="$repository@" 'index($2, r) == 1' "$lock"; }
commit=$(locked | sed -n '1s/.*@\([^/]*\).*/\1/p')
sha256_of() { sha256sum -- "$1" | cut -c -64; }
locked_sha256() { locked | awk -v f="$repository@$commit/$1" '$2 == f { print $1 }'; }
check_lock() {
    local sum
    sum=$(locked_sha256 "$1")
    [ -z "$sum" ] || [ "$(sha256_of "$2")" = "$sum" ] ||
        fail "$2 is not what $lock has, sha256 $sum: remove it to get it again, or the lines of $repository there to take it"
}
parts() { grep -o '"[^"/]*\.safetensors"' "$1" | tr -d '"' | sort -u; }

if [ -n "$mirror" ]; then
    folder=$mirror/${repository##*/}
    [ -f "$folder/config.json" ] || fail "$folder/config.json: no such file; put the model there, or unset ANVIL_MIRROR to download it"
    for file in "$folder"/*; do check_lock "${file##*/}" "$file"; done
    echo "$folder" >&3
    exit
fi

cache=${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}
store=$(cd "$here" && realpath --canonicalize-missing "$cache")/models--${repository//\//--}
[ -n "$commit" ] || [ ! -f "$store/refs/main" ] || commit=$(<"$store/refs/main")

# ask FILE: what the hub says of it, in $status, $etag and $revision; 0 in $status: nobody answers
ask() {
    local url=$hub/$repository/resolve/${commit:-main}/$1
    command -v curl >/dev/null || fail "curl is missing: install it (apt-get install curl), or set ANVIL_MIRROR"
    # The first answer knows the file; those after it are of the machine that keeps it.
    read -r status etag revision < <(curl -sIL --retry 2 --connect-timeout 20 "$url" | tr -d '\r"' | awk '
        BEGIN { status = 0; linked = etag = revision = "-" }
        /^HTTP\// { status = $2 }
        tolower($1) == "x-linked-etag:" && linked == "-" { linked = $2 }
        tolower($1) == "etag:" { etag = $2; sub(/^W\//, "", etag) }
        tolower($1) == "x-repo-commit:" && revision == "-" { revision = $2 }
        END { print (linked == "-" ? status : 200), (linked == "-" ? etag : linked), revision }')
    case $status in
        0 | 200 | 404) ;;
        401 | 403) fail "$repository: the hub answers $status: is the name right? If it wants to know who asks, get it by hand (hf download $repository --local-dir ${repository##*/}) and give the folder" ;;
        *) fail "$url: the hub answers $status: try again later" ;;
    esac
}
no_network() {
    fail "$hub does not answer, and $repository is not all here: is there a network? Else set HF_ENDPOINT, or ANVIL_MIRROR to a folder with ${repository##*/} in it"
}

# The hub's name for a file's content: sha256 where it keeps it apart, else git's.
is_checksum() { [[ $etag =~ ^([0-9a-f]{40}|[0-9a-f]{64})$ ]]; }
is_content() {
    [ -f "$1" ] || return 1
    if [ ${#etag} = 64 ]; then has_sha256 "$1" "$etag"; else
        [ "$({ printf 'blob %d\0' "$(stat -Lc %s "$1")" && cat "$1"; } | sha1sum | cut -c -40)" = "$etag" ]
    fi
}

new=()     # lines for the lock
unknown='' # files that nobody could be asked for
# need FILE: into the snapshot, verified. false: the hub has none, or does not answer
need() {
    local link=$store/snapshots/$commit/$1 etag=
    [ ! -L "$link" ] || etag=$(basename "$(readlink "$link")")
    if ! is_checksum || ! is_content "$link"; then
        ask "$1"
        [ "$status" != 0 ] || unknown+=" $1"
        [ "$status" = 200 ] || return 1
        is_checksum || fail "$hub does not tell the checksum of $1: is HF_ENDPOINT right?"
        get "$store/blobs/$etag" "$hub/$repository/resolve/$commit/$1" is_content "what $repository has by this name" "$1"
        mkdir -p "${link%/*}"
        ln -sfn "../../blobs/$etag" "$link"
    fi
    check_lock "$1" "$link"
    new+=("$(sha256_of "$link")  $repository@$commit/$1")
}
must() {
    need "$1" && return
    [ -z "$unknown" ] || no_network
    fail "$hub has no $1 in $repository${commit:+ at revision $commit}${2-}"
}

if [ -z "$commit" ]; then
    ask config.json
    [ "$status" != 0 ] || no_network
    [ "$status" = 200 ] || fail "$hub has no $repository with a config.json: is the name right?"
    [[ $revision =~ ^[0-9a-f]{40}$ ]] || fail "$hub does not tell the revision of $repository: is HF_ENDPOINT right?"
    commit=$revision
fi
snapshot=$store/snapshots/$commit
must config.json
if [ -e "$snapshot/$index" ] || ! need $weights; then
    must $index ", and no $weights: only that format of weights is read here"
    for file in $(parts "$snapshot/$index"); do must "$file"; done
fi
if [ -n "$(locked)" ]; then
    for file in "${others[@]}"; do [ -z "$(locked_sha256 "$file")" ] || must "$file"; done
else
    for file in "${others[@]}"; do need "$file" || true; done
    # Without a network, what another program got is taken, but a list of all files is not made of it.
    if [ -z "$unknown" ]; then
        mkdir -p "$kept"
        { [ ! -f "$lock" ] || cat "$lock"; printf '%s\n' "${new[@]}"; } >"$lock.part"
        mv "$lock.part" "$lock"
        mkdir -p "$store/refs"
        printf %s "$commit" >"$store/refs/main"
    fi
fi
echo "$snapshot" >&3
