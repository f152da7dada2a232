#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy: make tidy
#
#   dev/lint/tidy.sh              on .cpp files that differ from origin/main (or main), including new and uncommitted ones
#   dev/lint/tidy.sh --all        on all .cpp files of llmc/ and data/: about a quarter of an hour of CPU time
#   dev/lint/tidy.sh FILE...      on these files
#
# Reads compile_commands.json (`make compile_commands.json`). CLANG_TIDY: the program, clang-tidy by default; JOBS: the number of
# files at once. If the program is missing, prints that and ends with exit code 0. Exit code 1 if it found anything.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
tidy=${CLANG_TIDY:-clang-tidy}
if ! command -v "$tidy" >/dev/null; then
    echo "tidy: skipped: $tidy is missing (apt-get install clang-tidy, or pip install clang-tidy==18.1.8 and CLANG_TIDY=PATH)"
    exit 0
fi
[ -f compile_commands.json ] || { echo "error: compile_commands.json is missing: run make compile_commands.json" >&2 && exit 2; }

if [ "${1-}" = --all ]; then
    mapfile -t files < <(git ls-files 'llmc/*.cpp' 'data/*.cpp')
elif [ $# -gt 0 ]; then
    files=("$@")
else
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
    mapfile -t files < <({
        git diff --name-only --diff-filter=d "$base" -- 'llmc/*.cpp' 'data/*.cpp'
        git ls-files --others --exclude-standard -- 'llmc/*.cpp' 'data/*.cpp'
    } | sort -u)
fi
# Only files that this machine compiles: those that need NVIDIA's or MPI's headers have no entry if these are missing.
known=()
for file in "${files[@]}"; do
    if grep -qF "\"$file\"" compile_commands.json; then known+=("$file"); else echo "tidy: $file: not in compile_commands.json"; fi
done
[ ${#known[@]} -gt 0 ] || { echo "tidy: nothing to do" && exit 0; }
# clang has an omp.h only if libomp is installed. g++'s declares the same, with one attribute that clang lacks.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
sed -E 's/__malloc__ \(omp_free[^)]*\)/__malloc__/' "$("${CXX:-g++}" -print-file-name=include/omp.h)" >"$headers/omp.h" 2>/dev/null || true
# -Wno-everything: clang does not know some of g++'s flags, and other warnings are left to the compiler.
printf '%s\0' "${known[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "$tidy" --quiet -p . \
    --extra-arg=-Wno-everything --extra-arg=-idirafter"$headers" 2> >(grep -v 'warnings\? generated\|warnings\? treated as\|^Suppressed\|^Use -header' >&2) ||
    { echo "tidy: failed" && exit 1; }
echo "tidy: ${#known[@]} files, all is well"
