/*
Where each rank's part of a checkpoint goes: --checkpoint-to. Ranks on several hosts may share a folder, or have a disk
each. Which one is found out before the first step, not when the first checkpoint is lost: rank 0 puts a file with a
random name into its --out-dir, and the others look for it in theirs.

  shared   every rank writes its own part; an Error if one does not see rank 0's folder, or cannot write there
  rank0    the others send theirs, and rank 0 writes all (parts.h)
  auto     who sees rank 0's folder writes to it, and the others send

  const Placement placement = find_placement(ranks, flags.out_dir, flags.checkpoint_to);     all ranks
  if (placement.is_sent(rank)) ...
*/
#pragma once
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"  // Ranks

struct Placement {
    std::vector<bool> sends;  // of each rank: does it send its part to rank 0?
    std::string text;         // one line for the start of a run

    static Placement all_shared(int world_size) { return {std::vector<bool>(size_t(world_size), false), ""}; }
    bool is_sent(int rank) const { return sends[size_t(rank)]; }
};

// For ranks in separate processes. Creates rank 0's folder.
Placement find_placement(Ranks& ranks, const std::string& out_dir, const std::string& checkpoint_to);

// Identifies a file that ranks may see under several paths: equal if it is the same file, on one host or on several
// that share a file system. Empty: no such file.
std::string identity_of(const std::string& path);
