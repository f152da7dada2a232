/*
The fast tier of checkpoints: --checkpoint-local DIR --local-every N. Every N steps each rank writes its part to a disk
of its own host, without waiting for other ranks (local_saving.h). When the run is restarted, the newest local
checkpoint that is complete over all ranks is copied into --out-dir, unless that has a newer one. From then on it is a
checkpoint like any other: for any number of ranks, verified and pruned like all.

  DIR/RUN/START_00001_of_00002/step_00000150/     rank 1's part: a checkpoint's folder with its own manifest
  OUT/local_checkpoints.json                      DIR and RUN, and which OUT this is

RUN is a random number of the run: if its --out-dir was removed or copied, nothing is found. START is one per start of
the run: parts of two starts are never combined.

  request.local_run = bring_in_local(ranks, out_dir);           all ranks, before a checkpoint is looked for
  place = open_local(ranks, out_dir, dir, local_run);           all ranks, at the start
*/
#pragma once
#include <string>
#include "llmc/comm/ranks.h"  // Ranks

inline constexpr int kLocalKept = 2;  // by each rank

// The name of the run that OUT belongs to, if known here. If there are local checkpoints, prints one line that says
// which was taken. Problems with them are no errors, because OUT has older checkpoints.
std::string bring_in_local(Ranks& ranks, const std::string& out_dir);

// Where this rank's part goes.
struct LocalPlace {
    std::string of_run, folder;  // DIR/RUN, and this rank's within it; empty: there is none

    // Removes the parts of other starts of the run; or all parts, this rank's own included.
    void remove_others() const;
    void remove_all() const;
};
// An Error if a rank cannot write there. `local_run`: empty for a run that goes on from nothing that is known here.
// Without a `dir` what was known is forgotten.
LocalPlace open_local(Ranks& ranks, const std::string& out_dir, const std::string& dir, const std::string& local_run);
// The run is over, and its last state in OUT.
void forget_local(const std::string& out_dir);
