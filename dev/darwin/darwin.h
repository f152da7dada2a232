/*
What the headers of Darwin declare and those of musl do not, written from its man pages, and without what musl declares
and Darwin does not have. `make darwin-syntax` includes this before every source. Numbers do not matter: nothing is run.
*/
#pragma once
#include <ctype.h>
#include <fcntl.h>
#include <locale.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

// ---- what Linux has and Darwin has not. What musl declares only for _GNU_SOURCE is not seen anyway.

#undef SOCK_CLOEXEC
#undef SOCK_NONBLOCK
#undef MSG_NOSIGNAL
#undef TCP_KEEPIDLE
#undef TCP_USER_TIMEOUT
#undef MAP_POPULATE
#undef MADV_HUGEPAGE
#undef O_PATH
#undef O_TMPFILE
#undef O_DIRECT
#undef POLLRDHUP
#undef _SC_LEVEL2_CACHE_SIZE
#pragma GCC poison sigtimedwait sigwaitinfo posix_fadvise posix_fallocate fdatasync clock_nanosleep
#pragma GCC poison sched_setscheduler sched_getaffinity sched_setaffinity pthread_setschedparam_np pipe2 dup3 accept4
#pragma GCC poison memfd_create prctl syscall getrandom secure_getenv strchrnul mremap program_invocation_short_name

// ---- calls of llmc/platform/darwin.cpp

#define F_FULLFSYNC 51
#define F_NOCACHE 48
#define SO_NOSIGPIPE 0x1022
#define TCP_KEEPALIVE 0x10
#define TCP_RXT_CONNDROPTIME 0x80
extern "C" {
int _NSGetExecutablePath(char* path, uint32_t* bytes);
int sysctlbyname(const char* name, void* old_value, size_t* old_bytes, void* new_value, size_t new_bytes);

#define SZOMB 5
#define PROC_PIDTBSDINFO 3
struct proc_bsdinfo {
    uint32_t pbi_flags, pbi_status, pbi_xstatus, pbi_pid, pbi_ppid;
    uint64_t pbi_start_tvsec, pbi_start_tvusec;  // and others
};
int proc_pidinfo(int pid, int flavor, uint64_t argument, void* buffer, int bytes);

typedef enum { QOS_CLASS_BACKGROUND = 0x09 } qos_class_t;
int pthread_set_qos_class_self_np(qos_class_t qos, int relative_priority);

#define EVFILT_READ (-1)
#define EV_ADD 0x0001
#define EV_DELETE 0x0002
#define EV_CLEAR 0x0020
#define EV_EOF 0x8000
#define NOTE_LOWAT 0x0001
struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void* udata;
};
int kqueue(void);
int kevent(int kq, const struct kevent* changes, int num_changes, struct kevent* events, int num_events,
           const struct timespec* timeout);

// ---- what Darwin has beyond POSIX, and libc++ or llmc/ take

char* strcasestr(const char* big, const char* little);

typedef uint32_t __uint32_t;
#define _CTYPE_A 0x00000100L
#define _CTYPE_C 0x00000200L
#define _CTYPE_D 0x00000400L
#define _CTYPE_L 0x00001000L
#define _CTYPE_P 0x00002000L
#define _CTYPE_S 0x00004000L
#define _CTYPE_U 0x00008000L
#define _CTYPE_X 0x00010000L
#define _CTYPE_B 0x00020000L
#define _CTYPE_R 0x00040000L
#define MB_CUR_MAX_L(locale) 4
float strtof_l(const char*, char**, locale_t);
double strtod_l(const char*, char**, locale_t);
long double strtold_l(const char*, char**, locale_t);
long long strtoll_l(const char*, char**, int, locale_t);
unsigned long long strtoull_l(const char*, char**, int, locale_t);
wint_t btowc_l(int, locale_t);
int wctob_l(wint_t, locale_t);
size_t wcsnrtombs_l(char*, const wchar_t**, size_t, size_t, mbstate_t*, locale_t);
size_t wcrtomb_l(char*, wchar_t, mbstate_t*, locale_t);
size_t mbsnrtowcs_l(wchar_t*, const char**, size_t, size_t, mbstate_t*, locale_t);
size_t mbrtowc_l(wchar_t*, const char*, size_t, mbstate_t*, locale_t);
int mbtowc_l(wchar_t*, const char*, size_t, locale_t);
size_t mbrlen_l(const char*, size_t, mbstate_t*, locale_t);
size_t mbsrtowcs_l(wchar_t*, const char**, size_t, mbstate_t*, locale_t);
struct lconv* localeconv_l(locale_t);
int snprintf_l(char*, size_t, locale_t, const char*, ...);
int asprintf_l(char**, locale_t, const char*, ...);
int sscanf_l(const char*, locale_t, const char*, ...);
}
