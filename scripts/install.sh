#!/usr/bin/env bash
# Installs the programs, the scripts that they name or run, the report, the man pages and the bash completion; `make install`
# and `make uninstall` call it.
#
#   PREFIX=/usr/local DESTDIR= scripts/install.sh [--uninstall] [PROGRAMS]
#
# PROGRAMS: the folder of train_gpt and data/tokenize, . by default. DESTDIR is put before PREFIX, for packagers. Exit code 2:
# a program is not built, or a folder cannot be written.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

uninstall=
[ "${1-}" != --uninstall ] || { uninstall=1 && shift; }
[ "${1-}" != -h ] && [ "${1-}" != --help ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0; }
programs=${1:-.} names=() prefix=${PREFIX:-/usr/local}
root=${DESTDIR-}$prefix
bin=$root/bin share=$root/share
scripts=(data/{climbmix,core,fetch,fineweb,gpt2_tokenizer,hellaswag,model,tinyshakespeare,tinystories}.sh data/chat_template.py
    scripts/{log_to,make_core,make_hellaswag,eval_files}.py scripts/bucket.sh)
files=(
    "$bin/train_gpt" "$bin/anvil-tokenize" "$bin/anvil-report" "$share"/man/man1/{train_gpt,anvil-{tokenize,report}}.1
    "$share/bash-completion/completions/train_gpt" "$share/anvil/scripts/report.py" "$share/anvil/doc/flags.md"
    "$share/doc/anvil/README.md" "$share/doc/anvil/CHANGELOG.md" "$share/doc/anvil/LICENSE" "${scripts[@]/#/$share/anvil/}"
)

if [ -n "$uninstall" ]; then
    rm -f "${files[@]}"
    rm -rf "$share/anvil/scripts/run_report" # with Python's caches
    rm -rf "$share/anvil/scripts/__pycache__"
    rmdir "$share"/anvil/{data,scripts,doc} "$share/anvil" "$share/doc/anvil" 2>/dev/null || true
    exit 0
fi

for program in train_gpt data/tokenize; do
    [ -x "$programs/$program" ] || { echo "error: $programs/$program is not there: run make first" >&2 && exit 2; }
done
mkdir -p "$root" 2>/dev/null && [ -w "$root" ] || {
    echo "error: cannot write to $root: run as root, or choose another PREFIX or DESTDIR" >&2
    exit 2
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
scripts/manual.py man >"$scratch/train_gpt.1"
(exec -a anvil-tokenize "$programs/data/tokenize" --help) | scripts/manual.py man anvil-tokenize >"$scratch/anvil-tokenize.1"
scripts/report.py --help | sed 's/report\.py/anvil-report/' | scripts/manual.py man anvil-report >"$scratch/anvil-report.1"
# As the programs and scripts are called here; the programs' own messages do the same (llmc/base/script.h).
for script in "${scripts[@]}"; do names+=(-e "s,$script,${prefix%/}/share/anvil/$script,g"); done
sed -i -e 's,data/tokenize,anvil\\-tokenize,g' "${names[@]}" "$scratch"/*.1
scripts/manual.py completion >"$scratch/completion"
put() { install -D -m "$1" "$2" "$3"; }
put 755 "$programs/train_gpt" "$bin/train_gpt"
put 755 "$programs/data/tokenize" "$bin/anvil-tokenize"
put 755 scripts/report.py "$share/anvil/scripts/report.py"
for script in "${scripts[@]}"; do put "$([ -x "$script" ] && echo 755 || echo 644)" "$script" "$share/anvil/$script"; done
for part in scripts/run_report/*.py; do put 644 "$part" "$share/anvil/$part"; done
put 644 doc/flags.md "$share/anvil/doc/flags.md" # the report reads the defaults from it
ln -sf ../share/anvil/scripts/report.py "$bin/anvil-report"
for page in "$scratch"/*.1; do put 644 "$page" "$share/man/man1/$(basename "$page")"; done
put 644 "$scratch/completion" "$share/bash-completion/completions/train_gpt"
for page in README.md CHANGELOG.md LICENSE; do put 644 $page "$share/doc/anvil/$page"; done
echo "installed train_gpt $(cat VERSION), anvil-tokenize and anvil-report in $bin"
