#!/usr/bin/env bash
# Keeps a run's checkpoints in a bucket too, and brings the newest to a new disk:
#
#   ./train_gpt --resume auto --before-resume 'scripts/bucket.sh get s3://BUCKET/RUN' \
#       --after-checkpoint 'scripts/bucket.sh put s3://BUCKET/RUN' ...
#
# And the shards to train on, to a disk without room for all (doc/formats.md):
#
#   ./train_gpt --fetch 'scripts/bucket.sh shard s3://BUCKET/DATA' --data-order shards ...
#
# s3://... goes by `aws s3`, REMOTE:PATH by rclone, and anything else is a folder, such as a mounted bucket. A run has a place
# of its own there. train_gpt sets ANVIL_CHECKPOINT, ANVIL_OUT_DIR and the like, and runs it again if it fails.
#
# A checkpoint counts once its manifest is there. That goes last, and first where other files of its name are replaced, so the
# bucket never has half of one. On the disk its folder gets its name when all files have come.
set -euo pipefail
export LC_ALL=C

what=${1-} place=${2-}
place=${place%/}
if [ $# != 2 ] || [[ ! $what =~ ^(put|get|shard)$ ]] || [ -z "$place" ]; then
    echo "error: expected put, get or shard, and PLACE" >&2
    exit 2
fi

if [ "$what" = shard ]; then
    from=$place/${ANVIL_SHARD:?is not set: train_gpt sets it for --fetch} to=${ANVIL_SHARD_PATH:?is not set}
    case $place in
        s3://*) exec aws s3 cp --quiet "$from" "$to" ;;
        *:*) exec rclone -q copyto "$from" "$to" ;;
        *) exec cp "$from" "$to" ;;
    esac
fi
out=${ANVIL_OUT_DIR:?is not set: train_gpt sets it for --after-checkpoint and --before-resume}

# manifests [NAME]: lines that end in their paths, of all checkpoints or that one; show FILE, remove FILE: in the bucket;
# send FOLDER NAME: all but the manifest; send_file FROM FILE; receive NAME FOLDER
case $place in
    s3://*)
        manifests() { aws s3 ls --recursive "$place/${1:+$1/}" || [ $? = 1 ]; } # 1: there is nothing
        show() { aws s3 cp --quiet "$place/$1" -; }
        remove() { aws s3 rm --quiet "$place/$1"; }
        send() { aws s3 cp --quiet --recursive --exclude manifest.json "$1" "$place/$2"; }
        send_file() { aws s3 cp --quiet "$1" "$place/$2"; }
        receive() { aws s3 cp --quiet --recursive "$place/$1" "$2"; }
        ;;
    *:*)
        manifests() { rclone -q lsf -R --include manifest.json "$place/${1-}" || [ $? = 3 ]; } # 3: there is nothing
        show() { rclone -q cat "$place/$1"; }
        remove() { rclone -q deletefile "$place/$1"; }
        send() { rclone -q copy --exclude manifest.json "$1" "$place/$2"; }
        send_file() { rclone -q copyto "$1" "$place/$2"; }
        receive() { rclone -q copy "$place/$1" "$2"; }
        ;;
    *)
        manifests() { [ ! -d "$place/${1-}" ] || find "$place/${1-}" -name manifest.json; }
        show() { cat "$place/$1"; }
        remove() { rm "$place/$1"; }
        send() { mkdir -p "$place/$2" && find "$1" -type f ! -name manifest.json -exec cp -t "$place/$2" {} +; }
        send_file() { cp "$1" "$place/$2.part" && mv "$place/$2.part" "$place/$2"; }
        receive() { cp -r "$place/$1" "$2"; }
        ;;
esac

# One at a time: of a trainer that was killed, the last command may still run.
mkdir -p "$out"
exec 9>"$out/.bucket.lock"
flock -w 60 9 || { echo "error: another scripts/bucket.sh holds $out/.bucket.lock" >&2 && exit 1; }

if [ "$what" = put ]; then
    name=${ANVIL_CHECKPOINT:?is not set: train_gpt sets it for --after-checkpoint}
    name=${name##*/}
    [ -e "$ANVIL_CHECKPOINT/manifest.json" ] || exit 0 # removed meanwhile
    found=$(manifests "$name")
    if grep -q '/manifest\.json$\|^manifest\.json$' <<<"$found"; then
        if show "$name/manifest.json" | cmp -s - "$ANVIL_CHECKPOINT/manifest.json"; then exit 0; fi
        remove "$name/manifest.json"
    fi
    send "$ANVIL_CHECKPOINT" "$name"
    send_file "$ANVIL_CHECKPOINT/manifest.json" "$name/manifest.json"
    exit 0
fi

found=$(manifests)
newest=$(grep -oE 'step_[0-9]+/manifest\.json$' <<<"$found" | sort -V | tail -n 1 || true)
newest=${newest%/*}
[ -n "$newest" ] || exit 0
# Unless the disk has it, or a newer one.
here=$(cd "$out" && for path in step_*/manifest.json; do [ ! -e "$path" ] || echo "${path%/*}"; done | sort -V | tail -n 1)
[ "$(printf '%s\n' "$newest" "$here" | sort -V | tail -n 1)" != "$here" ] || exit 0
# train_gpt takes no folder of that name, and removes it after its next save.
rm -rf "$out/$newest.tmp"
receive "$newest" "$out/$newest.tmp"
rm -rf "${out:?}/$newest" # without a manifest
mv "$out/$newest.tmp" "$out/$newest"
