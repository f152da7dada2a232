#!/usr/bin/env bash
# Builds a release: the source and the installed programs as tarballs, a wheel for CPUs, which needs no library but glibc's, an SBOM
# (SPDX), the notes and checksums.
#
#   scripts/release.sh [--out DIR]       build/release by default; NO_BUILD=1: uses ./train_gpt and data/tokenize as they are
#
# The wheel's tag is the oldest glibc that has all symbols of the programs in it. It needs python3-venv, and pip a network.
# The version is that of the file VERSION; CHANGELOG.md, CITATION.cff and pyproject.toml must name it. The source tarball contains its commit
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
grep -q "^version = \"$version\"$" pyproject.toml || { echo "error: pyproject.toml names another version than $version" >&2 && exit 2; }
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

# ---- the wheel: what scripts/install.sh installs, into Python's environment

# libgomp, libstdc++ and libgcc are linked in: their license allows it, and a bare system lacks them. The driver's own -lgomp, at the
# end, then adds nothing. gc-sections: parts of libstdc++.a that nothing calls need a newer glibc.
portable=build/portable
make -j"$(nproc)" VARIANT=cpu USE_MPI=0 BIN=$portable/ "$portable/train_gpt" "$portable/data/tokenize" \
    LINK_WITH='-static-libstdc++ -static-libgcc -Wl,--gc-sections,--as-needed -Wl,-Bstatic -lgomp -Wl,-Bdynamic'
mkdir "$scratch/wheel"
cp -r pyproject.toml python LICENSE "$scratch/wheel"
find "$scratch/wheel" -name __pycache__ -prune -exec rm -r {} +
DESTDIR=$scratch/wheel/root PREFIX=/ scripts/install.sh "$portable" >/dev/null
(
    cd "$scratch/wheel"
    rm root/bin/anvil-report # a link, which a wheel cannot have: `anvil report`
    strip root/bin/*
    echo '[tool.setuptools.data-files]'
    find root -type f -printf '%P\n' | sort | awk '
        {folder = $0; sub("/[^/]*$", "", folder); files[folder] = files[folder] "\"root/" $0 "\", "}
        END {for (folder in files) print "\"" folder "\" = [" files[folder] "]"}' | sort
) >"$scratch/data-files"
cat "$scratch/data-files" >>"$scratch/wheel/pyproject.toml"
needed=$(objdump -T "$scratch"/wheel/root/bin/* | grep -oE '\<GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install -q --disable-pip-version-check wheel
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH # of the files in the wheel
"$scratch/venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$scratch/wheels" "$scratch/wheel"
"$scratch/venv/bin/wheel" tags --remove --platform-tag "manylinux_2_${needed#GLIBC_2.}_$(uname -m)" "$scratch"/wheels/*.whl >/dev/null
rm -f "$out"/*.whl
mv "$scratch"/wheels/*.whl "$out"

# ---- what is in the programs that is not ours, and what is new

# defined HEADER PREFIX: the version that PREFIX_MAJOR, _MINOR and PREFIX_PATCH or _RELEASE of a header are
defined() {
    echo "#include <$1>" | "${CXX:-g++}" -isystem "${DEPS_DIR:-.deps}/include" -dM -E -x c++ - |
        sed -nE "s/^#define $2_(MAJOR|MINOR|PATCH|RELEASE) ([0-9]+)$/\1 \2/p" | sort | cut -d ' ' -f 2 | paste -sd.
}
python3 - "$version" "$(defined nlohmann/json.hpp NLOHMANN_JSON_VERSION)" "$(defined xxhash.h XXH_VERSION)" \
    "$("${CXX:-g++}" -dumpfullversion)" "$(cat "$scratch/BUILD_ID")" "$SOURCE_DATE_EPOCH" >"$out/$name.spdx.json" <<'PYTHON'
import json, sys, time

version, nlohmann, xxhash, gcc, build, seconds = sys.argv[1:]
parts = [
    ("anvil", version, "MIT"),
    ("nlohmann-json", nlohmann, "MIT"),
    ("xxHash", xxhash, "BSD-2-Clause"),
    ("gcc-runtime", gcc, "GPL-3.0-or-later WITH GCC-exception-3.1"),  # libgomp, libstdc++, libgcc: in the wheel alone
]
print(json.dumps({
    "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"anvil-{version}",
    "documentNamespace": f"https://spdx.org/spdxdocs/anvil-{version}-{build}",
    "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds))), "creators": ["Tool: scripts/release.sh"]},
    "packages": [{
        "SPDXID": f"SPDXRef-{name}", "name": name, "versionInfo": number, "licenseConcluded": license, "licenseDeclared": license,
        "downloadLocation": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False,
    } for name, number, license in parts],
    "relationships": [
        {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-anvil"},
        *({"spdxElementId": "SPDXRef-anvil", "relationshipType": "CONTAINS", "relatedSpdxElement": f"SPDXRef-{name}"} for name, *_ in parts[1:]),
    ],
}, indent=1))
PYTHON
awk -v version="$version" '/^## / {on = $2 ~ "^" version ","} on' CHANGELOG.md >"$out/NOTES.md"
(cd "$out" && sha256sum -- *.tar.gz *.whl *.spdx.json >SHA256SUMS)
cat "$out/SHA256SUMS"
