#!/usr/bin/env bash
# Collects what another machine lacks in .deps/, which git ignores and the Makefile searches. Copy that folder with the sources.
#
#   scripts/carry_deps.sh                the headers of Catch2, nlohmann-json and xxHash, as installed here
#   scripts/carry_deps.sh --mpi          also Open MPI, as installed here by apt: `. .deps/mpi/env.sh` to use it there
#   scripts/carry_deps.sh --wheels [DIR] also the headers of cuBLAS, cuDNN and NCCL from NVIDIA's wheels, for a machine
#                                        that has only the libraries. DIR: a folder with .whl files, or
#                                        site-packages/nvidia; default: Python's own, else pip downloads them (1 GB)
#   scripts/carry_deps.sh --programs     also the programs that make VARIANT=cuda has built here, stripped: ./train_gpt,
#                                        data/tokenize, build/cuda/gpu-tests, those of build/cuda/bench/ that are there.
#                                        Exit code 2 if scripts/gpu_check.sh first needs another one, or one is linked
#                                        with what is not there: MPI, or other versions of NVIDIA's libraries
#   scripts/carry_deps.sh --versions     prints those versions, for pip, and does nothing else
#   scripts/carry_deps.sh --nccl CHIP    also NCCL, found as by make (NVIDIA_WHEELS, NCCL_HOME), with the code of one chip only
#                                        (90: H100, H200; 80: A100) instead of 340 MB: for scripts/gpu_check.sh comm,
#                                        which on one GPU needs 2.30.3 or later
#
# Programs and NCCL are packed in .deps/carried.tar.xz; scripts/gpu_check.sh unpacks it if there is no ./train_gpt yet.
# $DEPS_DIR, if set, replaces .deps; $NVIDIA_VERSIONS those of --versions. Prints what it took and from where. Exit code 2 if something is missing, or if the
# folder and the sources together are larger than 64 MiB.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

deps=${DEPS_DIR:-.deps}
cxx=${CXX:-g++}
max_mib=64
# What PyTorch 2.11.0 requires for CUDA 13, so what a machine has that has it.
read -ra versions <<<"${NVIDIA_VERSIONS:-nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9}"

fail() {
    echo "error: $*" >&2
    exit 2
}
took() { printf '%-14s %s\n' "$1" "$2"; }

mpi= wheels= wheels_from= programs= nccl_chip=
while [ $# -gt 0 ]; do
    case $1 in
    --mpi) mpi=1 ;;
    --wheels)
        wheels=1
        if [ $# -gt 1 ] && [[ $2 != --* ]]; then
            wheels_from=$2
            shift
        fi
        ;;
    --programs) programs=1 ;;
    --versions) echo "${versions[@]}" && exit 0 ;;
    --nccl)
        nccl_chip=${2-}
        [[ $nccl_chip =~ ^[0-9]+$ ]] || fail "--nccl '$nccl_chip': expected the chip's number, such as 90"
        shift
        ;;
    *) fail "$1: expected --mpi, --wheels [DIR], --programs, --versions or --nccl CHIP" ;;
    esac
    shift
done

# ---- headers -------------------------------------------------------------------------------------------------------
# The folder on the compiler's path that contains a header. .deps is not searched.
folder_with() {
    local header=$1 folder
    while read -r folder; do
        if [ -f "$folder/$header" ]; then
            (cd "$folder" && pwd -P)
            return
        fi
    done < <("$cxx" -E -v -x c++ /dev/null 2>&1 >/dev/null | sed -n '/^#include </,/^End/s/^ //p')
}

# carry_header NAME PACKAGE WHAT HEADER...: copies WHAT, a file or folder next to the first HEADER that is found
carry_header() {
    local name=$1 package=$2 what=$3 header folder
    shift 3
    for header; do
        folder=$(folder_with "$header")
        [ -n "$folder" ] || continue
        rm -rf "$deps/include/$what"
        cp -RL "$folder/$what" "$deps/include/$what"
        took "$name" "$folder/$what"
        return
    done
    fail "$name is not installed here: run scripts/setup.sh --tests, or apt-get install $package"
}

command -v "$cxx" >/dev/null || fail "$cxx is not installed here: run scripts/setup.sh"
mkdir -p "$deps/include" "$deps/lib"
carry_header Catch2 catch2 catch2 catch2/catch_all.hpp catch2/catch.hpp
carry_header nlohmann-json nlohmann-json3-dev nlohmann nlohmann/json.hpp
carry_header xxHash libxxhash-dev xxhash.h xxhash.h
# Version 3 of Catch2 has a library.
if [ -f "$deps/include/catch2/catch_all.hpp" ]; then
    library=$("$cxx" -print-file-name=libCatch2.a)
    [ -f "$library" ] || fail "Catch2 is version 3 and its libCatch2.a was not found"
    cp -L "$library" "$deps/lib/"
    took 'its library' "$library"
fi

