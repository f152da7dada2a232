#!/usr/bin/env bash
# Installs missing packages with apt, as root or with a sudo that needs no password; else prints the command to run.
#
#   scripts/setup.sh           what `make` needs: a C++20 compiler, nlohmann-json, xxHash; curl for the data
#   scripts/setup.sh --tests   also what `make test` needs: Catch2, and Open MPI unless USE_MPI=0
#   scripts/setup.sh --venv    also Python's virtual environments
#   scripts/setup.sh --lint    also clang-format, by pip into .deps/lint (formatters differ by version: one for all)
#   scripts/setup.sh --clang   also clang, with which `make msan` works and `make sanitize` compiles in half the time
#   scripts/setup.sh --libcxx  also clang with libc++, and musl's headers: make libcxx, make darwin-syntax
#   scripts/setup.sh --oldest  also clang 14, the oldest that compiles this
#   scripts/setup.sh --compiler   installs nothing: is the compiler new enough?
#
# Exit code 2 if something needed is still missing. If nothing is missing, it does and prints nothing and needs no network.
# Headers may also be in $DEPS_DIR/include (default .deps).
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

clang_format_version=18.1.8
deps=${DEPS_DIR:-.deps}
cxx=${CXX:-g++}
tests= lint= venv= clang= libcxx= oldest= compiler=
for arg; do
    case $arg in
    --tests) tests=1 ;;
    --venv) venv=1 ;;
    --lint) lint=1 ;;
    --clang) clang=1 ;;
    --libcxx) libcxx=1 ;;
    --oldest) oldest=1 ;;
    --compiler) compiler=1 ;;
    *) echo "error: $arg: expected --tests, --venv, --lint, --clang, --libcxx, --oldest or --compiler" >&2 && exit 2 ;;
    esac
done

needed=() optional=()
have() { command -v "$1" >/dev/null; }
have_header() { [ -f "$deps/include/$1" ] || echo "#include <$1>" | "$cxx" -M -x c++ - >/dev/null 2>&1; }

if have "$cxx"; then
    # g++ 11, Ubuntu 22.04's, has no __builtin_shufflevector. clang++ 13 was never tried.
    read -r clang_major gnu_major < <(echo '__clang_major__ __GNUC__' | "$cxx" -E -P -x c++ - 2>/dev/null | tail -n 1) || true
    if [ "$clang_major" != __clang_major__ ]; then gnu_major=; fi
    if [ "${gnu_major:-12}" -lt 12 ] || { [ -z "$gnu_major" ] && [ "${clang_major:-0}" -lt 14 ]; }; then
        echo "error: $cxx ($("$cxx" -dumpversion)) is too old: expected g++ 12 or clang++ 14, or newer. Run: apt-get install g++-12 && export CXX=g++-12" >&2
        exit 2
    fi
    [ -z "$compiler" ] || exit 0
    have_header nlohmann/json.hpp || needed+=(nlohmann-json3-dev)
    have_header xxhash.h || needed+=(libxxhash-dev)
    [ -z "$tests" ] || have_header catch2/catch_all.hpp || have_header catch2/catch.hpp || needed+=(catch2)
else
    [ -z "$compiler" ] || exit 0
    needed+=(g++ nlohmann-json3-dev libxxhash-dev)
    [ -z "$tests" ] || needed+=(catch2)
fi
have make || needed+=(make)
have git || needed+=(git)
have python3 || needed+=(python3)
have curl || optional+=(curl)
[ -f /etc/ssl/certs/ca-certificates.crt ] || optional+=(ca-certificates)
if [ -n "$tests" ] && [ "${USE_MPI:-auto}" != 0 ]; then
    have mpirun || optional+=(openmpi-bin)
    have mpicxx || optional+=(libopenmpi-dev)
fi
[ -z "$tests" ] || python3 -c 'import yaml' 2>/dev/null || optional+=(python3-yaml)
[ -z "$clang" ] || have clang++-19 || have clang++ || optional+=(clang-19 libclang-rt-19-dev libomp-19-dev llvm-19)
if [ -n "$libcxx" ]; then
    [ -d /usr/lib/llvm-19/include/c++ ] || optional+=(clang-19 libomp-19-dev libc++-19-dev libc++abi-19-dev)
    [ -d "/usr/include/$(uname -m)-linux-musl" ] || optional+=(musl-dev)
fi
[ -z "$oldest" ] || have clang++-14 || optional+=(clang-14)
formatter=
if [ -n "$lint" ]; then
    for found in "$deps/lint/bin/clang-format" clang-format; do
        if [[ $("$found" --version 2>/dev/null) == *" $clang_format_version"* ]]; then
            formatter=$found
            break
        fi
    done
    [ -n "$formatter" ] || venv=1
fi
# In Debian and Ubuntu, Python's virtual environments are in a package of their own.
[ -z "$venv" ] || python3 -c 'import ensurepip, venv' 2>/dev/null || needed+=(python3-venv)

packages=("${needed[@]}" "${optional[@]}")
if [ ${#packages[@]} -gt 0 ]; then
    install="apt-get install -y --no-install-recommends ${packages[*]}"
    as_root=(env DEBIAN_FRONTEND=noninteractive)
    if [ "$(id -u)" != 0 ]; then
        if have sudo && sudo -n true 2>/dev/null; then as_root=(sudo -n "${as_root[@]}"); else as_root=(); fi
    fi
    # Stops only for what is always needed. A download without curl fails later, with its own message.
    give_up() {
        if [ ${#needed[@]} -gt 0 ]; then
            echo "error: missing: ${needed[*]}. $1" >&2
            exit 2
        fi
        echo "note: missing: ${optional[*]} (not needed by everything). $1" >&2
    }
    if ! have apt-get; then
        give_up "This is not Debian or Ubuntu: install what these packages hold with your package manager"
    elif [ ${#as_root[@]} = 0 ]; then
        give_up "Run: sudo sh -c 'apt-get update && $install'"
    else
        echo "installing ${packages[*]}"
        apt=("${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300)
        if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } >/dev/null; then
            give_up "apt-get failed (its own words are above): is there a network? To try by hand: $install"
        fi
    fi
fi

if [ -n "$lint" ] && [ -z "$formatter" ]; then
    echo "installing clang-format $clang_format_version into $deps/lint"
    rm -rf "$deps/lint"
    if ! { python3 -m venv "$deps/lint" &&
        "$deps/lint/bin/pip" install -q --disable-pip-version-check "clang-format==$clang_format_version"; }; then
        rm -rf "$deps/lint"
        echo "error: cannot install clang-format $clang_format_version with pip: is there a network?" >&2
        exit 2
    fi
fi
