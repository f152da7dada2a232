/*
This program started once more, as a child: by --supervise, and by --nproc-per-node once for each rank.

The child has its own process group, so that a signal of the terminal reaches it once, from its parent. If the parent
is killed, so is the child.
*/
#pragma once
#include <signal.h>
#include <sys/types.h>
#include <functional>
#include <string>
#include <vector>

// The signals that a parent takes with sigwaitinfo() and forwards: those that ask a run to stop, unless they are
// ignored (nohup), those of the terminal's job control, and SIGCHLD.
sigset_t watched_signals();

// Starts this program with these arguments and the signal mask. prepare() runs in the child, before. `flag` is for
// errors: "--supervise".
pid_t start_child(char* const* arguments, const sigset_t& mask, const char* flag, const std::function<void()>& prepare);

// Passes a signal other than SIGCHLD on to the children; Ctrl-Z stops this process with them. Returns whether it asks
// to stop.
bool forward(int signal, const std::vector<pid_t>& children);

// "was ended by signal 9 (Killed)"
std::string ending_of(int status);
// The exit code of a child. Ends this process by the child's signal if that is how it ended.
int end_as(int status);
