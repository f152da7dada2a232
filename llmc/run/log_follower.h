/*
--log-to wandb,tensorboard: a separate process, scripts/log_to.py, that reads log.jsonl as it grows and sends the
records there.

  const LogFollower follower(config.log_to, config.out_dir);      rank 0, once the log is open; "none": no process

Training does not depend on it: if it fails, or a package or the network is missing, a line on stderr says so and
training continues. It ends at the end of its input, a pipe: when this object is destroyed or this process ends in any
way. Then it sends the rest; the destructor waits briefly for that.
*/
#pragma once
#include <sys/types.h>
#include <string>

class LogFollower {
public:
    LogFollower() = default;
    LogFollower(const std::string& log_to, const std::string& out_dir);
    ~LogFollower();
    LogFollower(const LogFollower&) = delete;
    LogFollower& operator=(const LogFollower&) = delete;

private:
    pid_t pid_ = -1;
    int pipe_ = -1;  // the process's input; closing it ends the process
};
