#!/usr/bin/env bash
# make/hide_names.sh OBJECT NAME: makes all symbols of an object local except NAME. An error if it has no such symbol, or
# static initializers, which would run before main().
set -euo pipefail
export LC_ALL=C
object=$1 name=$2

# Dissolves COMDAT groups, of which the linker would keep one copy over all objects: each object needs its own.
ld -r --force-group-allocation "$object" -o "$object.one"
objcopy --keep-global-symbol="$name" "$object.one" "$object"
rm "$object.one"
shown=$(nm -g --defined-only "$object" | awk '{print $3}')
if [ "$shown" != "$name" ]; then
    echo "error: $object shows: ${shown:-nothing}; expected $name alone" >&2
    exit 1
fi
if objdump -h "$object" | grep -q '\.init_array'; then
    echo "error: $object computes something before main()" >&2
    exit 1
fi
