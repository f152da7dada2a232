/*
How threads wait for each other at the end of a parallel loop. libgomp spins for milliseconds, which gains nothing on a
quiet machine and makes a busy one many times slower (dev/LOG.md, 2026-11-21). A thousand turns catch the short waits
between two loops and leave the long ones to the kernel.

  int main(int argc, char** argv) {
      wait_briefly(argv);          first of all

libgomp reads the variable before main() runs, so the program is started once more with it set. Whoever sets
GOMP_SPINCOUNT or OMP_WAIT_POLICY keeps that.
*/
#pragma once
#include <unistd.h>
#include <cstdlib>

inline void wait_briefly(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "1000", 0);
    execv("/proc/self/exe", argv);  // returns only if it could not: then the threads spin
}
