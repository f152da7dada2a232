#!/usr/bin/env bash
# dev/darwin/headers.sh FOLDER: fills FOLDER with the C headers that Darwin has, too, from musl's (Debian's musl-dev). Types and
# members that differ are changed to Darwin's: its int64_t is a long long. Empty files stand for headers that only Darwin has:
# dev/darwin/darwin.h declares their content.
set -euo pipefail
export LC_ALL=C
musl=/usr/include/$(uname -m)-linux-musl
mkdir -p "$1"
cd "$1"
for header in alloca arpa/inet assert ctype dirent dlfcn endian errno fcntl features fenv fnmatch glob grp ifaddrs inttypes langinfo limits \
    locale math net/if netdb netinet/in netinet/tcp nl_types poll pthread pwd sched semaphore setjmp signal spawn stdint stdio stdlib string \
    strings sys/file sys/ioctl sys/mman sys/param sys/resource sys/select sys/socket sys/stat sys/statvfs sys/time sys/types sys/uio sys/un \
    sys/utsname sys/wait termios time unistd utime wchar wctype "$musl"/bits/*; do
    header=${header#"$musl/"}
    header=${header%.h}.h
    mkdir -p "$(dirname "$header")"
    sed -E 's/(#define _Int64) long/\1 long long/; s/\bst_([acm])tim\b/st_\1timespec/g' "$musl/$header" >"$header"
done
mkdir -p mach-o pthread
touch libproc.h mach-o/dyld.h pthread/qos.h sys/event.h sys/random.h sys/sysctl.h xlocale.h
