/*
--supervise: a process that starts the training as its child, and starts it again from the newest checkpoint when a rank
was lost: after exit code 3, or when the child itself was killed. Each rank has its own supervisor; supervisors do not
communicate, because the ranks meet as always.

  if (flags.launch.supervise && !Supervised::now()) return supervise(flags, argv);     in main(), before any thread
  Supervised::say_saved();                            in the child: a checkpoint is complete

The child has the same command, the same open files and a process group of its own. Each signal to this process is
passed on once, and nothing is started again after it. The supervisor ends as its last child did, by exit code or
signal. If it is killed, so is the child, which is then a lost rank to the others.
*/
#pragma once
#include "llmc/train/run_flags.h"  // RunFlags

// Throws an Error if these flags cannot be supervised. Does not return if the child ended by a signal.
int supervise(const RunFlags& flags, char** argv);

// What a child knows of its supervisor, who tells it by the environment.
class Supervised {
public:
    static bool now() { return state().is_child; }
    // Has a checkpoint been complete since the supervisor began? Only then the others are a run that has lost a rank,
    // and not one that was never whole.
    static bool has_saved() { return state().has_saved; }
    static void say_saved();

private:
    struct State {
        bool is_child = false, has_saved = false;
        int pipe = -1;
        State();
    };
    static State& state() {
        static State state;
        return state;
    }
};
