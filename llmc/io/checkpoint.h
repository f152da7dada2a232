/*
Checkpoints: one folder per saved step, either complete or not there at all.

  OUT/step_00001000/   model.safetensors  config.json  tokenizer.json  optimizer_*_of_*.safetensors  state.json
                       manifest.json      sizes and checksums of all of them (manifest.h)

Saving: everything goes to OUT/step_00001000.tmp/, each file is fsynced and read back (check_written in file.h says what
that proves), the manifest comes last, and then the folder is renamed. So a checkpoint that exists has been read once,
and prune() never removes an older one in favor of a newer one that is damaged. A program killed at any moment leaves a
.tmp folder that nobody reads and the next save removes.

  CheckpointWriter checkpoint(out_dir, step);
  checkpoint.add_text("state.json", to_json(state.fields()));
  checkpoint.add_tensors("model.safetensors", tensors, {{"format", "pt"}}, [&](const Tensor& tensor) {
      return to_host(scratch, tensor);       only where the data are not simply at tensor.data
  });
  checkpoint.commit();                       any Error before this leaves nothing behind
  prune(out_dir, keep, step);

Several ranks that share OUT write together: one has the CheckpointWriter, and once that is there, the others have a
CheckpointPart each, whose records they hand over before the commit (llmc/train/saving.h).

  CheckpointPart part(out_dir, step);
  part.add_tensors("optimizer_00001_of_00002.safetensors", tensors);
  ... checkpoint.add_records(records of the others) ...

Loading:

  const FoundCheckpoint found = find_checkpoint(out_dir);
  for (const PassedOver& folder : found.passed_over) warn(folder.path + ": " + folder.why);
  SafetensorsReader file(found.path + "/model.safetensors");
  file.copy(params.wte, "wte", DType::f32, {Vp, C}, "look at --model, --channels");

OUT/best is a link to the checkpoint of the lowest validation loss, of a run that keeps that one (--save-best). prune()
leaves it alone, and find_checkpoint() follows it.

A step saved again (after a resume from an earlier one) replaces its folder: the old one is renamed to .old, the new one
takes its place, the old one is removed. A kill in between leaves .old, which find_checkpoint also reads and the next
save renames back. Only one program may save to an OUT folder at a time (the run's log is locked to see to that).
*/
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "llmc/base/file.h"       // FileWriter
#include "llmc/base/hash.h"       // Hasher
#include "llmc/base/tensor.h"     // Tensor
#include "llmc/io/manifest.h"     // Manifest
#include "llmc/io/safetensors.h"  // Metadata

// OUT/step_00001000
std::string checkpoint_path(const std::string& out_dir, int64_t step);

class CheckpointPart {
public:
    // Into the .tmp folder of a CheckpointWriter, which must be there.
    CheckpointPart(const std::string& out_dir, int64_t step);

    void add_text(const std::string& name, const std::string& content);

    // One safetensors file, tensor by tensor in this order. `data` gives a tensor's size_bytes() bytes, valid until it
    // is called again; without it they are at tensor.data.
    void add_tensors(const std::string& name, const std::vector<Tensor>& tensors, const Metadata& metadata = {},
                     const std::function<const void*(const Tensor&)>& data = {});

    const std::vector<FileRecord>& records() const { return records_; }
    std::string path_of(const std::string& name) const { return tmp_ + "/" + name; }

protected:
    std::string tmp_;
    std::vector<FileRecord> records_;

private:
    void add_record(const FileRecord& record);  // of a file that was written and read back
};

class CheckpointWriter : public CheckpointPart {
public:
    // Creates OUT and the .tmp folder, after remove_leftovers(OUT).
    CheckpointWriter(const std::string& out_dir, int64_t step);
    ~CheckpointWriter();  // without commit(): removes what was written
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Files that other ranks have written.
    void add_records(const std::vector<FileRecord>& records);

    // Makes the checkpoint visible, on the disk when this returns. The path of its folder.
    std::string commit();

private:
    std::string out_dir_, final_;
    int64_t step_;
    bool committed_ = false;
};

// A file of a checkpoint whose bytes come from another rank, front to back.
class ReceivedFile {
public:
    ReceivedFile(const CheckpointPart& part, const std::string& name);
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
    std::vector<PassedOver> passed_over;  // newer ones that did not verify, newest first
};

// The newest checkpoint in an OUT folder that verifies, reading all of its files. `where` may also be a single
// checkpoint folder; then it is an Error if that does not verify. An OUT folder that is not there holds no checkpoints.
// `how` to verify a folder: alone, or with others (llmc/train/run_request.cpp).
FoundCheckpoint find_checkpoint(const std::string& where,
                                const std::function<Verified(const std::string& folder)>& how = verify);

// An Error if something in OUT has the name of a checkpoint or of one that is being saved, and is no folder.
void check_names_are_free(const std::string& out_dir);

// The steps that have a folder, whole or not, in ascending order.
std::vector<int64_t> checkpoint_steps(const std::string& out_dir);

// Removes all but the newest `keep` checkpoints (keep >= 1), but never the newest one that verifies. The caller may
// know which that is, if it has just been committed; otherwise all its files are read. The best one is kept besides.
void prune(const std::string& out_dir, int keep, int64_t good_step = -1);

// Makes OUT/best point to this step's checkpoint, which must exist, atomically.
void mark_best(const std::string& out_dir, int64_t step);
// The step that it points to; -1: there is no link.
int64_t best_step(const std::string& out_dir);
// An Error if OUT/best is something other than a link to a checkpoint.
void check_best_is_free(const std::string& out_dir);

// Cleans up after a killed program: removes .tmp folders, renames .old ones back or removes them.
void remove_leftovers(const std::string& out_dir);
