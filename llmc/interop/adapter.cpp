// See adapter.h.
#include "llmc/interop/adapter.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include "llmc/base/check.h"            // require
#include "llmc/base/file.h"             // read_file
#include "llmc/base/hash.h"             // Hasher, hex64
#include "llmc/base/json.h"             // Json
#include "llmc/interop/stored_model.h"  // StoredTensor, stored_tensors

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kLayerNames[] = {"attn.c_attn.", "attn.c_proj.", "mlp.c_fc.", "mlp.c_proj."};  // by LinearKind

// "h.0.attn.c_attn" of "h.0.attn.c_attn.lora_A".
std::string layer_name(const Parameter& p) { return p.name.substr(0, p.name.rfind('.')); }

// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string module_name(const StoredTensor& s) { return s.tensor.name.substr(0, s.tensor.name.rfind('.')); }

GptShape without_adapter(GptShape shape) {
    shape.lora = {};
    return shape;
}

// The tensors of the model's weights, by the parameter's name.
std::map<std::string, std::vector<StoredTensor>> tensors_of_base(const GptShape& shape) {
    const ParameterList base(without_adapter(shape));
    std::map<std::string, std::vector<StoredTensor>> all;
    for (const StoredTensor& s : stored_tensors(base, family_of(shape), DType::f32))
        all[base.parameters[s.parameter].name].push_back(s);
    return all;
}

Json config_of(const std::string& folder) {
    const std::string path = folder + "/" + kAdapterConfig;
    const Json config = parse_json(read_file(path));
    require(config.is_object(), "%s: expected a JSON object; use another copy of it", path.c_str());
    return config;
}

// The adapter that a config describes, with all targets.
Lora lora_of(const std::string& folder, const GptShape& base) {
    const std::string path = folder + "/" + kAdapterConfig;
    const Json config = config_of(folder);
    const auto refuse = [&](const char* name) {
        require(false, "%s: \"%s\": %s, which Anvil does not apply: merge it with merge_and_unload() of peft",
                path.c_str(), name, json_ascii(config[name]).c_str());
    };
    require(config.value("peft_type", Json()) == "LORA", "%s: \"peft_type\": expected LORA", path.c_str());
    for (const char* name : {"use_dora", "use_qalora", "lora_bias", "use_bdlora", "alora_invocation_tokens"})
        if (config.contains(name) && !config[name].is_null() && config[name] != false) refuse(name);
    for (const char* name :
         {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "target_parameters"})
        if (config.contains(name) && !config[name].is_null() && !config[name].empty()) refuse(name);
    if (config.contains("bias") && config["bias"] != "none") refuse("bias");
    for (const char* name : {"r", "lora_alpha"})
        require(config.contains(name) && config[name].is_number() && config[name] > 0 && config[name] < (1 << 16),
                "%s: \"%s\": expected a number above 0", path.c_str(), name);
    Lora lora{.rank = int64_t(config["r"]), .alpha = config["lora_alpha"], .is_split = splits_adapters(base)};
    if (config.value("use_rslora", Json()) == true) lora.alpha *= std::sqrt(double(lora.rank));
    std::fill(std::begin(lora.targets), std::end(lora.targets), true);
    return lora;
}

GptShape with(GptShape shape, const Lora& lora) {
    shape.lora = lora;
    return shape;
}

}  // namespace

bool splits_adapters(const GptShape& shape) {
    const ModelFamily family = family_of(shape);
    return family == ModelFamily::llama || family == ModelFamily::nanochat;
}

std::vector<StoredTensor> adapter_tensors(const ParameterList& list, DType dtype) {
    const auto base = tensors_of_base(list.model);
    std::vector<StoredTensor> all;
    for (size_t i = 0; i < list.parameters.size(); i++) {
        const Parameter& p = list.parameters[i];
        if (!p.is_adapter) continue;
        const bool is_a = p.name.ends_with(kLoraA);
        int64_t begin = 0;
        size_t part = 0;
        for (const StoredTensor& s : base.at(layer_name(p) + ".weight")) {
            const int64_t rows = p.matrix_rows[part++];
            all.push_back({{kPrefix + module_name(s) + (is_a ? kLoraA : kLoraB) + ".weight", dtype, {rows, p.shape[1]}},
                           i,
                           begin,
                           rows,
                           false});
            begin += rows;
        }
    }
    return all;
}

std::string adapter_config(const GptShape& shape, const std::string& base) {
    const Lora& lora = shape.lora;
    std::set<std::string> modules;  // without the layer's number: "self_attn.q_proj"
    const ParameterList list(shape);
    const auto tensors = tensors_of_base(shape);
    for (const Parameter& p : list) {
        if (!p.is_adapter || p.layer != 0) continue;
        for (const StoredTensor& s : tensors.at(layer_name(p) + ".weight")) {
            const std::string name = module_name(s);
            const size_t layer = name.find(".0.");
            modules.insert(name.substr(layer + 3));
        }
    }
    OrderedJson config = {{"peft_type", "LORA"},
                          {"task_type", "CAUSAL_LM"},
                          {"base_model_name_or_path", base},
                          {"r", lora.rank},
                          {"lora_alpha", lora.alpha},
                          {"lora_dropout", lora.dropout},
                          {"target_modules", modules},
                          {"bias", "none"},
                          {"fan_in_fan_out", family_of(shape) == ModelFamily::gpt2},
                          {"inference_mode", true}};
    if (lora.alpha == std::floor(lora.alpha)) config["lora_alpha"] = int64_t(lora.alpha);
    return json_text(config, 2) + "\n";
}

