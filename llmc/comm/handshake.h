/*
Checks before ranks train together: that they are connected, and that they are about to run the same thing.

  check_connected(ranks);
  check_alike(ranks, {{"the build", build_id()}, {"--seq-len", "1024"}, ...});
*/
#pragma once
#include <string>
#include <utility>
#include <vector>
#include "llmc/comm/ranks.h"  // Ranks

// Every rank must receive a message from every other, in the right order; otherwise an Error with exit code 3.
void check_connected(Ranks& ranks);

// Every name must have the same value on every rank. Else an Error (exit code 2) on all of them, which names the first
// rank that differs from what most have (if no value has a majority: from what the lowest rank has of the most frequent
// ones), the first such name of that rank, and both values. Put first what explains the rest: the build.
void check_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& values);
