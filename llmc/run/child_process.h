/*
Processes that this one starts. Each has its own process group, so that a signal of the terminal reaches it once, from
its parent, or not at all.

  start_child   this program once more: by --supervise, and by --nproc-per-node for each rank. If the parent is killed,
                so is the child
  start_beside  another program, beside a run that does not depend on it
  why_not_run   a command of the user's, for the shell: by --after-checkpoint, --before-resume, --fetch
*/
#pragma once
#include <signal.h>
#include <sys/types.h>
#include <functional>
#include <string>
#include <vector>

// The signals that a parent takes with next_signal() and forwards: those that ask a run to stop, unless they are
// ignored (nohup), those of the terminal's job control, and SIGCHLD.
sigset_t watched_signals();

// Starts this program with these arguments and the signal mask. prepare() runs in the child, before. `flag` is for
// errors: "--supervise".
pid_t start_child(char* const* arguments, const sigset_t& mask, const char* flag, const std::function<void()>& prepare);

// Passes a signal other than SIGCHLD on to the children; Ctrl-Z stops this process with them. Returns whether it asks
// to stop.
bool forward(int signal, const std::vector<pid_t>& children);

// Starts a program that PATH has, with default signal handling and its stdout on stderr: stdout is the run's. Adds
// `variables`, NAME=VALUE, to its environment. `input`: its stdin; -1: empty. Does not fork(), which copies the page
// tables of all of this process's memory. Returns errno, or 0.
int start_beside(pid_t& pid, const std::vector<std::string>& words, int input = -1,
                 const std::vector<std::string>& variables = {});

// Runs a command of the shell to its end, or stops it with all that it has started: after timeout_s, or once
// is_over(). Returns why it was not done: "ended with exit code 1"; "": it was.
std::string why_not_run(const std::string& command, const std::vector<std::string>& variables, double timeout_s,
                        const std::function<bool()>& is_over);

// "was ended by signal 9 (Killed)"
std::string ending_of(int status);
// The exit code of a child. Ends this process by the child's signal if that is how it ended.
int end_as(int status);
