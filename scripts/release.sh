#!/usr/bin/env bash
# Builds a release: the source and the installed programs as tarballs, and their checksums.
#
#   scripts/release.sh [--out DIR]       build/release by default; NO_BUILD=1: uses ./train_gpt and data/tokenize as they are
#
# The version is that of the file VERSION; CHANGELOG.md and CITATION.cff must name it. The source tarball contains its commit
# in BUILD_ID, because it is no git repository. To verify: sha256sum -c SHA256SUMS.
# Exit code 2: a change is not committed, a file names another version, or the programs need a newer system than Debian 12 and
# Ubuntu 22.04, on one of which a release is built.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

out=build/release
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2-} && shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "error: $1: expected --out DIR" >&2 && exit 2 ;;
    esac
    shift || break
done
[ -n "$out" ] || { echo "error: --out: expected a folder" >&2 && exit 2; }

version=$(cat VERSION)
grep -q "^## $version" CHANGELOG.md || { echo "error: CHANGELOG.md has no heading '## $version': write what is new" >&2 && exit 2; }
grep -q "^version: $version$" CITATION.cff || { echo "error: CITATION.cff names another version than $version" >&2 && exit 2; }
if [ -n "$(git status --porcelain)" ]; then
    echo "error: there are changes that are not committed: a release is a commit (git status)" >&2
    exit 2
fi

mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
name=anvil-$version
git describe --always >"$scratch/BUILD_ID"
git archive --prefix="$name/" --add-file="$scratch/BUILD_ID" HEAD | gzip -n -9 >"$out/$name.tar.gz"

[ "${NO_BUILD-}" = 1 ] || make -j"$(nproc)"
machine=$name-linux-$(uname -m)
DESTDIR=$scratch/$machine PREFIX=/ scripts/install.sh >/dev/null
strip "$scratch/$machine/bin/train_gpt" "$scratch/$machine/bin/anvil-tokenize"
dev/lint/check_symbols.sh "$scratch/$machine/bin/train_gpt" "$scratch/$machine/bin/anvil-tokenize"
# Reproducible: the same commit yields the same bytes, with sorted names, no owner, and the commit's time.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "$scratch" -c "$machine" |
    gzip -n -9 >"$out/$machine.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" "$machine.tar.gz" >SHA256SUMS)
cat "$out/SHA256SUMS"
