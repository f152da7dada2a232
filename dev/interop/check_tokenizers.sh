#!/usr/bin/env bash
# Compares Anvil's tokenizers with tiktoken, Hugging Face's `tokenizers` and rustbpe, as PyPI has them, on much more text
# than test/fixtures/ has, and with the vocabularies of real models: ids and merges must be equal, and they must read the
# files that Anvil writes. Needs a network, $ANVIL_MIRROR for GPT-2's vocabulary, and some minutes.
#
#   dev/interop/check_tokenizers.sh [FOLDER]       FOLDER: a virtual environment, which is created if it does not exist
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
venv=${1:-$scratch/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
packages="tiktoken==0.14.0 tokenizers==0.23.3 rustbpe==0.1.0 unicodedata2==16.0.0 sentencepiece==0.2.3"
# shellcheck disable=SC2086  # a word each
if ! "$venv/bin/pip" install -q --no-compile --disable-pip-version-check $packages; then
    echo "skipped: tokenizers: pip cannot install $packages"
    exit 0
fi

"$venv/bin/python" dev/fixtures/make_unicode_table.py --check
"$venv/bin/python" dev/fixtures/make_tokenizer_fixtures.py --check
"$venv/bin/python" dev/fixtures/make_tokenizer_fixtures.py --stress "$scratch/cases"
# Vocabularies of real models: 60 MB, of which pip installs nothing.
# shellcheck disable=SC2046  # a word each
if "$venv/bin/pip" download -q --no-deps --disable-pip-version-check -d "$scratch/wheels" \
    $("$venv/bin/python" dev/fixtures/make_real_tokenizers.py --packages); then
    "$venv/bin/python" dev/fixtures/make_real_tokenizers.py "$scratch/wheels" "$scratch/cases"
else
    echo "skipped: tokenizers of real models: pip cannot download them"
fi
ANVIL_TOKENIZER_CASES=$scratch/cases make run-tests OP=tokenizer_reference
"$venv/bin/python" dev/fixtures/make_tokenizer_fixtures.py --verify "$scratch/cases"