# ---- Open MPI ------------------------------------------------------------------------------------------------------
# Copies its packages and those that it needs to start. Modules for InfiniBand and the like are not usable then.
carry_mpi() {
    command -v dpkg-query >/dev/null || fail "--mpi: this is not Debian or Ubuntu: no packages to take Open MPI from"
    local pattern found packages=() triplet into=$deps/mpi
    for pattern in openmpi-bin openmpi-common 'libopenmpi[0-9]*' libopenmpi-dev 'libhwloc[0-9]*' 'libevent-core-*' \
        'libevent-pthreads-*' 'libpmix[0-9]*' 'libmunge[0-9]*'; do
        found=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$pattern" 2>/dev/null | sed -n 's/^installed //p')
        [ -n "$found" ] || fail "--mpi: no package $pattern is installed here: apt-get install openmpi-bin libopenmpi-dev"
        while read -r package; do packages+=("$package"); done <<<"$found"
    done
    triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || "$cxx" -print-multiarch)
    rm -rf "$into"
    mkdir -p "$into"
    # Without manuals and files that only Fortran, Java and OpenSHMEM use. Links in /usr/lib stay links.
    dpkg -L "${packages[@]}" | sort -u | grep -E '^/(usr/)?(bin|lib|share/(openmpi|pmix))' |
        grep -vE '/(fortran|lib(oshmem|mpi_java|mpi_mpifh|mpi_use)[^/]*|(open|p)?shmem[^/]*)(/|$)' |
        while read -r file; do
            if [ -f "$file" ] || [ -L "$file" ]; then printf '%s\0' ".$file"; fi
        done | tar -C / --no-recursion --null -cf - -T - | tar -C "$into" -xf -
    # /lib may be a link to /usr/lib, so all files go to one place. Links to files that were not copied are removed.
    for folder in bin lib; do
        if [ -d "$into/$folder" ]; then
            cp -a "$into/$folder/." "$into/usr/$folder/"
            rm -rf "${into:?}/$folder"
        fi
    done
    find "$into" -xtype l -delete
    # `mpirun` and the like are links through /etc/alternatives, which is not copied.
    ln -sf orterun "$into/usr/bin/mpirun"
    ln -sf opal_wrapper "$into/usr/bin/mpicxx"
    cp "$into/usr/share/openmpi/mpic++-wrapper-data.txt" "$into/usr/share/openmpi/mpicxx-wrapper-data.txt"
    ln -sf ../../libmpi.so.40 "$into/usr/lib/$triplet/openmpi/lib/libmpi.so"
    cat >"$into/env.sh" <<END
# Source this: Open MPI out of this folder, wherever it lies.
mpi_root=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)/usr
mpi_lib=\$mpi_root/lib/$triplet
export OPAL_PREFIX=\$mpi_root PMIX_PREFIX=\$mpi_root MPI_HOME=\$mpi_lib/openmpi PATH=\$mpi_root/bin:\$PATH
export LD_LIBRARY_PATH=\$mpi_lib:\$mpi_lib/openmpi/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# Modules for networks that are not there say so otherwise.
export OMPI_MCA_mca_base_component_show_load_errors=0 PMIX_MCA_pcompress_base_silence_warning=1
END
    # shellcheck disable=SC1091
    (. "$into/env.sh" && mpirun -np 2 true) || fail "--mpi: the copy in $into does not start"
    took 'Open MPI' "packages ${packages[*]}"
    local outside
    # shellcheck disable=SC1091
    outside=$(. "$into/env.sh" && ldd "$into/usr/bin/orterun" "$into/usr/lib/$triplet"/libmpi.so.* |
        awk '/=> \// { print $3 }' | grep -v "^$(cd "$into" && pwd)" | sort -u | xargs -n1 basename | tr '\n' ' ')
    took '  it expects' "${outside% }"
}
[ -z "$mpi" ] || carry_mpi

# ---- NVIDIA's headers ----------------------------------------------------------------------------------------------
# carry_wheel NAME PACKAGE FOLDER HEADER: copies a library's headers from site-packages/nvidia/FOLDER or its wheel: HEADER and
# those whose names begin like it
carry_wheel() {
    local name=$1 package=$2 folder=$3 header=$4 wheel= from stem=${4%.h}
    if [ -f "$wheels_from/$folder/include/$header" ]; then
        from=$wheels_from/$folder/include
    else
        wheel=$(find "$wheels_from" -maxdepth 1 -name "${package//-/_}-*.whl" | sort -V | tail -n 1)
        [ -n "$wheel" ] || fail "--wheels: neither $folder/include/$header nor a wheel of $package is in $wheels_from"
        from=$scratch/$folder
        python3 - "$wheel" "nvidia/$folder/include/" "$from" <<'END' || fail "--wheels: cannot unpack $wheel"
import pathlib, sys, zipfile
wheel, prefix, into = sys.argv[1:]
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        if name.startswith(prefix) and not name.endswith("/"):
            path = pathlib.Path(into, name[len(prefix):])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.read(name))
END
        [ -f "$from/$header" ] || fail "--wheels: no $header in $wheel"
    fi
    cp -L "$from/${stem%Lt}"*.h "$deps/include/"
    took "$name" "${wheel:-$from}"
}

