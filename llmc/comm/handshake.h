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

// Every name must have the same value on every rank. Otherwise all ranks throw an Error (exit code 2) that names the
// first rank that differs from the most frequent value, the first name for which it differs, and both values. Of
// equally frequent values, that of the lowest rank is taken. Pass the name first that explains the others: the build.
void check_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& values);
