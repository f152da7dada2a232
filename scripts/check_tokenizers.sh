#!/usr/bin/env bash
# Our tokenizers against tiktoken, Hugging Face's `tokenizers` and rustbpe, as PyPI has them, on much more text than lies
# in test/fixtures/: the same ids and the same merges, and they read what we write. Needs a network, and $ANVIL_MIRROR for
# GPT-2's vocabulary; some minutes.
#
#   scripts/check_tokenizers.sh [FOLDER]       a virtual environment is made there, or used if it is there already
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
venv=${1:-$scratch/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
packages="tiktoken==0.14.0 tokenizers==0.23.3 rustbpe==0.1.0 unicodedata2==16.0.0"
# shellcheck disable=SC2086  # a word each
if ! "$venv/bin/pip" install -q --disable-pip-version-check $packages; then
    echo "skipped: tokenizers: pip cannot install $packages"
    exit 0
fi

"$venv/bin/python" scripts/make_unicode_table.py --check
"$venv/bin/python" scripts/make_tokenizer_fixtures.py --check
"$venv/bin/python" scripts/make_tokenizer_fixtures.py --stress "$scratch/cases"
ANVIL_TOKENIZER_CASES=$scratch/cases make run-tests OP=tokenizer_reference
"$venv/bin/python" scripts/make_tokenizer_fixtures.py --verify "$scratch/cases"
