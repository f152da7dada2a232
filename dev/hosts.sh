#!/usr/bin/env bash
# Two hosts on one machine: network namespaces, joined by a line. For dev/two_hosts.sh and dev/two_disks.sh, which source
# this file.
#
#   set_up_hosts RATE CORES CORES    RATE as tc writes it, or none; CORES as taskset does, of each host
#   on_host NUMBER COMMAND...        with its network, its name and its cores; its own disk and names where there are some:
#                                    $scratch/disk-NUMBER is mounted at $scratch/home, $scratch/names at /etc/hosts
#
# Gives $scratch, a folder that goes at the end with all else, the names ${hosts[@]}, the ${addresses[@]}, and a trap.
export LC_ALL=C

fail() { # CODE MESSAGE
    echo "error: $2" >&2
    exit "$1"
}

# Where the programs are: $train, $tokenize.
find_programs() {
    local programs=${ANVIL_PROGRAMS:-./}
    train=$(realpath -q "${programs}train_gpt") && [ -x "$train" ] || fail 2 "${programs}train_gpt is missing: run make"
    tokenize=$(realpath -q "${programs}data/tokenize") && [ -x "$tokenize" ] ||
        fail 2 "${programs}data/tokenize is missing: run make"
}

need() { # COMMAND:PACKAGE...
    local tool
    for tool in "$@"; do
        command -v "${tool%:*}" >/dev/null || fail 2 "${tool%:*} is missing: install ${tool#*:}"
    done
}

clean_up_hosts() {
    trap '' INT TERM HUP
    for host in "${hosts[@]}"; do
        for pid in $(ip netns pids "$host" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
        ip netns del "$host" 2>/dev/null || true # and the interface in it
    done
    rm -rf "$scratch"
}

make_hosts() { # RATE
    local i host control
    for host in "${hosts[@]}"; do
        ip netns add "$host" && ip -n "$host" link set lo up || return 1
        # Linux's default, or what is left: BBR, which some hosts have, slows down for 200 ms every ten seconds, on purpose.
        for control in cubic reno; do
            ip netns exec "$host" sysctl -qw "net.ipv4.tcp_congestion_control=$control" 2>/dev/null && break
        done || true
    done
    ip -n "${hosts[0]}" link add line type veth peer name line netns "${hosts[1]}" || return 1
    for i in 0 1; do
        ip -n "${hosts[i]}" addr add "${addresses[i]}/24" dev line && ip -n "${hosts[i]}" link set line up || return 1
        [ "$1" = none ] ||
            tc -n "${hosts[i]}" qdisc add dev line root tbf rate "$1" burst 256kb latency 2ms || return 1
    done
}

set_up_hosts() { # RATE CORES CORES
    need ip:iproute2 tc:iproute2 taskset:util-linux unshare:util-linux
    [ "$(id -u)" = 0 ] || fail 2 "network namespaces need root: run this with sudo"
    scratch=$(mktemp -d)
    hosts=("anvil-$$-a" "anvil-$$-b")
    addresses=(10.213.77.1 10.213.77.2)
    trap clean_up_hosts EXIT
    trap 'exit 130' INT TERM HUP
    local why
    why=$(make_hosts "$1" 2>&1) ||
        fail 2 "this kernel or container gives no network namespaces with a shaped line: ${why//$'\n'/; }"
    cat >"$scratch/on_host" <<SCRIPT
#!/bin/sh
number=\$1
shift
if [ "\$number" = 0 ]; then host=${hosts[0]} cores=$2; else host=${hosts[1]} cores=$3; fi
exec ip netns exec "\$host" unshare --uts --mount sh -c '
    hostname "\$0" || exit
    if [ -d "$scratch/disk-'"\$number"'" ]; then
        mount --bind "$scratch/disk-'"\$number"'" "$scratch/home" && mount --bind "$scratch/names" /etc/hosts &&
            cd "$scratch/home" || exit
    fi
    exec "\$@"' "\$host" taskset -c "\$cores" "\$@"
SCRIPT
    chmod +x "$scratch/on_host"
}

on_host() { "$scratch/on_host" "$@"; }
