#!/usr/bin/env bash
# The tutorial's commands on two machines without a common folder, the second with half of the first one's cores: both are
# network namespaces of this machine, with a disk of their own each, and names, alpha and beta.
#
#   dev/two_disks.sh [--small]
#
# First the commands of doc/tutorials/two_machines.md as they stand there, whose losses must be those of one process. Then
# a run of 80 steps that loses one side or the other again and again, and goes on with both, with one alone, with rank 0 on
# the other machine and with three ranks: every loss is compared with that of one process that nobody disturbed, and the
# weights as well. --small leaves the page's own runs out, and takes a model of one layer: for a test.
#
# Needs root, Linux with network namespaces, and ./train_gpt and data/tokenize as built by make ($ANVIL_PROGRAMS: where they
# lie). Nothing of it stays. Exit code 2: something is missing here, and says what; 1: a run did not do what it should.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

# shellcheck source=dev/hosts.sh
. dev/hosts.sh

small=
case ${1-} in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --small) small=1 ;;
    '') ;;
    *) fail 2 "$1: expected --small, or nothing" ;;
esac
find_programs
need python3:python3
cores=$(nproc)
half=$((cores > 1 ? cores / 2 : 1))
set_up_hosts 1gbit "0-$((cores - 1))" "$((cores - half))-$((cores - 1))"

# ---- two disks ---------------------------------------------------------------------------------------------------

mkdir "$scratch/home"
printf '127.0.0.1 localhost\n%s alpha\n%s beta\n' "${addresses[@]}" >"$scratch/names"
for host in 0 1; do
    mkdir -p "$scratch/disk-$host/data"
    ln -s "$train" "$scratch/disk-$host/train_gpt"
    ln -s "$tokenize" "$scratch/disk-$host/data/tokenize"
    cp data/tinyshakespeare.sh data/fetch.sh "$scratch/disk-$host/data/"
done
# The page's first command, on every machine; here once, as the second has no way out. Without the text another one does,
# of which the page shows no figures.
if (cd "$scratch/disk-0" && data/tinyshakespeare.sh) >"$scratch/data" 2>&1; then
    text='tiny Shakespeare'
else
    text='a text of our own, as tiny Shakespeare cannot be had'
    "$tokenize" --stories 500000 --tokenizer char --out "$scratch/disk-0/data/tinyshakespeare" >/dev/null
fi
cp -r "$scratch/disk-0/data/tinyshakespeare" "$scratch/disk-1/data/"

