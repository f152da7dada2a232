/*
The fast tier of checkpoints: --checkpoint-local DIR --local-every N. Every N steps each rank writes its part to a disk
of its own host, without waiting for other ranks (local_saving.h). When the run is restarted, the newest local
checkpoint that is complete over all ranks is copied into --out-dir, unless that has a newer one. From then on it is a
normal checkpoint: it is verified and pruned like all others, and resumes on any number of ranks.

  DIR/RUN/START_00001_of_00002/step_00000150/     rank 1's part: a checkpoint's folder with its own manifest
  OUT/local_checkpoints.json                      DIR and RUN, and the identity of OUT

RUN is a random name of the run, so that nothing is found after --out-dir was removed or copied. START is a random name
of each start of the run, so that parts of two starts are never combined.

  request.local_run = bring_in_local(ranks, out_dir);           all ranks, before looking for a checkpoint
  place = open_local(ranks, out_dir, dir, local_run);           all ranks, at the start
*/
#pragma once
#include <string>
#include "llmc/comm/ranks.h"  // Ranks

inline constexpr int kLocalKept = 2;  // checkpoints that each rank keeps

// Copies the newest complete local checkpoint into OUT, if it is newer. Returns RUN, or "" if OUT names none. If there
// are local checkpoints, prints a line that says which one was taken. Problems with them are not errors, because OUT
// has older checkpoints. Collective.
std::string bring_in_local(Ranks& ranks, const std::string& out_dir);

// Where this rank writes its part.
struct LocalPlace {
    std::string of_run, folder;  // DIR/RUN, and this rank's folder in it; empty: no local checkpoints

    // Removes the parts of other starts of the run; or all parts, this rank's own included.
    void remove_others() const;
    void remove_all() const;
};
// Creates the folders of this start. Throws an Error on all ranks if one cannot write there. `local_run`: from
// bring_in_local(); empty: a new RUN. If `dir` is empty, removes local_checkpoints.json. Collective.
LocalPlace open_local(Ranks& ranks, const std::string& out_dir, const std::string& dir, const std::string& local_run);
// Removes local_checkpoints.json, once the run is over and its last state is in OUT.
void forget_local(const std::string& out_dir);
