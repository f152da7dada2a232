#!/usr/bin/env bash
# scripts/hide_names.sh OBJECT NAME RESULT: the same object, of which others see NAME and nothing else. An error if it has no
# such name, or computes something before main().
set -euo pipefail
object=$1 name=$2 result=$3

# Groups are there for the linker to keep one of several copies: of these each is needed.
ld -r --force-group-allocation "$object" -o "$object.one"
objcopy --keep-global-symbol="$name" "$object.one" "$result"
rm "$object.one"
shown=$(nm -g --defined-only "$result" | awk '{print $3}')
if [ "$shown" != "$name" ]; then
    echo "error: $result shows: ${shown:-nothing}; expected $name alone" >&2
    exit 1
fi
if objdump -h "$result" | grep -q '\.init_array'; then
    echo "error: $result computes something before main()" >&2
    exit 1
fi
