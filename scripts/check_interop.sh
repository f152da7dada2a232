#!/usr/bin/env bash
# Files in and out of other programs, as PyPI has them: what they write is read here, what is written here they read, and
# both compute the same. CI's step `interop`; needs ./train_gpt and ./data/tokenize, a few minutes, and a network:
# where pip cannot install a package, what is compared with it is skipped and said so.
#
#   scripts/check_interop.sh [FOLDER]       a virtual environment is made there, or used if it is there already
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-$(mktemp -d)/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# Nothing is looked up on a hub: all models are made here.
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error

# check SCRIPT PACKAGE...: where no network gives the packages, there is nothing to compare with
check() {
    local script=$1
    shift
    if "$venv/bin/pip" install -q --disable-pip-version-check "$@"; then
        "$venv/bin/python" "$script"
    else
        echo "skipped: $script: pip cannot install $*"
    fi
}
# Of tokenizers, exactly the versions that the fixtures are from; meanwhile, since each of these has one core busy.
scratch=$(mktemp -d) log=$scratch/tokenizers.log
trap 'rm -rf "$scratch"' EXIT
scripts/check_tokenizers.sh "$venv-tokenizers" >"$log" 2>&1 &
tokenizers=$!
status=0
# Installed as its users do, from a copy: pip leaves a folder in the sources.
cp -r pyproject.toml python "$scratch"
export ANVIL_TEST_ALL=1
check test/python/anvil_test.py torch==2.13.0 safetensors pandas xxhash "$scratch" || status=$?
check test/python/nanochat_test.py torch==2.13.0 safetensors tiktoken || status=$?
check scripts/check_models.py torch==2.13.0 transformers gguf xllamacpp || status=$?
check scripts/check_templates.py 'transformers' jinja2 numpy || status=$?
check scripts/check_servers.py torch==2.13.0 'transformers[serving]' xllamacpp openai || status=$?
check scripts/check_logs.py tensorboard wandb || status=$?
check scripts/check_parquet.py pyarrow || status=$?
wait $tokenizers || status=$?
cat "$log"
exit $status
