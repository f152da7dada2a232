#!/usr/bin/env bash
# Checks that Anvil reads the files of other programs, as PyPI has them, that they read Anvil's, and that both compute the
# same. CI's step `interop`. Needs ./train_gpt and ./data/tokenize, a few minutes, and a network: if pip cannot install a
# package, the checks that need it are skipped with a message.
#
#   dev/interop/check_interop.sh [FOLDER]       FOLDER: a virtual environment, which is created if it does not exist
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

venv=${1:-$(mktemp -d)/venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# Offline mode: all models are made here, none is downloaded.
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error

# check 'SCRIPT FLAGS' PACKAGE...: runs a script, or skips it if the packages cannot be installed; $alone: one more, without those that
# it depends on, and so in a folder of its own. The environment's python3 comes first, because Anvil reads chat templates with jinja2.
check() {
    local script=$1 pip=("$venv/bin/pip" install -q --no-compile --disable-pip-version-check)
    shift
    if "${pip[@]}" "$@" && { [ -z "${alone-}" ] || "${pip[@]}" --no-deps --target "$scratch/alone" "$alone"; }; then
        # shellcheck disable=SC2086  # a script and its flags
        PATH="$(realpath "$venv")/bin:$PATH" PYTHONPATH=${alone:+$scratch/alone} "$venv/bin/python" $script
    else
        echo "skipped: $script: pip cannot install $*"
    fi
}
# Tokenizers in exactly the versions that the fixtures are from. In parallel, since each check keeps one core busy.
scratch=$(mktemp -d) log=$scratch/tokenizers.log
trap 'rm -rf "$scratch"' EXIT
dev/interop/check_tokenizers.sh "$venv-tokenizers" >"$log" 2>&1 &
tokenizers=$!
status=0
# Installed as users do, but from a copy, because pip creates a folder in the sources.
cp -r pyproject.toml python "$scratch"
export ANVIL_TEST_ALL=1
check test/python/anvil_test.py torch==2.13.0 safetensors pandas xxhash "$scratch" || status=$?
check test/python/nanochat_test.py torch==2.13.0 safetensors tiktoken || status=$?
check 'dev/fixtures/make_interop_fixtures.py --check' torch==2.13.0 transformers || status=$?
check dev/interop/check_models.py torch==2.13.0 transformers gguf xllamacpp || status=$?
check dev/interop/check_adapters.py torch==2.13.0 transformers peft || status=$?
check dev/interop/check_configs.py torch==2.13.0 transformers gguf xllamacpp || status=$?
check dev/interop/check_templates.py 'transformers' jinja2 numpy || status=$?
check dev/interop/check_servers.py torch==2.13.0 'transformers[serving]' gguf xllamacpp openai || status=$?
check dev/interop/check_logs.py tensorboard wandb prometheus_client grafana-foundation-sdk || status=$?
check dev/interop/check_parquet.py pyarrow || status=$?
check dev/interop/check_bucket.py 'moto[server]' awscli || status=$?
alone=skypilot check dev/interop/check_cluster.py kubernetes-validate kubeflow-trainer-api || status=$?
check dev/interop/check_lm_eval.py torch==2.13.0 transformers 'lm-eval[hf]' || status=$?
wait $tokenizers || status=$?
cat "$log"
exit $status
