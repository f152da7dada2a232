/*
Tensors that are stored in parts over several files, written by any number of ranks: the optimizer's state, of which
each rank has a shard.

  optimizer_00000_of_00002.safetensors      "m.wte.weight[0:4096]"      elements [0, 4096) of m.wte.weight, flattened
  optimizer_00001_of_00002.safetensors      "m.wte.weight[4096:8192]"
  optimizer.safetensors.index.json          {"metadata": ..., "weight_map": {"m.wte.weight[0:4096]": ...}}

The index has the form that Hugging Face's libraries write for models in several files; reading looks at the files
themselves.

  const ShardedTensors state(folder, "optimizer");
  state.read(to, "m.wte.weight", 1000, 5000);          from as many files as it takes
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/io/safetensors.h"  // SafetensorsReader, Metadata

// "optimizer_00001_of_00004.safetensors"
std::string shard_file(const std::string& stem, int rank, int world_size);
// "m.wte.weight[4096:8192]"
std::string part_name(const std::string& name, int64_t begin, int64_t end);
// The text of STEM.safetensors.index.json; files[r] are the tensors of rank r's.
std::string shard_index(const std::string& stem, const std::vector<std::vector<Tensor>>& files);

class ShardedTensors {
public:
    // All files STEM_*_of_*.safetensors of a folder; an Error if there is none, or not all of them.
    ShardedTensors(const std::string& folder, const std::string& stem);

    bool has(const std::string& name) const { return parts_.count(name) > 0; }
    bool has_any_of(const std::string& prefix) const {
        const auto first = parts_.lower_bound(prefix);
        return first != parts_.end() && first->first.starts_with(prefix);
    }
    // Elements of a tensor; 0: there is none.
    int64_t size_of(const std::string& name) const {
        const auto found = parts_.find(name);
        return found == parts_.end() ? 0 : found->second.rbegin()->second.end;
    }
    // Elements [begin, end) of a tensor of F32 or BF16, as floats; an Error if some of them are in no file. `hint` ends
    // its message.
    void read(float* to, const std::string& name, int64_t begin, int64_t end, const std::string& hint = "") const;
    // Of the first file.
    const Metadata& metadata() const { return files_[0].metadata(); }

private:
    struct Part {
        int64_t end;
        const char* data;
        DType dtype;
    };
    std::string folder_;
    std::vector<SafetensorsReader> files_;
    std::map<std::string, std::map<int64_t, Part>> parts_;  // of each tensor, by where they begin
};
