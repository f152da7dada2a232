/*
--supervise: a process that runs the training as its child, and restarts it from the newest checkpoint when a rank was
lost: after exit code 3, or when the child itself was killed. Each rank has its own supervisor. Supervisors do not
communicate, because the restarted ranks find each other as always.

  if (flags.launch.supervise && !Supervised::now()) return supervise(flags, argv);     in main(), before any thread
  Supervised::say_saved();                            in the child: a checkpoint is complete

The child has the same command line, the same open files and its own process group. A signal to the supervisor is
forwarded once, and prevents further restarts. The supervisor ends as its last child did, with the same exit code or by
the same signal. If the supervisor is killed, so is the child, which the other ranks then see as a lost rank.
*/
#pragma once
#include "llmc/run/run_flags.h"  // RunFlags

// Throws an Error if these flags cannot be supervised. Does not return if the child ended by a signal.
int supervise(const RunFlags& flags, char** argv);

// Information that a child receives from its supervisor, by environment variables.
class Supervised {
public:
    static bool now() { return state().is_child; }
    // Whether a checkpoint was completed since the supervisor started. Only then are missing ranks lost ones; otherwise
    // they may not have started yet.
    static bool has_saved() { return state().has_saved; }
    static bool is_restarted() { return state().is_restarted; }
    static void say_saved();

private:
    struct State {
        bool is_child = false, has_saved = false, is_restarted = false;
        int pipe = -1;
        State();
    };
    static State& state() {
        static State state;
        return state;
    }
};
