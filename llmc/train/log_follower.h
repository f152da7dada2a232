/*
--log-to wandb: a process beside the run, scripts/log_to_wandb.py, which reads log.jsonl as it grows and sends it on.

  const LogFollower follower(config.log_to, config.out_dir);      rank 0, when the log is there; "none": nothing

It is no part of the run: without it, without wandb or a network, there is a line on stderr and training goes on. It
ends when the pipe that is its input does: when this object goes, or this process, however that ends. Then it sends what
is left; the destructor waits for that, but not for long.
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
    int pipe_ = -1;  // which it reads until the end
};