if [ -n "$wheels" ]; then
    command -v python3 >/dev/null || fail "--wheels: python3 is not installed here"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    if [ -z "$wheels_from" ]; then
        wheels_from=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
        if [ ! -f "$wheels_from/cudnn/include/cudnn.h" ]; then
            echo "downloading wheels of cuBLAS, cuDNN and NCCL (about 1 GB) for their headers"
            wheels_from=$scratch
            python3 -m pip download -q --disable-pip-version-check --no-deps -d "$scratch" \
                "${versions[@]}" ||
                fail "--wheels: pip could not download them: give a folder that holds them, --wheels DIR"
        fi
    fi
    [ -d "$wheels_from" ] || fail "--wheels $wheels_from: no such folder"
    carry_wheel cuBLAS nvidia-cublas cu13 cublasLt.h
    carry_wheel cuDNN nvidia-cudnn-cu13 cudnn cudnn.h
    carry_wheel NCCL nvidia-nccl-cu13 nccl nccl.h
fi

# ---- programs and NCCL ---------------------------------------------------------------------------------------------
find_nccl() {
    local folder wheels_here
    wheels_here=${NVIDIA_WHEELS:-$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia}
    for folder in ${NCCL_HOME:+"$NCCL_HOME/lib"} "$wheels_here/nccl/lib" /usr/lib/x86_64-linux-gnu; do
        if [ -e "$folder/libnccl.so.2" ]; then
            echo "$folder/libnccl.so.2"
            return
        fi
    done
    fail "--nccl: no libnccl.so.2 in $wheels_here/nccl/lib: pip install nvidia-nccl-cu13 (-cu12 for CUDA 12), or set NVIDIA_WHEELS or NCCL_HOME"
}

# Whether a program would start there, with the libraries that it was built for.
check_program() {
    local program=$1 linked version package library path
    linked=$(ldd "$program" 2>/dev/null || true)
    [ -n "$mpi" ] || ! grep -q 'libmpi\.so' <<<"$linked" ||
        fail "--programs: $program is linked with libmpi, which is not carried: build with USE_MPI=0, or add --mpi"
    for version in "${versions[@]}"; do
        package=${version%%=*}
        library=$(sed -E 's/^nvidia-//; s/-cu[0-9]+$//; s/^cublas$/&Lt/' <<<"$package")
        path=$(sed -n "s/^.*lib$library\.so[^ ]* => \(\/[^ ]*\).*/\1/p" <<<"$linked")
        [ -z "$path" ] || [ -d "${path%/nvidia/*}/${package//-/_}-${version##*=}.dist-info" ] ||
            fail "--programs: $program is linked with $path, expected that of $version: set NVIDIA_WHEELS (doc/tutorials/on_a_gpu.md)"
    done
}

if [ -n "$programs$nccl_chip" ]; then
    packed=$(mktemp -d)
    trap 'rm -rf "$packed" ${scratch:+"$scratch"}' EXIT
    if [ -n "$programs" ]; then
        benches=$(sed -n 's/^FIRST_BENCHES = //p' scripts/gpu_check/parts.py | tr -d '(",)')
        # shellcheck disable=SC2086
        needed=(train_gpt data/tokenize build/cuda/gpu-tests $(printf 'build/cuda/bench/%s ' $benches))
        lacking=()
        for program in "${needed[@]}"; do [ -x "$program" ] || lacking+=("$program"); done
        [ ${#lacking[@]} = 0 ] || fail "--programs: scripts/gpu_check.sh first would take its ten minutes to build what is not" \
            "here: make -j VARIANT=cuda USE_MPI=0 ${lacking[*]}"
        for program in train_gpt data/tokenize build/cuda/gpu-tests build/cuda/bench/*; do
            if [ ! -x "$program" ] || [ -d "$program" ]; then continue; fi
            check_program "$program"
            mkdir -p "$packed/$(dirname "$program")"
            strip -o "$packed/$program" "$program"
            took "$program" "$(du -h --apparent-size "$packed/$program" | cut -f 1) stripped"
        done
    fi
    if [ -n "$nccl_chip" ]; then
        library=$(find_nccl)
        mkdir -p "$packed/build/carried/lib"
        scripts/one_chip.py "$library" "$nccl_chip" "$packed/build/carried/lib/libnccl.so.2"
    fi
    # A higher level would hardly help: device code is compressed already. But the programs have most of it in common.
    (cd "$packed" && tar -cf - -- *) | xz --lzma2=preset=3,dict=256MiB >"$deps/carried.tar.xz"
    took packed "$(du -h --apparent-size "$deps/carried.tar.xz" | cut -f 1) in $deps/carried.tar.xz"
fi

# ---- the size ------------------------------------------------------------------------------------------------------
# The tools of `make lint` may also be there. They are not needed elsewhere, so they do not count.
bytes=$(du -sb --exclude=lint "$deps" | cut -f 1)
took total "$(awk "BEGIN { printf \"%.1f MB\", $bytes / 1e6 }") in $deps"
sources=$({ git ls-files -z 2>/dev/null || true; } | xargs -0 -r stat -c %s 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')
[ $((bytes + sources)) -le $((max_mib * 1024 * 1024)) ] ||
    fail "$deps and $((sources / 1000000)) MB of sources are larger than $max_mib MiB: remove what need not travel"
