/*
What a checkpoint of a training run holds, so that resuming is bit-exact:

  model.safetensors      the weights, in the names and layout of Hugging Face's GPT2LMHeadModel
  config.json            its shape, as transformers writes it
  tokenizer.json         of the data
  optimizer_*.safetensors   both moments of every parameter, in our layout
  state.json             RunState: step, position in the data, counters (random numbers follow from seed and step)
  train_config.json      the flags
How it gets to the disk, whole or not at all: llmc/io/checkpoint.h.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"       // Field, to_json, from_json
#include "llmc/base/file.h"        // read_file
#include "llmc/io/checkpoint.h"    // CheckpointWriter
#include "llmc/io/safetensors.h"   // SafetensorsReader
#include "llmc/model/gpt.h"        // Gpt
#include "llmc/optim/optimizer.h"  // AdamW
#include "llmc/train/config.h"     // TrainConfig

// All of a run's state that is not a tensor.
struct RunState {
    int64_t step = 0;     // steps done, skipped ones included
    int64_t updates = 0;  // steps that changed the weights: AdamW's count
    int64_t skipped_in_a_row = 0;
    int64_t tokens = 0;                // learned from
    uint64_t epoch = 0, position = 0;  // of the data loader
    uint64_t data_key = 0;             // of what `position` counts in: data_key()
    double training_s = 0;             // time spent in steps

    std::vector<Field> fields() {
        return {{"", "step", &step, ""},
                {"", "updates", &updates, ""},
                {"", "skipped_in_a_row", &skipped_in_a_row, ""},
                {"", "tokens", &tokens, ""},
                {"", "epoch", &epoch, ""},
                {"", "position", &position, ""},
                {"", "data_key", &data_key, ""},
                {"", "training_s", &training_s, ""}};
    }
};

// Positions in the data mean the same only while the data, the cut into windows and the order are the same.
inline uint64_t data_key(const TrainConfig& config, uint64_t data_hash, int64_t T) {
    return mix64(mix64(mix64(data_hash) + uint64_t(T)) + (config.shuffle ? config.seed + 1 : 0));
}

std::string hugging_face_config(const GptShape& shape);
// The shape of the model in a checkpoint's folder.
GptShape checkpoint_shape(const std::string& folder);

// One list of (tensor as stored, parameter) for saving and loading: Hugging Face's names, matrices turned, padding cut.
inline std::vector<Tensor> stored_tensors(const ParameterList& parameters) {
    std::vector<Tensor> tensors;
    for (const Parameter& p : parameters) {
        Shape shape = p.shape;
        shape[0] = p.exported_rows;
        if (p.exported_turned) std::swap(shape[0], shape[1]);
        tensors.push_back({"transformer." + p.name, DType::f32, shape});
    }
    return tensors;
}

// to (cols, rows)  <-  from (rows, cols)
inline void turn(float* to, const float* from, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

// "m.h.0.ln_1.weight": the moments as they are in memory
template <class Device, class T>
std::vector<Tensor> moment_tensors(const ParameterList& parameters, const AdamW<Device, T>& adamw) {
    std::vector<Tensor> tensors;
    for (const Parameter& p : parameters) tensors.push_back({"m." + p.name, DType::f32, p.shape, adamw.m.at(p)});
    for (const Parameter& p : parameters) tensors.push_back({"v." + p.name, DType::f32, p.shape, adamw.v.at(p)});
    return tensors;
}

inline constexpr const char* kOptimizerFile = "optimizer_00000_of_00001.safetensors";
inline constexpr const char* kTrainConfigFile = "train_config.json";

template <class Device, class T>
std::string save_run(const std::string& out_dir, TrainConfig config, RunState state, const std::string& tokenizer_json,
                     Gpt<Device, T>& model, const AdamW<Device, T>& adamw) {
    CheckpointWriter checkpoint(out_dir, state.step);
    std::vector<float> host, turned;
    size_t next = 0;
    checkpoint.add_tensors("model.safetensors", stored_tensors(model.parameters), {{"format", "pt"}},
                           [&](const Tensor&) {
                               const Parameter& p = model.parameters.parameters[next++];
                               host.resize(size_t(p.size()));
                               copy_to_host(model.device, host.data(), adamw.master(model.weights, p), p.size());
                               if (!p.exported_turned) return static_cast<const void*>(host.data());
                               turned.resize(host.size());
                               turn(turned.data(), host.data(), p.shape[0], p.shape[1]);
                               return static_cast<const void*>(turned.data());
                           });
    checkpoint.add_tensors(kOptimizerFile, moment_tensors(model.parameters, adamw), {}, [&](const Tensor& tensor) {
        host.resize(size_t(tensor.size()));
        copy_to_host(model.device, host.data(), static_cast<const float*>(tensor.data), tensor.size());
        return static_cast<const void*>(host.data());
    });
    checkpoint.add_text("config.json", hugging_face_config(model.shape));
    if (!tokenizer_json.empty()) checkpoint.add_text("tokenizer.json", tokenizer_json);
    checkpoint.add_text("state.json", to_json(state.fields(), 2) + "\n");
    checkpoint.add_text(kTrainConfigFile, to_json(config.fields(), 2) + "\n");
    return checkpoint.commit();
}

template <class Device, class T>
RunState load_run(const std::string& folder, Gpt<Device, T>& model, AdamW<Device, T>& adamw) {
    const char* hint = "the checkpoint is of another model";
    const SafetensorsReader weights(folder + "/model.safetensors"), moments(folder + "/" + kOptimizerFile);
    const std::vector<Tensor> stored = stored_tensors(model.parameters);
    std::vector<float> file, host;
    for (size_t i = 0; i < stored.size(); i++) {
        const Parameter& p = model.parameters.parameters[i];
        file.resize(size_t(stored[i].size()));
        weights.copy(file.data(), stored[i].name, stored[i].dtype, stored[i].shape, hint);
        host.assign(size_t(p.size()), 0);  // the vocabulary's padding is zero
        if (p.exported_turned)
            turn(host.data(), file.data(), p.shape[1], p.shape[0]);
        else
            std::copy(file.begin(), file.end(), host.begin());
        model.set_weight(p, host.data());
        adamw.set_master(p, host.data());
    }
    for (const Tensor& tensor : moment_tensors(model.parameters, adamw)) {
        host.resize(size_t(tensor.size()));
        moments.copy(host.data(), tensor.name, tensor.dtype, tensor.shape, hint);
        copy_to_device(model.device, static_cast<float*>(tensor.data), host.data(), tensor.size());
    }
    RunState state;
    from_json(state.fields(), read_file(folder + "/state.json"), folder + "/state.json");
    return state;
}
