/*
How long an idle OpenMP thread spins at the end of a parallel loop before it sleeps. libgomp's default is milliseconds,
which gains nothing on a quiet machine and makes a busy one many times slower (dev/LOG.md, 2026-11-21). A thousand
iterations cover the short waits between two loops.

  int main(int argc, char** argv) {
      limit_omp_spin(argv);          before anything else: it may execute the program again

libgomp reads GOMP_SPINCOUNT before main() runs, so this sets it and executes /proc/self/exe once more, with the same
process id and arguments. It does nothing if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. A debugger follows with
`set follow-exec-mode same`, or set GOMP_SPINCOUNT=1000.
*/
#pragma once
#include <unistd.h>
#include <cstdlib>

inline void limit_omp_spin(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "1000", 0);
    execv("/proc/self/exe", argv);  // returns only if it failed: then the threads spin for longer
}