page=doc/tutorials/two_machines.md
# The NUMBER-th command of the section that begins so.
command_of() { # SECTION NUMBER
    local found
    found=$(awk -v section="## $1" -v number="$2" '
        /^## / { inside = index($0, section) == 1 }
        inside && /^    / {
            line = $0
            if (!open && ++count == number) mine = 1
            open = sub(/\\$/, "", line)
            if (mine) printf "%s", line
            if (!open) mine = 0
        }' "$page")
    [[ $found == *./train_gpt* ]] || fail 1 "$page has no command $2 in the section $1"
    echo "${found#"${found%%[! ]*}"}"
}

# ---- ranks -------------------------------------------------------------------------------------------------------

# Both are by the name of a rank: its output is in $scratch/NAME.
declare -A pids
start() { # NAME HOST COMMAND
    "$scratch/on_host" "$2" sh -c "exec $3" >"$scratch/$1" 2>&1 </dev/null &
    pids[$1]=$!
}
ended() { # NAME EXIT-CODE [WORDS]: as it must
    local code=0
    wait "${pids[$1]}" || code=$?
    if [ "$code" = "$2" ] && { [ -z "${3-}" ] || grep -qF -- "$3" "$scratch/$1"; }; then return; fi
    tail -n 20 "$scratch"/rank-* >&2
    fail 1 "$1 ended with exit code $code; expected $2${3:+, and '$3'}"
}
step_folder() { printf '%s/disk-%s/run/%s/step_%08d' "$scratch" "$1" "${3-legs}" "$2"; } # HOST STEP [RUN]
until_saved() { # HOST STEP NAME [RUN]: of that rank
    until [ -d "$(step_folder "$1" "$2" "${4-legs}")" ]; do
        kill -0 "${pids[$3]}" 2>/dev/null || ended "$3" 'none' "a checkpoint of step $2"
        sleep 0.01
    done
}
lose() { # NAME
    local code=0
    kill -KILL "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || code=$?
    [ $code = 137 ] || fail 2 "this machine is too busy: $1 was over before it could be lost"
}

# Compares the losses of steps in two logs: bit for bit, or to EPSILONS of fp32, relative.
compare() { # WHAT LOG LOG FIRST LAST EPSILONS
    python3 - "$@" <<'PYTHON' || exit 1
import json, sys
what, one, other, first, last, epsilons = sys.argv[1:]
def losses(path):
    return {record["step"]: record["loss"] for record in map(json.loads, open(path, encoding="utf-8"))
            if record["type"] == "step" and int(first) <= record["step"] <= int(last)}
a, b = losses(one), losses(other)
wanted = list(range(int(first), int(last) + 1))
if sorted(a) != wanted or sorted(b) != wanted:
    sys.exit(f"error: {what}: expected steps {first} to {last} in both logs, found {sorted(a)} and {sorted(b)}")
differing = sum(a[step] != b[step] for step in wanted)
worst = max(abs(a[step] - b[step]) / abs(a[step]) for step in wanted)
if worst > float(epsilons) * 2**-23:
    sys.exit(f"error: {what}: the losses of {differing} steps differ, by up to {worst:.2g}")
print(f"| {what} | {first} to {last} | {'all bits' if not differing else f'{worst:.1g} apart at most'} |", flush=True)
PYTHON
}

echo "== alpha with $cores cores, beta with $half of them, joined at 1gbit; $text"
echo
echo '| what | steps | losses, beside those of one process |'
echo '|---|---|---|'
other() { echo "${1/--rank 0/--rank 1}"; } # COMMAND
alone=$(command_of '1. One process' 1)
here=$(command_of '2. Two processes' 1)
both=$(command_of '3. Two machines' 1)
# Sums in another order: the last of a float's seven digits.
rounding=8

if [ -z "$small" ]; then
    start rank-alone 0 "$alone"
    ended rank-alone 0
    start rank-0 0 "$here"
    start rank-1 0 "$(other "$here")"
    ended rank-0 0 && ended rank-1 0
    log=$scratch/disk-0/run
    compare "the page's two terminals" "$log/one/log.jsonl" "$log/two/log.jsonl" 1 20 $rounding
    if [ "$text" = 'tiny Shakespeare' ]; then
        # What the page shows of steps 1 and 20, and of validation.
        for run in rank-alone rank-0; do
            for words in $(grep -oE 'loss +[0-9.]+' "$page" | sed -n 's/ //g; 1,3p'); do
                tr -d ' ' <"$scratch/$run" | grep -qF "$words" || fail 1 "$page shows $words, and $run does not"
            done
        done
    fi

    lost=$(command_of '2. Two processes' 2)
    also_lost=$(other "$lost")
    start rank-0 0 "$lost" && start rank-1 0 "$also_lost"
    until_saved 0 100 rank-0 lost
    lose rank-1 # for Ctrl-\, which only a terminal has
    ended rank-0 3 'rank 1'
    start rank-0 0 "$lost" && start rank-1 0 "$also_lost"
    ended rank-0 0 && ended rank-1 0
    start rank-0 0 "${lost/run\/lost/run\/kept}" && start rank-1 0 "${also_lost/run\/lost/run\/kept}"
    ended rank-0 0 && ended rank-1 0
    compare "the page's lost rank, and two that nobody kills" "$log/kept/log.jsonl" "$log/lost/log.jsonl" 1 400 0
    start rank-alone 0 "$(command_of '2. Two processes' 3)"
    ended rank-alone 0

    start rank-1 1 "$(other "$both")"
    start rank-0 0 "$both"
    ended rank-0 0 'checkpoints: to run/lan of rank 0; rank 1 sends its parts there' && ended rank-1 0
    compare "the page's two machines, and its two terminals" "$log/two/log.jsonl" "$log/lan/log.jsonl" 1 20 0
fi

# ---- losing one side or the other ----------------------------------------------------------------------------------

# Sums in one order at any number of ranks that is a power of two; and steps enough to be lost in.
steps=80
longer() { # COMMAND
    local command=${1/--steps 20/--steps $steps}
    [ -z "$small" ] || command=${command/--num-layers 4 --num-heads 4 --channels 128/--num-layers 1 --num-heads 2 --channels 64}
    command=${command/run\/one/run\/legs}
    echo "${command/run\/lan/run\/legs} --grad-sum tree --checkpoint-every 10 --keep 9"
}
on() { echo "$(longer "$1") --resume auto"; } # COMMAND
start rank-alone 0 "$(longer "${alone/run\/one/run\/undisturbed}")"
ended rank-alone 0
undisturbed=$scratch/disk-0/run/undisturbed

start rank-0 0 "$(longer "$both")"
start rank-1 1 "$(longer "$(other "$both")")"
until_saved 0 10 rank-0
lose rank-1
ended rank-0 3 'rank 1'
grep -qF 'is gone' "$scratch/rank-0" || fail 1 'rank 0 does not say that rank 1 is gone'

start rank-1 1 "$(on "$(other "$both")")"
start rank-0 0 "$(on "$both")"
until_saved 0 20 rank-0
lose rank-0
ended rank-1 3 'rank 0'

start rank-0 0 "$(on "$alone")" # alpha alone
until_saved 0 30 rank-0
lose rank-0

# Alpha is lost, but for its disk, which goes into beta. Beta alone; then rank 0 is beta, and alpha comes back with what
# it has.
cp -r "$scratch/disk-0/run/legs" "$scratch/disk-1/run-of-alpha"
mkdir -p "$scratch/disk-1/run"
mv "$scratch/disk-1/run-of-alpha" "$scratch/disk-1/run/legs"
start rank-0 1 "$(on "$alone")"
until_saved 1 40 rank-0
lose rank-0

# It does not go on from less than there is.
start rank-0 0 "$(on "$both")"
start rank-1 1 "$(on "$(other "$both")")"
ended rank-0 2 'rank 1: run/legs holds checkpoints up to step 40 here, and rank 0 has them up to step 30'
ended rank-1 2

from_beta=${both/alpha:/beta:}
start rank-1 0 "$(on "$(other "$from_beta")")"
start rank-0 1 "$(on "$from_beta")"
until_saved 1 50 rank-0
lose rank-1
ended rank-0 3 'rank 1'
cp -r "$scratch/disk-1/run/legs" "$scratch/disk-0/run/virtual"

# Three ranks share twelve sequences in fours: sums in another order, which is that of three ranks in one process where no
# host adds up its own first.
three() { # COMMAND RANK
    local command=${1/--rank 0/--rank $2}
    command=${command/--world-size 2/--world-size 3}
    command=$(on "${command/--batch-size 6/--batch-size 4}")
    echo "${command/--grad-sum tree/--grad-sum tree-ordered}"
}
start rank-2 0 "$(three "$from_beta" 2)"
start rank-1 0 "$(three "$from_beta" 1)"
start rank-0 1 "$(three "$from_beta" 0)"
for rank in 0 1 2; do ended "rank-$rank" 0; done
virtual=$(on "${alone/run\/one/run\/virtual}")
start rank-alone 0 "${virtual/--batch-size 6/--batch-size 4} --grad-sum tree-ordered --virtual-ranks 3"
ended rank-alone 0

legs=$scratch/disk-1/run/legs/log.jsonl
compare 'beta lost after 10, both resumed, alpha lost after 20, alpha alone to 30, beta alone to 40 with its disk, both with rank 0 on beta to 50' \
    "$undisturbed/log.jsonl" "$legs" 1 50 0
compare 'three ranks on both, and three virtual ranks in one process' "$scratch/disk-0/run/virtual/log.jsonl" "$legs" 51 $steps 0
compare 'three ranks on both' "$undisturbed/log.jsonl" "$legs" 51 $steps $rounding
cmp "$(step_folder 1 50)/model.safetensors" "$undisturbed/step_00000050/model.safetensors" ||
    fail 1 'the weights of step 50 are not those of one process'
echo
echo 'The weights of step 50 are those of one process, bit for bit.'
