#!/usr/bin/env bash
# Checks that doc/flags.md is what ./train_gpt says of itself; prints the difference. --write makes the page anew.
set -euo pipefail
cd "$(dirname "$0")/.."

made=$(./train_gpt --help-markdown)
if [ "${1:-}" = --write ]; then
    printf '%s\n' "$made" >doc/flags.md
elif ! printf '%s\n' "$made" | diff -u doc/flags.md - >&2; then
    echo "doc/flags.md is not the output of ./train_gpt --help-markdown: run scripts/check_flags.sh --write" >&2
    exit 1
fi
