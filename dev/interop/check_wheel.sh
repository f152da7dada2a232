#!/usr/bin/env bash
# Checks that a release's wheel works where there is no compiler: in a root with only Python and glibc, from `pip install` to the
# first training step in less than a minute.
#
#   dev/interop/check_wheel.sh DIR       DIR: that of scripts/release.sh; exit code 1 if something is not so
#
# The root has python3 and the libraries that it is linked with, no shell, no libgomp and no libstdc++. NumPy is downloaded before
# the time begins. Skipped where pip has no network, or nothing may change the root (unshare).
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

wheel=$(ls "$1"/*.whl)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
mkdir -p "$root"/{proc,dev,tmp,here,wheels}
cp "$wheel" "$root/wheels"

python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
lib=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
copy() { for file; do [ -e "$root$file" ] || install -D "$file" "$root$file"; done; }
copy "$python"
mkdir -p "$root$(dirname "$lib")"
cp -r "$lib" "$root$lib"
rm -rf "$root$lib"/{test,site-packages,dist-packages}
find "$root" -name __pycache__ -prune -exec rm -r {} +
# shellcheck disable=SC2046  # one path a word
copy $(ldd "$python" "$lib"/lib-dynload/*.so | grep -oE '/[^ :]+\.so[^ ]*' | grep -vE 'lib-dynload|libstdc|libgomp' | sort -u)

inside() { # COMMAND...: in the root, with a folder of its own as home
    unshare -rm bash -c 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' "$root" \
        "$(command -v env)" -i PATH=/here/v/bin HOME=/here "$@"
}
copy "$(command -v env)"
python3 -m venv "$scratch/venv"
if ! "$scratch/venv/bin/pip" download -q --disable-pip-version-check --only-binary :all: -d "$root/wheels" numpy ||
    ! unshare -rm true; then
    echo "skipped: check_wheel.sh: no network for pip, or no unshare"
    exit 0
fi

status=0
check() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$scratch/said" 2>&1; then echo "ok      $what"; else
        echo "FAILED  $what" && cat "$scratch/said"
        status=1
    fi
}
check 'the root has no compiler and no libstdc++' bash -c '! find "$0" | grep -E "/(g?cc|g\+\+|c\+\+|clang|make|ld)$|libstdc\+\+|libgomp"' "$root"
check 'a virtual environment' inside "$python" -m venv /here/v
began=$(date +%s%N)
check 'pip install' inside /here/v/bin/pip install -q --no-index --find-links /wheels --no-compile anvil-gpt
check 'anvil tokenize' inside /here/v/bin/anvil tokenize --stories 300000 --out /here/data
train=(/here/v/bin/anvil train --train-data '/here/data/train_*.bin' --val-data '/here/data/val_*.bin' --num-layers 2 --num-heads 2
    --channels 64 --seq-len 64 --batch-size 8 --sample-tokens 0 --val-tokens 1024 --dtype fp32)
check 'anvil train' inside "${train[@]}" --steps 1 --out-dir /here/run
seconds=$((($(date +%s%N) - began + 999999999) / 1000000000))
check "from pip install to the first step: $seconds s, expected less than 60" [ $seconds -lt 60 ]
loss_of() { sed -nE 's/^\{"type":"step","step":1,.*"loss":([^,]*),.*/\1/p' "$root/here/$1/log.jsonl" 2>/dev/null || true; }
check "its loss is a number: $(loss_of run)" grep -q '^[0-9]' <(loss_of run)
# Of every level that this processor has: the same bits, in fp32 (bf16 is not every level's default). One that the program lacks is refused.
for level in baseline:sse2 avx2:avx2 avx512:avx512vl avx512_bf16:avx512_bf16; do
    isa=${level%:*}
    grep -qw "${level#*:}" /proc/cpuinfo || { echo "skipped: this processor has no $isa" && continue; }
    check "anvil train on $isa" inside ANVIL_CPU_ISA="$isa" "${train[@]}" --steps 1 --out-dir /here/"$isa"
    check "its loss: $(loss_of "$isa")" [ "$(loss_of "$isa")" = "$(loss_of run)" ]
done
# NumPy would need libstdc++.
check 'import anvil' inside /here/v/bin/python -c 'import anvil; assert anvil.read_log("/here/run", "step")[0]["step"] == 1'
check 'anvil report' inside /here/v/bin/anvil report /here/run
exit $status
