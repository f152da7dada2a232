/*
How long an idle OpenMP thread spins at the end of a parallel loop before it sleeps. libgomp's default is milliseconds,
which gains nothing on a quiet machine and makes a busy one many times slower (dev/LOG.md, 2026-11-21). A thousand
iterations cover the short waits between two loops.

libgomp reads GOMP_SPINCOUNT when it is loaded, so including this file sets it before: the program executes itself once
more, with the same process id and arguments, before any library starts. Later would be too late: with OMP_PROC_BIND
libgomp has then bound this process to one core, which the program would inherit. (glibc forgets what setenv() sets this
early, so there is no way without exec.) Nothing happens if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set, or without
libgomp. A debugger follows with `set follow-exec-mode same`, or set GOMP_SPINCOUNT=1000.
*/
#pragma once
#if defined(__linux__) && defined(_OPENMP) && !defined(__clang__)
#include <alloca.h>
#include <sys/syscall.h>
#include <unistd.h>

// Called by the dynamic linker, before the C library has started: no function of any library but system calls.
__attribute__((no_sanitize("address", "thread", "undefined"))) static void limit_omp_spin(int, char** argv,
                                                                                          char** variables) {
    int n = 0;
    for (; variables[n]; n++)
        for (const char* name : {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="}) {
            const char* c = variables[n];
            while (*name && *c == *name) c++, name++;
            if (!*name) return;
        }
    static char spin[] = "GOMP_SPINCOUNT=1000";
    auto** const with = static_cast<char**>(alloca(size_t(n + 2) * sizeof(char*)));
    for (int i = 0; i < n; i++) with[i] = variables[i];
    with[n] = spin, with[n + 1] = nullptr;
    syscall(SYS_execve, "/proc/self/exe", argv, with);  // returns only if it failed: then threads spin for longer
}
__attribute__((section(".preinit_array"), used)) static void (*const limit_before_libraries)(int, char**,
                                                                                             char**) = limit_omp_spin;
#endif
