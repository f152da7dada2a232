#!/usr/bin/env bash
# Checks that programs start on Debian 12 and Ubuntu 22.04, or newer: that the versions of the symbols they need are there.
#
#   dev/lint/check_symbols.sh PROGRAM...
#
# A program needs the versions of the system that it was linked on. Exit code 2: one is newer, and the line says which.
set -euo pipefail
export LC_ALL=C

most=(GLIBC_2.35 GLIBCXX_3.4.30 CXXABI_1.3.13)
status=0
for program; do
    needed=$(objdump -T "$program" | grep -oE '\<(GLIBC|GLIBCXX|CXXABI)_[0-9.]+' | sort -u)
    for limit in "${most[@]}"; do
        newest=$(grep "^${limit%%_*}_" <<<"$needed" | sort -V | tail -n 1) || true
        if [ "$(printf '%s\n' "$limit" "$newest" | sort -V | tail -n 1)" != "$limit" ]; then
            echo "error: $program needs $newest, expected at most $limit: build it on Debian 12 or Ubuntu 22.04 (g++-12)" >&2
            status=2
        fi
    done
done
exit $status
