/*
Tensors stored in parts over several files, written by any number of ranks. Used for the optimizer's state, of which
each rank has a shard.

  optimizer_00000_of_00002.safetensors      "m.wte.weight[0:4096]"      elements [0, 4096) of m.wte.weight, flattened
  optimizer_00001_of_00002.safetensors      "m.wte.weight[4096:8192]"
  optimizer.safetensors.index.json          {"metadata": ..., "weight_map": {"m.wte.weight[0:4096]": ...}}

The index has the form in which Hugging Face's libraries describe models in several files. ShardedTensors does not use
it; it reads the headers of the files.

  const ShardedTensors state(folder, "optimizer");
  state.read(to, "m.wte.weight", 1000, 5000);          from all files that hold some of these elements
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
// The text of STEM.safetensors.index.json; files[r] lists the tensors in rank r's file.
std::string shard_index(const std::string& stem, const std::vector<std::vector<Tensor>>& files);

class ShardedTensors {
public:
    // Opens all files STEM_*_of_*.safetensors of a folder. Throws an Error if there are none or some are missing.
    ShardedTensors(const std::string& folder, const std::string& stem);

    bool has(const std::string& name) const { return parts_.count(name) > 0; }
    bool has_any_of(const std::string& prefix) const {
        const auto first = parts_.lower_bound(prefix);
        return first != parts_.end() && first->first.starts_with(prefix);
    }
    // The number of elements of a tensor; 0: there is none.
    int64_t size_of(const std::string& name) const {
        const auto found = parts_.find(name);
        return found == parts_.end() ? 0 : found->second.rbegin()->second.end;
    }
    // Reads elements [begin, end) of an F32 or BF16 tensor as floats. Throws an Error if some of them are in no file;
    // `hint` ends its message.
    void read(float* to, const std::string& name, int64_t begin, int64_t end, const std::string& hint = "") const;
    // The metadata of the first file.
    const Metadata& metadata() const { return files_[0].metadata(); }

private:
    struct Part {
        int64_t end;
        const char* data;
        DType dtype;
    };
    std::string folder_;
    std::vector<SafetensorsReader> files_;
    std::map<std::string, std::map<int64_t, Part>> parts_;  // by the tensor's name and the part's first element
};