std::string base_hash(const StoredModel& base) {
    const ParameterList list(base.shape());
    Hasher hasher;
    std::vector<float> values;
    for (const Parameter& p : list) {
        values.resize(size_t(p.size()));
        base.read(p, values.data());
        hasher.update(p.name.data(), p.name.size());
        hasher.update(values.data(), values.size() * sizeof(float));
    }
    return hex64(hasher.digest());
}

std::string expected_hash(const std::string& folder) {
    const SafetensorsReader file(folder + "/" + kAdapterFile);
    const auto hash = file.metadata().find(kBaseHash);
    return hash == file.metadata().end() ? "" : hash->second;
}

void check_base(const std::string& folder, const std::string& expected, const std::string& base,
                const std::string& found) {
    require(
        expected.empty() || found == expected,
        "%s: an adapter for another base: the weights in %s have the hash %s, expected %s; give --init-from with the "
        "model that it was trained on",
        folder.c_str(), base.c_str(), found.c_str(), expected.c_str());
}

bool Adapter::is_in(const std::string& folder) {
    std::error_code ignored;
    return fs::exists(folder + "/" + kAdapterConfig, ignored) && fs::exists(folder + "/" + kAdapterFile, ignored);
}

std::string Adapter::base_of(const std::string& folder) {
    const Json config = config_of(folder);
    const Json path = config.value("base_model_name_or_path", Json());
    require(path.is_string() && !path.get<std::string>().empty(),
            "%s/%s: \"base_model_name_or_path\": expected the path of the model that it adapts", folder.c_str(),
            kAdapterConfig);
    return path;
}

Adapter::Adapter(const std::string& folder, const GptShape& base)
    : files_(folder, kAdapterFile), list_(with(base, lora_of(folder, base))) {
    hash_of_base_ = expected_hash(folder);
    std::set<std::string> used;
    for (const StoredTensor& s : adapter_tensors(list_, DType::f32)) {
        const Tensor* const tensor = files_.find(s.tensor.name);
        if (!tensor) continue;
        require(tensor->shape == s.tensor.shape, "%s: tensor %s is %s, expected %s: it is an adapter of another model",
                files_.where().c_str(), in_quotes(s.tensor.name).c_str(), text_of(tensor->shape).c_str(),
                text_of(s.tensor.shape).c_str());
        parts_[list_.parameters[s.parameter].name].push_back({s.begin, tensor});
        used.insert(s.tensor.name);
    }
    for (const auto& [name, tensor] : files_.tensors())
        require(used.contains(name), "%s: tensor %s belongs to no matrix of the model that it adapts",
                files_.where().c_str(), in_quotes(name).c_str());
    // Its targets are those of which it has any tensor; what is missing of them is zero.
    Lora lora = list_.model.lora;
    for (const LinearKind kind : kLinearKinds)
        lora.targets[kind] = std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) {
            return part.first.find(kLayerNames[kind]) != std::string::npos;
        });
    list_ = ParameterList(with(base, lora));
}

std::vector<float> Adapter::whole(const Parameter& p) const {
    std::vector<float> values(size_t(p.size()), 0.f);
    const auto found = parts_.find(p.name);
    if (found == parts_.end()) return values;
    for (const auto& [begin, tensor] : found->second)
        files_.copy(values.data() + begin * p.shape[1], *tensor, 0, tensor->size());
    return values;
}

void Adapter::read(const Parameter& p, int64_t begin, int64_t end, float* to) const {
    const std::vector<float> values = whole(p);
    std::copy(values.begin() + begin, values.begin() + end, to);
}

void Adapter::add_to(const Parameter& p, int64_t begin, int64_t end, float* to) const {
    if (!p.name.ends_with(".weight")) return;
    const std::string name = p.name.substr(0, p.name.rfind('.'));
    if (!parts_.contains(name + kLoraA) || !parts_.contains(name + kLoraB)) return;
    const auto find = [&](const std::string& of) -> const Parameter& {
        return *std::find_if(list_.begin(), list_.end(), [&](const Parameter& q) { return q.name == of; });
    };
    const Parameter &of_a = find(name + kLoraA), &of_b = find(name + kLoraB);
    const std::vector<float> a = whole(of_a), b = whole(of_b);
    const int64_t rank = lora().rank, cols = p.shape[1];
    const auto scale = float(lora().alpha / double(rank));
#pragma omp parallel for schedule(static)
    for (int64_t row = begin / cols; row < (end + cols - 1) / cols; row++) {
        int64_t part = 0;
        for (int64_t first = 0; row >= first + of_b.matrix_rows[size_t(part)];)
            first += of_b.matrix_rows[size_t(part++)];
        std::vector<float> sums(size_t(cols), 0.f);
        for (int64_t k = 0; k < rank; k++) {
            const float factor = b[size_t(row * rank + k)];
            const float* const of_k = a.data() + (part * rank + k) * cols;
            for (int64_t c = 0; c < cols; c++) sums[size_t(c)] += factor * of_k[c];
        }
        const int64_t from = std::max(begin, row * cols), until = std::min(end, (row + 1) * cols);
        for (int64_t i = from; i < until; i++) to[i - begin] += scale * sums[size_t(i - row * cols)];
    }
}
