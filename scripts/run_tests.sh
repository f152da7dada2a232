#!/usr/bin/env bash
# Runs a program of tests, JOBS processes at once: every topic, which is a file of tests and their tag, in every order of
# threads in $SCHEDULES, which only the emulated GPU has. Tests wait for each other's ranks, for files and for clocks, and
# an emulated kernel's threads are fibers of one thread: one process would leave cores idle.
#
#   SCHEDULES='in_order reverse' WITHOUT_TESTS='~[plain]' scripts/run_tests.sh JOBS PROGRAM [TOPIC [ARGUMENT...]]
#
# Left out are tests with the tags in $WITHOUT_TESTS, and those tagged [once], long ones of what kernels are put together to,
# in all orders but the first. One topic, or one with arguments, is one process. Of what passed, only what it said is
# shown. The last line adds up: `N passed, N failed`.
#
# ANVIL_RUN_WITH is what runs the program, for a processor that this machine does not have: see make/aarch64.mk.
#
# With RETRY=1 a topic that failed runs once more when all others are over: tests wait for ranks and for clocks, and one in
# a thousand may meet a moment in which the machine is doing something else. If it passes then, it has passed, and is
# called flaky at the end, with what it had said. What a sanitizer has reported stays a failure.
set -uo pipefail
jobs=$1 program=$2 topic=${3:-}
shift $(($# < 3 ? $# : 3))
arguments=("$@")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
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

# run SCHEDULE TESTS TITLE LOG: the output in one piece, though several may end at once. What a shell starts beside itself
# ignores SIGINT, what nohup starts SIGHUP, and so would all that these start: tests send both.
run() {
    local status=0 began=$SECONDS
    [ "$1" = none ] || export ANVIL_EMULATOR_SCHEDULE=$1
    # With ANVIL_COUNTS it is no error that a topic has no tests for the later orders.
    ANVIL_COUNTS=$4.counts env --default-signal=HUP,INT,QUIT ${ANVIL_RUN_WITH:-} "$program" ${2:+"$2"} "${arguments[@]}" >"$4" 2>&1 || status=$?
    [ $status = 0 ] || grep -qs ' [1-9]' "$4.counts" || echo '0 1' >>"$4.counts"
    if [ $status != 0 ] && [ -n "${RETRY:-}" ] && ! grep -qE 'Sanitizer|runtime error:' "$4"; then
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
# start SCHEDULE TESTS TITLE: as soon as there is room
start() {
    if [ $running -ge "$jobs" ]; then
        wait -n || status=1
        running=$((running - 1))
    fi
    run "$1" "$2" "$3" "$scratch/$3.$1" &
    running=$((running + 1))
}

# Those that take longest come first, so that at the end no process has much left to do.
longest='attention two_hosts readme tcp_ranks tcp_strangers tcp_network entropy zero host_comm gpu_check proxy attention_decode train plans linear speedrun plan architecture gemm muon
    newton_schulz watchdog bf16_model model checkpoint resume'
topics=()
if [ -z "$topic" ] && [ ${#arguments[@]} = 0 ]; then
    tags=$(${ANVIL_RUN_WITH:-} "$program" --list-tags | sed -nE 's/^ *[0-9]+ +\[([a-z_0-9]+)\].*/\1/p')
    for tag in $(printf '%s\n' $longest $tags | awk '!seen[$0]++'); do
        if compgen -G "test/*/${tag}_test.cpp" >/dev/null || compgen -G "test/*/${tag}_cuda_test.cu" >/dev/null; then topics+=("$tag"); fi
    done
fi
left_out="~[.]${WITHOUT_TESTS:-}" # and hidden ones
for schedule in ${SCHEDULES:-none}; do
    if [ ${#topics[@]} = 0 ]; then
        start "$schedule" "${topic:+[$topic]$left_out}" "${topic:-all tests}"
    else
        # Several ranks under MPI, which does not sleep while it waits, have the cores for themselves.
        run "$schedule" "[mpi]$left_out" mpi "$scratch/mpi.$schedule" || status=1
        # A test with several topics runs with the first of them; at last those with none.
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
