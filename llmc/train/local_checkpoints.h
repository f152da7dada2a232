/*
The fast tier of checkpoints: --checkpoint-local DIR --local-every N. Every N steps each rank writes its part to a disk
of its own host, and waits for nobody (local_saving.h). When the run is started again, the newest of them that is
complete over all ranks is brought into --out-dir, if there is no newer one, and is a checkpoint like any other from
there on: of any number of ranks, verified and pruned as all are.

  DIR/RUN/START_00001_of_00002/step_00000150/     rank 1's part: a checkpoint's folder with its own manifest
  OUT/local_checkpoints.json                      DIR and RUN, and which OUT this is

RUN is a random number of the run, so that nothing is found of a run whose --out-dir was removed, or copied. START is
one of each start of it: the parts of two starts are never put together.

  request.local_run = bring_in_local(ranks, out_dir);           all ranks, before a checkpoint is looked for
  place = open_local(ranks, out_dir, dir, local_run);           all ranks, at the start
*/
#pragma once
#include <string>
#include "llmc/comm/ranks.h"  // Ranks

inline constexpr int kLocalKept = 2;  // by each rank

// The name of the run that OUT belongs to, if that is known here. Says in one line what was taken, if there are local
// checkpoints: whatever is wrong with them is no error, for OUT has older ones.
std::string bring_in_local(Ranks& ranks, const std::string& out_dir);

// Where this rank's part goes.
struct LocalPlace {
    std::string of_run, folder;  // DIR/RUN, and this rank's within it; empty: there is none

    // Removes what other starts of the run have left here; or all, with this rank's own.
    void remove_others() const;
    void remove_all() const;
};
// An Error if a rank cannot write there. `local_run`: empty for a run that goes on from nothing that is known here.
// Without a `dir` what was known is forgotten.
LocalPlace open_local(Ranks& ranks, const std::string& out_dir, const std::string& dir, const std::string& local_run);
// The run is over, and its last state in OUT.
void forget_local(const std::string& out_dir);
