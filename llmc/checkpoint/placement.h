/*
Where each rank writes its part of a checkpoint: checkpoint-to. Ranks on several hosts may share a folder or have
separate disks. This is detected before the first step, not when the first checkpoint is lost: rank 0 creates a file
with a random name in its --out-dir, and the other ranks look for it in theirs.

  shared   every rank writes its own part; an Error if a rank does not see rank 0's folder, or cannot write there
  rank0    the other ranks send their parts to rank 0, which writes all (parts.h)
  auto     ranks that see rank 0's folder write to it; the others send their parts to rank 0

  const Placement placement = find_placement(ranks, flags.out_dir, flags.checkpoint_to);     all ranks
  if (placement.is_sent(rank)) ...
*/
#pragma once
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"  // Ranks

struct Placement {
    std::vector<bool> sends;  // for each rank, whether it sends its part to rank 0
    std::string text;         // one line for the report before the first step

    static Placement all_shared(int world_size) { return {std::vector<bool>(size_t(world_size), false), ""}; }
    bool is_sent(int rank) const { return sends[size_t(rank)]; }
};

// Finds the placement for ranks in separate processes. Creates rank 0's folder. Collective.
Placement find_placement(Ranks& ranks, const std::string& out_dir, const std::string& checkpoint_to);

// Identifies a file that ranks may see under several paths: equal if it is the same file, on one host or on several
// that share a file system. Empty: no such file.
std::string identity_of(const std::string& path);
