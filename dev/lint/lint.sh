#!/usr/bin/env bash
# Runs all checks of `make lint` and prints their findings; exit code 1 if there are any. The Makefile sets CLANG_FORMAT and
# SUBMAKE (make with its flags).
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

failed=()
# check NAME COMMAND...: runs the command, and prints its output only if it fails
check() {
    local name=$1
    shift
    local began=$SECONDS output
    if output=$("$@" 2>&1); then
        printf 'ok      %-9s %3d s\n' "$name" $((SECONDS - began))
    else
        printf 'FAILED  %-9s %3d s\n%s\n' "$name" $((SECONDS - began)) "$output"
        failed+=("$name")
    fi
}

list() { git ls-files -z --cached --others --exclude-standard "$@"; }

check_format() {
    list '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r "${CLANG_FORMAT:-clang-format}" --dry-run -Werror && return
    echo 'make format rewrites them'
    return 1
}

# Compiles without optimization. CI gets the warnings of optimized code from the objects of its tests.
check_warnings() {
    # shellcheck disable=SC2086  # SUBMAKE is a command with its flags
    ${SUBMAKE:-make} --silent --no-print-directory --keep-going objects VARIANT=lint OPT=-O0 DEBUG_INFO=-g0 CXXFLAGS_EXTRA=-Werror
}

check_scripts() {
    local status=0 script
    while IFS= read -r -d '' script; do
        bash -n "$script" || status=1
        # awk, sort and printf follow the user's locale: 0,5 for 0.5 in German, and no i for I in Turkish.
        grep -qE '^export LC_ALL=C( |$)|/fetch\.sh"$' "$script" ||
            { echo "$script: expected the line 'export LC_ALL=C' after 'set'" && status=1; }
    done < <(list '*.sh' .ci/run)
    # Installed, they run in the user's working directory, where such a Python would look for its modules first.
    ! grep -nE 'python3? -([cm]|$| )' data/*.sh || { echo "expected python3 -I" && status=1; }
    return $status
}

check_docs() { python3 dev/lint/check_docs.py --test && python3 dev/lint/check_docs.py; }

check_words() { python3 dev/lint/check_words.py --test && python3 dev/lint/check_words.py; }

check layers python3 dev/lint/check_layers.py
check mirrors python3 dev/lint/check_mirrors.py
check text python3 dev/lint/check_text.py
check budget python3 dev/lint/check_budget.py
check pages python3 dev/torture/page.py --check
check build python3 dev/lint/check_build.py
check charts python3 dev/results/charts.py --check
check recipes python3 dev/results/recipes.py --check
check variables python3 dev/lint/check_environment.py
check docs check_docs
check words check_words
check scripts check_scripts
check format check_format
# Takes minutes; all other checks take seconds.
[ -z "${WARNINGS:-}" ] || check warnings check_warnings

if [ ${#failed[@]} -gt 0 ]; then
    echo "lint: failed: ${failed[*]}"
    exit 1
fi
echo "lint: all is well"
