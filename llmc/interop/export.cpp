// See export.h.
#include "llmc/interop/export.h"
#include <filesystem>
#include "llmc/base/bf16.h"                 // to_bf16
#include "llmc/base/check.h"                // require
#include "llmc/base/file.h"                 // write_file_atomically, make_folders, sync_folder
#include "llmc/interop/adapter.h"           // Adapter, adapter_tensors, adapter_config
#include "llmc/interop/gguf.h"              // write_gguf
#include "llmc/interop/llmc_model.h"        // write_llmc_model
#include "llmc/interop/tokenizer_export.h"  // read_token_facts
#include "llmc/io/safetensors.h"            // SafetensorsWriter

namespace fs = std::filesystem;

namespace {

// python/anvil/modeling_anvil.py as a string, made by make/rules.mk.
constexpr char kModelingCode[] =
#include <modeling_anvil.inc>
    ;
constexpr const char* kModelingName = "modeling_anvil";

// The model's tensors, or those of the adapter in the list.
void write_tensors(const std::string& path, const StoredModel& model, const ParameterList& list, DType dtype,
                   const Metadata& metadata = {{"format", "pt"}}) {
    const std::vector<StoredTensor> stored =
        list.model.lora.is_on() ? adapter_tensors(list, dtype) : stored_tensors(list, family_of(model.shape()), dtype);
    std::vector<Tensor> tensors;
    for (const StoredTensor& s : stored) tensors.push_back(s.tensor);
    SafetensorsWriter file(path, tensors, metadata);
    std::vector<float> values, transposed;
    std::vector<bf16> halves;
    for (const StoredTensor& s : stored) {
        const Parameter& p = list.parameters[s.parameter];
        if (s.begin == 0) {
            values.resize(size_t(p.size()));
            model.read(p, values.data());
        }
        const float* data = stored_data(s, p, values.data(), transposed);
        const size_t n = size_t(s.tensor.size());
        if (dtype == DType::bf16) {
            halves.clear();
            for (size_t i = 0; i < n; i++) halves.push_back(to_bf16(data[i]));
            file.write(halves.data(), n * sizeof(bf16));
        } else {
            file.write(data, n * sizeof(float));
        }
    }
    file.finish();
}

void write_hf(const std::string& folder, const StoredModel& model, DType dtype, const TokenFacts& facts) {
    write_tensors(folder + "/model.safetensors", model, ParameterList(model.shape()), dtype);
    write_file_atomically(folder + "/config.json", model_config(model.shape(), dtype, facts.ids, kModelingName));
    if (family_of(model.shape()) == ModelFamily::anvil)
        write_file_atomically(folder + "/" + kModelingName + ".py", kModelingCode);
    for (const auto& [name, text] : facts.files) write_file_atomically(folder + "/" + name, text);
}

void write_peft(const std::string& folder, const StoredModel& model, DType dtype, const TokenFacts& facts) {
    const Adapter* const adapter = model.adapter();
    require(adapter, "%s has no adapter to write for PEFT: it is a whole model; give --format hf",
            model.path().c_str());
    GptShape shape = model.shape();
    shape.lora = adapter->lora();
    Metadata metadata = {{"format", "pt"}};
    if (!adapter->hash_of_base().empty()) metadata[kBaseHash] = adapter->hash_of_base();
    write_tensors(folder + "/" + kAdapterFile, model, ParameterList(shape), dtype, metadata);
    write_file_atomically(folder + "/" + kAdapterConfig, adapter_config(shape, fs::absolute(model.base()->path())));
    for (const auto& [name, text] : facts.files) write_file_atomically(folder + "/" + name, text);
}

}  // namespace

std::string export_model(const StoredModel& model, const std::string& format_name, const std::string& out_dir,
                         DType dtype) {
    std::error_code ignored;
    require(!fs::exists(out_dir, ignored) || (fs::is_directory(out_dir, ignored) && fs::is_empty(out_dir, ignored)),
            "--out-dir %s is not empty: give a new one", out_dir.c_str());
    const std::string path = model.tokenizer_path(), json = path.empty() ? "" : read_file(path), tmp = out_dir + ".tmp";
    const TokenFacts facts =
        read_token_facts(fs::is_directory(model.path(), ignored) ? model.path() : "", json, model.shape().max_seq_len);
    std::string what = "model.safetensors, config.json";
    fs::remove_all(tmp, ignored);
    make_folders(tmp);
    try {
        if (format_name == "hf") {
            write_hf(tmp, model, dtype, facts);
            if (!json.empty()) what += ", tokenizer.json";
            if (family_of(model.shape()) == ModelFamily::anvil)
                what +=
                    ", modeling_anvil.py: transformers has no class for this architecture and takes this one: "
                    "AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)";
        } else if (format_name == "peft") {
            write_peft(tmp, model, dtype, facts);
            what = std::string(kAdapterFile) + ", " + kAdapterConfig + ", for " + model.base()->path();
        } else if (format_name == "llmc") {
            write_llmc_model(tmp + "/model.bin", model.shape(), dtype,
                             [&](const Parameter& p, float* to) { model.read(p, to); });
            what = "model.bin";
        } else {
            const ByteLevelTokenizer tokenizer = json.empty() ? ByteLevelTokenizer() : read_byte_level(json);
            write_gguf(tmp + "/model.gguf", model, dtype, tokenizer, facts);
            what = "model.gguf";
            if (json.empty()) what += ", without a tokenizer: the model has no tokenizer.json";
            if (!tokenizer.why.empty()) what += ", without the tokenizer: " + tokenizer.why;
        }
    } catch (...) {
        fs::remove_all(tmp, ignored);
        throw;
    }
    sync_folder(tmp);
    fs::remove(out_dir, ignored);  // only an empty folder can be removed
    std::error_code error;
    fs::rename(tmp, out_dir, error);
    require(!error, "cannot rename %s to %s: %s", tmp.c_str(), out_dir.c_str(), error.message().c_str());
    return out_dir + ": " + what + "\n";
}
