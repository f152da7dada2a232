/*
Checkpoints: one folder per saved step. It is either complete or does not exist.

  OUT/step_00001000/   model.safetensors  config.json  tokenizer.json  optimizer_*_of_*.safetensors  state.json
                       manifest.json      sizes and checksums of all of them (manifest.h)

Saving: all files are written to OUT/step_00001000.tmp/, fsynced and read back (check_written() in file.h says what that
proves). The manifest comes last, and then the folder is renamed. So every existing checkpoint has been read once, and
prune() never removes an older one in favor of a damaged newer one. A program killed at any moment leaves a .tmp folder,
which nothing reads and which is removed after the next save. Until then the next save of that step uses another name,
.tmp.2 and so on: nothing old is touched before the new checkpoint is on the disk.

  CheckpointWriter checkpoint(out_dir, step);
  checkpoint.add_text("state.json", to_json(state.fields()));
  checkpoint.add_tensors("model.safetensors", tensors, {{"format", "pt"}}, [&](const Tensor& tensor) {
      return to_host(scratch, tensor);       only if the data is not at tensor.data
  });
  checkpoint.commit();                       any Error before this leaves no files
  const Untidy left = tidy(out_dir, keep, step, best);        removes old checkpoints

Several ranks that share OUT write together. Once rank 0 has its writer, each other rank opens the same folder. Before
the commit it sends its records to rank 0 (llmc/checkpoint/saving.h).

  CheckpointWriter mine(out_dir, name);       the name() of rank 0's
  mine.add_tensors("optimizer_00001_of_00002.safetensors", tensors);
  ... checkpoint.add_records(records of the others) ...

Loading:

  const FoundCheckpoint found = find_checkpoint(out_dir);
  for (const PassedOver& folder : found.passed_over) warn(folder.path + ": " + folder.why);
  SafetensorsReader file(found.path + "/model.safetensors");
  file.copy(params.wte, "wte", DType::f32, {Vp, C}, "look at --model, --channels");

With --save-best, OUT/best is a link to the checkpoint with the lowest validation loss. prune() keeps that checkpoint,
and find_checkpoint() follows the link.

A step that is saved again (after a resume from an earlier one) replaces its folder: the old one is renamed to .old, the
new one takes its place, and the old one is a leftover. A kill in between leaves .old, which find_checkpoint() also
reads and remove_leftovers() renames back. Only one program may save to an OUT folder at a time (the lock on the run's
log ensures that).
*/
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>
#include "llmc/base/file.h"       // FileWriter
#include "llmc/base/hash.h"       // Hasher
#include "llmc/base/tensor.h"     // Tensor
#include "llmc/io/manifest.h"     // Manifest
#include "llmc/io/safetensors.h"  // Metadata

// OUT/step_00001000
std::string checkpoint_path(const std::string& out_dir, int64_t step);

class CheckpointWriter {
public:
    // Creates OUT and the .tmp folder.
    CheckpointWriter(const std::string& out_dir, int64_t step);
    // Writes to the folder of another rank's, which must exist, in OUT as this rank sees it.
    CheckpointWriter(const std::string& out_dir, const std::string& name);
    ~CheckpointWriter();  // without commit(): removes the .tmp folder, if it created that
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    std::string name() const;  // of the folder in OUT

    void add_text(const std::string& name, const std::string& content);

    // Writes one safetensors file, tensor by tensor in this order. `data` returns a tensor's size_bytes() bytes, valid
    // until its next call; without it they are at tensor.data.
    void add_tensors(const std::string& name, const std::vector<Tensor>& tensors, const Metadata& metadata = {},
                     const std::function<const void*(const Tensor&)>& data = {});

    const std::vector<FileRecord>& records() const { return records_; }
    std::string path_of(const std::string& name) const { return tmp_ + "/" + name; }
    // Adds files that other ranks have written.
    void add_records(const std::vector<FileRecord>& records);

    // Makes the checkpoint visible; it is on the disk when this returns. Returns the path of its folder.
    std::string commit();

private:
    const std::string out_dir_, final_;  // final: empty if another rank created the folder
    const int64_t step_ = -1;
    std::string tmp_, replaced_;
    std::vector<FileRecord> records_;
    bool committed_ = false;

    void add_record(const FileRecord& record);  // for a file that was written; reads it back
};

// A file of a checkpoint whose bytes come from another rank, in order.
class ReceivedFile {
public:
    ReceivedFile(const CheckpointWriter& to, const std::string& name);
    void write(const void* data, size_t bytes);
    // When this returns, the file is on the disk and has been read back. Its record has no tensors.
    FileRecord finish();

private:
    std::string name_, path_;
    FileWriter file_;
    Hasher hasher_;
    uint64_t size_bytes_ = 0;
};

struct PassedOver {
    std::string path, why;
};

struct FoundCheckpoint {
    std::string path;  // empty: there is none
    int64_t step = -1;
    std::vector<PassedOver> passed_over;  // newer ones that failed verification, newest first
};

// Finds the newest checkpoint in an OUT folder that verifies; reads all of its files. `where` may also be a single
// checkpoint folder; if that does not verify, an Error is thrown. A missing OUT folder holds no checkpoints. `how`
// verifies a folder: alone, or together with other ranks (llmc/train/run_request.cpp).
FoundCheckpoint find_checkpoint(const std::string& where,
                                const std::function<Verified(const std::string& folder)>& how = verify);

// Throws an Error if OUT contains a file with the name of a checkpoint or of one being saved.
void check_names_are_free(const std::string& out_dir);

// The steps that have a folder, complete or not, in ascending order.
std::vector<int64_t> checkpoint_steps(const std::string& out_dir);

// Removes all but the newest `keep` checkpoints (keep >= 1). Keeps, in addition, the newest one that verifies and the
// best one, by OUT/best or by `best`. `good_step` is the step of the former if the caller knows it, as after a commit;
// otherwise this reads checkpoints to find it. Also keeps the `held` ones. If some cannot be removed, throws an Error
// after the others.
void prune(const std::string& out_dir, int keep, int64_t good_step = -1, int64_t best = -1,
           const std::set<int64_t>& held = {});

// Makes OUT/best point to this step's checkpoint, which must exist, atomically.
void mark_best(const std::string& out_dir, int64_t step);
// The step that OUT/best points to; -1: there is no link.
int64_t best_step(const std::string& out_dir);
// Throws an Error if OUT/best is anything but a link to a checkpoint.
void check_best_is_free(const std::string& out_dir);

// Cleans up after a killed program and after a commit(): removes .tmp folders, renames .old ones back or removes them.
// If some cannot be removed, throws an Error after the others.
void remove_leftovers(const std::string& out_dir);

// Why `work` could not be done; "": it was done.
std::string why_not(const std::function<void()>& work);

// What tidy() could not do, and why; "" where nothing is left to do.
struct Untidy {
    std::string link, files;
};
// After a save of `step`: marks the checkpoint of `best` (-1: none), removes leftovers and all but the newest `keep`.
// Does what it can, and throws nothing.
Untidy tidy(const std::string& out_dir, int keep, int64_t step, int64_t best, const std::set<int64_t>& held = {});
