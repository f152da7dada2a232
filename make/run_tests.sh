#!/usr/bin/env bash
# Runs a test program, JOBS processes at once: a process for each topic, which is a test file's tag, and for each schedule of
# emulated threads in $SCHEDULES. A single process would leave cores idle: tests wait for ranks, files and clocks, and an
# emulated kernel runs on one thread.
#
#   SCHEDULES='in_order reverse' WITHOUT_TESTS='~[slow]' make/run_tests.sh JOBS PROGRAM [TOPIC [ARGUMENT...]]
#
# Leaves out tests with the tags in $WITHOUT_TESTS; `make test` leaves out [slow]. Long tests of models, tagged [once], run with the first schedule only. A
# single TOPIC, or ARGUMENTs, run in one process. For topics that pass, only their own output is shown. The last line is the
# sum: `N passed, N failed`.
#
# ANVIL_RUN_WITH is the emulator that runs the program if it is built for another processor: see make/sanitize.mk.
#
# With RETRY=1, topics that failed run again after all others: tests depend on ranks and clocks, and one in a thousand may
# fail because the machine is busy. If a topic passes then, it counts as passed, and is reported as flaky at the end, with
# its first output. Findings of a sanitizer stay failures.
#
# A process that runs for longer than LIMIT seconds (default 1500) has failed with exit code 124, and does not run again.
set -uo pipefail
export LC_ALL=C
jobs=$1 program=$2 topic=${3:-}
shift $(($# < 3 ? $# : 3))
arguments=("$@")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
limit=${LIMIT:-1500}
given_counts=${ANVIL_COUNTS:-}
touch "$scratch/counts" "$scratch/failed" "$scratch/again" "$scratch/flaky"

# say TITLE STATUS SECONDS LOG
say() {
    local counts
    counts=$(tail -n 1 "$4")
    if [ "$2" != 0 ]; then
        printf '%s: FAILED in %d s, exit code %d\n' "$1" "$3" "$2"
        { echo "==== $1, exit code $2" && cat "$4"; } >>"$scratch/failed"
    elif [ ${#arguments[@]} != 0 ]; then
        echo "==== $1" && cat "$4"
    elif [ "$counts" != '0 passed, 0 failed' ]; then
        printf '%s: %s in %d s\n' "$1" "$counts" "$3"
        grep -vE '^(=+|All tests passed .*|[0-9]+ passed, 0 failed|Filters: .*|Randomness seeded to: .*|)$' "$4"
    fi
    return 0
}

# run SCHEDULE TESTS TITLE LOG: runs tests and prints their output in one piece. Background processes of a shell ignore SIGINT,
# those of nohup SIGHUP, and child processes would inherit that. Tests send both signals, so they are reset.
run() {
    local status=0 began=$SECONDS
    [ "$1" = none ] || export ANVIL_EMULATOR_SCHEDULE=$1
    # With ANVIL_COUNTS it is no error if a topic has no tests for the later schedules.
    ANVIL_COUNTS=$4.counts timeout --foreground --kill-after=10 "$limit" env --default-signal=HUP,INT,QUIT \
        ${ANVIL_RUN_WITH:-} "$program" ${2:+"$2"} "${arguments[@]}" >"$4" 2>&1 || status=$?
    [ $status = 0 ] || grep -qs ' [1-9]' "$4.counts" || echo '0 1' >>"$4.counts"
    if [ $status != 0 ] && [ $status != 124 ] && [ -n "${RETRY:-}" ] && ! grep -qE 'Sanitizer|runtime error:' "$4"; then
        printf '%s: failed in %d s, exit code %d; it will be run again\n' "$3" $((SECONDS - began)) $status
        printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$scratch/again"
        return 0
    fi
    {
        flock 9
        [ ! -f "$4.counts" ] || cat "$4.counts" >>"$scratch/counts"
        say "$3$([ "$1" = none ] || echo ", threads $1")" $status $((SECONDS - began)) "$4"
    } 9>"$scratch/lock"
    return $status
}

status=0 running=0
# start SCHEDULE TESTS TITLE: runs tests in the background, as soon as fewer than JOBS processes run
start() {
    if [ $running -ge "$jobs" ]; then
        wait -n || status=1
        running=$((running - 1))
    fi
    run "$1" "$2" "$3" "$scratch/$3.$1" &
    running=$((running + 1))
}

# The longest topics come first, so that none is left running alone at the end.
longest='attention two_hosts readme tcp_ranks tcp_strangers tcp_network entropy zero host_comm gpu_check proxy attention_decode train plans linear speedrun plan architecture gemm muon
    newton_schulz watchdog bf16_model model checkpoint resume'
topics=()
if [ -z "$topic" ] && [ ${#arguments[@]} = 0 ]; then
    tags=$(${ANVIL_RUN_WITH:-} "$program" --list-tags | sed -nE 's/^ *[0-9]+ +\[([a-z_0-9]+)\].*/\1/p')
    for tag in $(printf '%s\n' $longest $tags | awk '!seen[$0]++'); do
        if compgen -G "test/*/${tag}_test.cpp" >/dev/null || compgen -G "test/*/${tag}_cuda_test.cu" >/dev/null; then topics+=("$tag"); fi
    done
fi
left_out="~[.]${WITHOUT_TESTS:-}" # [.]: hidden tests
for schedule in ${SCHEDULES:-none}; do
    if [ ${#topics[@]} = 0 ]; then
        start "$schedule" "${topic:+[$topic]$left_out}" "${topic:-all tests}"
    else
        # Tests with MPI run alone, because ranks under MPI spin while they wait.
        run "$schedule" "[mpi]$left_out" mpi "$scratch/mpi.$schedule" || status=1
        # A test with several topics runs with the first of them. Tests without a topic run last.
        earlier='~[mpi]'
        for tag in "${topics[@]}"; do
            start "$schedule" "[$tag]$earlier$left_out" "$tag"
            earlier+="~[$tag]"
        done
        start "$schedule" "$earlier$left_out" "no topic"
    fi
    left_out+='~[once]'
done
for (( ; running > 0; running--)); do wait -n || status=1; done

unset RETRY
while IFS=$'\t' read -r -u 8 schedule tests title; do
    first=$scratch/$title.$schedule
    if run "$schedule" "$tests" "$title" "$scratch/again.log"; then
        { echo "==== flaky: $title passed when it was run again, alone. It had said" && cat "$first"; } >>"$scratch/flaky"
    else
        status=1
    fi
    rm -f "$scratch/again.log.counts"
done 8<"$scratch/again"

cat "$scratch/flaky" "$scratch/failed"
[ -z "$given_counts" ] || cat "$scratch/counts" >>"$given_counts"
awk '{passed += $1; failed += $2} END {printf "%d passed, %d failed\n", passed, failed; exit !(passed + failed)}' \
    "$scratch/counts" || [ -n "$given_counts" ] || status=1
exit $status
