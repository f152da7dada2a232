#!/usr/bin/env bash
# make/hide_names.sh OBJECT NAME RESULT: copies an object and makes all its symbols local except NAME. An error if it has no
# such symbol, or static initializers, which would run before main().
set -euo pipefail
export LC_ALL=C
object=$1 name=$2 result=$3

# Dissolves COMDAT groups, of which the linker would keep one copy over all objects: each object needs its own.
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
