/*
An adapter (llmc/model/lora.h) in files, in the format of PEFT, which names matrices as transformers does:

  adapter_model.safetensors     base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight (r, in), and lora_B
                                (out, r); its metadata has the hash of the base's weights, if Anvil wrote it
  adapter_config.json           rank, alpha, where the base is

  const Adapter adapter(folder, base.shape());      checked as a whole, before the first value is read
  adapter.read(p, begin, end, to);                  elements of an A or B
  adapter.add_to(p, begin, end, to);                adds (alpha / r) B A to elements of the base's parameter p

StoredModel (stored_model.h) reads a folder with an adapter as its base with the adapter merged into it.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/interop/model_config.h"  // ModelFamily
#include "llmc/interop/tensor_files.h"  // TensorFiles
#include "llmc/model/parameters.h"      // ParameterList

struct StoredTensor;
class StoredModel;

inline constexpr const char *kAdapterFile = "adapter_model.safetensors", *kAdapterConfig = "adapter_config.json";
inline constexpr const char* kBaseHash = "base_hash";  // in the metadata of the former

// Whether transformers keeps Q, K and V (and gate and up) of this model apart, so that each has an adapter of its own.
bool splits_adapters(const GptShape& shape);
// The tensors of an adapter in the order of the list, which has its A and B.
std::vector<StoredTensor> adapter_tensors(const ParameterList& list, DType dtype);
// The text of adapter_config.json. `base`: the path that PEFT loads the base from.
std::string adapter_config(const GptShape& shape, const std::string& base);
// A hash of all weights' values, whatever their files and types.
std::string base_hash(const StoredModel& base);
// The hash in the metadata of an adapter's file; empty: there is none.
std::string expected_hash(const std::string& folder);
// Throws an Error if they differ.
void check_base(const std::string& folder, const std::string& expected, const std::string& base,
                const std::string& found);

class Adapter {
public:
    Adapter(const std::string& folder, const GptShape& base);

    static bool is_in(const std::string& folder);
    // The path of the base in its config.
    static std::string base_of(const std::string& folder);

    const Lora& lora() const { return list_.model.lora; }
    const std::string& hash_of_base() const { return hash_of_base_; }  // empty: not known
    void read(const Parameter& p, int64_t begin, int64_t end, float* to) const;
    void add_to(const Parameter& p, int64_t begin, int64_t end, float* to) const;

private:
    TensorFiles files_;
    ParameterList list_;
    std::string hash_of_base_;
    std::map<std::string, std::vector<std::pair<int64_t, const Tensor*>>> parts_;  // by parameter; where each begins

    std::vector<float> whole(const Parameter& p) const;
};
