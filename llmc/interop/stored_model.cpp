// See stored_model.h.
#include "llmc/interop/stored_model.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include "llmc/base/check.h"            // require, ensure
#include "llmc/base/file.h"             // read_file
#include "llmc/interop/adapter.h"       // Adapter, base_hash
#include "llmc/interop/llmc_model.h"    // LlmcModel
#include "llmc/interop/tensor_files.h"  // TensorFiles
#include "llmc/io/checkpoint.h"         // find_checkpoint

namespace fs = std::filesystem;

namespace {

// The name of a parameter's rows, or of each of its parts (Q, K and V; gate and up).
struct Part {
    std::string name;
    int64_t rows;
};

// NanoChat differs from Llama only in its MLP.
std::vector<Part> llama_parts(const Parameter& p, ModelFamily family, const GptShape& shape) {
    const std::string what = p.name.substr(p.name.rfind('.'));  // .weight or .bias
    const auto named = [&](const std::string& name) { return std::vector<Part>{{name + what, p.exported_rows}}; };
    if (p.name == "wte.weight") return named("model.embed_tokens");
    if (p.name == "ln_f.weight") return named("model.norm");
    if (p.name == "lm_head.weight") return named("lm_head");
    const std::string block = "model.layers." + std::to_string(p.layer) + ".";
    const std::string kind = p.name.substr(p.name.find('.', 2) + 1);  // after "h.12."
    if (kind == "ln_1.weight") return named(block + "input_layernorm");
    if (kind == "ln_2.weight") return named(block + "post_attention_layernorm");
    if (kind == "attn.q_norm.weight" || kind == "attn.k_norm.weight")
        return named(block + "self_attn." + kind.substr(5, 6));
    if (kind == "attn.c_proj.weight") return named(block + "self_attn.o_proj");
    const bool is_llama = family == ModelFamily::llama;
    if (kind == "mlp.c_proj.weight") return named(block + (is_llama ? "mlp.down_proj" : "mlp.fc2"));
    std::vector<std::string> names;
    const int64_t KV = shape.kv_heads() * shape.head_size();
    const std::vector<int64_t> rows =
        kind.starts_with("attn.") ? std::vector{shape.query_channels(), KV, KV} : p.matrix_rows;
    if (kind == "attn.c_attn" + what) names = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    if (kind == "mlp.c_fc.weight" && is_llama) names = {"mlp.gate_proj", "mlp.up_proj"};
    if (kind == "mlp.c_fc.weight" && !is_llama) names = {"mlp.fc1"};
    ensure(!names.empty() && names.size() == rows.size());
    std::vector<Part> parts;
    for (size_t i = 0; i < names.size(); i++) parts.push_back({block + names[i] + what, rows[i]});
    return parts;
}

std::vector<Part> parts_of(const Parameter& p, ModelFamily family, const GptShape& shape) {
    if (family == ModelFamily::llama || family == ModelFamily::nanochat) return llama_parts(p, family, shape);
    const bool is_bare = family == ModelFamily::gpt2 && p.name == "lm_head.weight";
    return {{(is_bare ? "" : "transformer.") + p.name, p.exported_rows}};
}

// Tensors beside a model's weights that are ignored: the causal mask of older GPT-2s, the frequencies of older Llamas.
bool is_known_extra(const std::string& name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq");
}

std::string head_name(ModelFamily family) {
    return family == ModelFamily::anvil ? "transformer.lm_head.weight" : "lm_head.weight";
}

bool is_equal(const TensorFiles& files, const Tensor& a, const Tensor& b) {
    constexpr int64_t kPiece = 1 << 16;
    std::vector<float> of_a(kPiece), of_b(kPiece);
    for (int64_t i = 0; i < a.size(); i += kPiece) {
        const int64_t n = std::min(kPiece, a.size() - i);
        files.copy(of_a.data(), a, i, n);
        files.copy(of_b.data(), b, i, n);
        if (!std::equal(of_a.begin(), of_a.begin() + n, of_b.begin())) return false;
    }
    return true;
}

// "model." of "model.embed_tokens.weight".
std::string prefix_of(const std::string& name) { return name.substr(0, name.find('.') + 1); }

// The shape, but with a head of its own if the files have one that differs from the embeddings: transformers believes
// them, too, and not config.json.
GptShape with_stored_head(const TensorFiles& files, const ConfiguredModel& config) {
    GptShape shape = config.shape;
    const std::string name = stored_tensors(ParameterList(shape), config.family, DType::f32)[0].tensor.name;
    const Tensor *head = files.find(head_name(config.family)), *table = files.find(name);
    if (!table) table = files.find(name.substr(prefix_of(name).size()));
    if (shape.architecture.tied_head && head && table && head->shape == table->shape)
        shape.architecture.tied_head = is_equal(files, *head, *table);
    return shape;
}

// A folder of transformers or of a checkpoint.
struct FolderModel {
    TensorFiles files;
    ParameterList list;
    std::vector<StoredTensor> stored;
    std::vector<const Tensor*> found;  // by index in `stored`

    FolderModel(const std::string& folder, const ConfiguredModel& config)
        : files(folder),
          list(with_stored_head(files, config)),
          stored(stored_tensors(list, config.family, DType::f32)) {
        // Files of the model without its head omit the prefix; so do the original ones of GPT-2.
        const std::string &first = stored[0].tensor.name, prefix = prefix_of(first), head = head_name(config.family);
        const bool is_tied = list.model.architecture.tied_head;
        const bool is_bare = !files.find(first) && first.starts_with(prefix) && files.find(first.substr(prefix.size()));
        std::set<std::string> used;
        for (const StoredTensor& s : stored) {
            const bool cut = is_bare && s.tensor.name.starts_with(prefix);
            std::string name = cut ? s.tensor.name.substr(prefix.size()) : s.tensor.name;
            // Of tied embeddings, a file may hold the head alone.
            if (&s == &stored[0] && is_tied && !files.find(name) && files.find(head)) name = head;
            const Tensor* tensor = files.find(name);
            const std::string other = tensor ? "" : files.other_type(name);
            require(other.empty(), "%s: tensor %s is %s, expected F32, F16 or BF16: save the model in one of these",
                    files.where().c_str(), in_quotes(name).c_str(), other.c_str());
            require(tensor, "%s: tensor %s is missing", files.where().c_str(), in_quotes(name).c_str());
            const bool is_float =
                tensor->dtype == DType::f32 || tensor->dtype == DType::f16 || tensor->dtype == DType::bf16;
            require(tensor->shape == s.tensor.shape && is_float,
                    "%s: tensor %s is %s %s, expected F32, F16 or BF16 %s, as config.json has it",
                    files.where().c_str(), in_quotes(name).c_str(), name_of(tensor->dtype),
                    text_of(tensor->shape).c_str(), text_of(s.tensor.shape).c_str());
            found.push_back(tensor);
            used.insert(name);
        }
        for (const auto& [name, tensor] : files.tensors())
            require(used.count(name) || is_known_extra(name) ||
                        (is_tied && name == head && tensor.shape == found[0]->shape),
                    "%s: tensor %s belongs to no part of the model that config.json describes", files.where().c_str(),
                    in_quotes(name).c_str());
    }

    void read(const Parameter& p, int64_t begin, int64_t end, float* to) const {
        std::fill(to, to + (end - begin), 0.f);
        const int64_t cols = p.size() / p.shape[0];
        bool any = false;
        std::vector<float> columns, rows;
        for (size_t i = 0; i < stored.size(); i++) {
            const StoredTensor& s = stored[i];
            if (list.parameters[s.parameter].name != p.name) continue;
            any = true;
            const int64_t first = std::max(begin, s.begin * cols), last = std::min(end, (s.begin + s.rows) * cols);
            if (first >= last) continue;
            float* const out = to + (first - begin);
            if (!s.transposed) {
                files.copy(out, *found[i], first - s.begin * cols, last - first);
                continue;
            }
            // These rows are columns in the file.
            const int64_t row = first / cols, n = (last + cols - 1) / cols - row;
            columns.resize(size_t(n * cols));
            for (int64_t k = 0; k < cols; k++)
                files.copy(columns.data() + k * n, *found[i], k * s.rows + row - s.begin, n);
            if (last - first == n * cols) {
                transpose_copy(out, columns.data(), cols, n);
                continue;
            }
            rows.resize(columns.size());
            transpose_copy(rows.data(), columns.data(), cols, n);
            std::copy_n(rows.data() + (first - row * cols), last - first, out);
        }
        ensure(any);
    }
};

// transformers applies an adapter that lies beside whole weights, if peft is installed.
void check_no_adapter(const std::string& folder) {
    std::error_code ignored;
    require(!fs::exists(folder + "/adapter_config.json", ignored),
            "%s: adapter_config.json: an adapter of PEFT (LoRA) beside a whole model: expected one of them; give the "
            "adapter "
            "a folder of its own, or remove adapter_config.json if the weights contain it",
            folder.c_str());
}

// Advice for a path OWNER/NAME, which may be meant for the hub.
std::string hub_advice(const std::string& path) {
    const size_t slash = path.find('/');
    const bool is_name = slash != std::string::npos && slash > 0 && path.find('/', slash + 1) == std::string::npos &&
                         path[0] != '.' &&
                         path.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./") ==
                             std::string::npos;
    std::error_code ignored;
    if (!is_name || fs::exists(path.substr(0, slash), ignored)) return "";
    return "; a model of the Hugging Face hub is downloaded first: --init-from \"$(data/model.sh " + path + ")\"";
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const ParameterList& list, ModelFamily family, DType dtype) {
    std::vector<StoredTensor> all;
    for (size_t i = 0; i < list.parameters.size(); i++) {
        const Parameter& p = list.parameters[i];
        if (p.is_adapter) continue;
        const bool transposed = family == ModelFamily::gpt2 && p.group == ParameterGroup::matrices;
        int64_t begin = 0;
        for (const Part& part : parts_of(p, family, list.model)) {
            Shape shape = p.shape;
            shape[0] = part.rows;
            if (transposed) std::swap(shape[0], shape[1]);
            all.push_back({{part.name, dtype, shape}, i, begin, part.rows, transposed});
            begin += part.rows;
        }
        ensure(begin == p.exported_rows);
    }
    return all;
}

StoredModel::StoredModel(const std::string& path, bool is_verified, std::shared_ptr<const StoredModel> base)
    : path_(path), base_(std::move(base)) {
    while (path_.size() > 1 && path_.ends_with("/")) path_.pop_back();
    std::error_code ignored;
    require(fs::exists(path_, ignored),
            "%s: no such file or folder; give a folder with config.json, or a model of llm.c%s", path_.c_str(),
            hub_advice(path_).c_str());
    if (fs::is_directory(path_, ignored))
        open_folder(is_verified);
    else
        open_llmc();
}

void StoredModel::open_folder(bool is_verified) {
    std::error_code ignored;
    const bool is_checkpoint = fs::exists(path_ + kManifestFile, ignored);
    const bool is_complete = fs::exists(path_ + "/config.json", ignored) || Adapter::is_in(path_);
    if ((is_checkpoint && !is_verified) || !is_complete) {
        const FoundCheckpoint found = find_checkpoint(path_);
        const bool is_part = found.path.empty() && !fs::exists(path_ + "/model.safetensors", ignored);
        for (const auto& [part, other] : {std::pair{kAdapterConfig, kAdapterFile}, {kAdapterFile, kAdapterConfig}})
            require(!is_part || !fs::exists(path_ + "/" + part, ignored),
                    "%s: an adapter of PEFT (LoRA) without its %s; use another copy of it", path_.c_str(), other);
        if (found.path.empty()) check_no_adapter(path_);
        require(!found.path.empty(), "%s: no config.json in it, and no checkpoint of a run that verifies",
                path_.c_str());
        path_ = found.path;
    }
    if (Adapter::is_in(path_) && !fs::exists(path_ + "/model.safetensors", ignored)) return open_adapter(is_verified);
    base_ = nullptr;
    const ConfiguredModel config = read_model_config(read_file(path_ + "/config.json"), path_ + "/config.json");
    check_no_adapter(path_);
    const auto model = std::make_shared<const FolderModel>(path_, config);
    shape_ = model->list.model;
    dtype_ = model->found[0]->dtype == DType::bf16 ? DType::bf16 : DType::f32;
    read_ = [model](const Parameter& p, int64_t begin, int64_t end, float* to) { model->read(p, begin, end, to); };
}

void StoredModel::open_adapter(bool is_verified) {
    is_verified = is_verified && base_;
    if (!base_) {
        const std::string where = Adapter::base_of(path_);
        std::error_code ignored;
        require(fs::exists(where, ignored),
                "%s: an adapter of %s, which is no folder here: write the folder of that model into its %s, as "
                "base_model_name_or_path (of the hub's models, data/model.sh prints it)",
                path_.c_str(), where.c_str(), kAdapterConfig);
        base_ = std::make_shared<const StoredModel>(where);
    }
    const auto base = base_;
    const auto adapter = std::make_shared<const Adapter>(path_, base->shape());
    if (!is_verified && !adapter->hash_of_base().empty())
        check_base(path_, adapter->hash_of_base(), base->path(), base_hash(*base));
    adapter_ = adapter;
    shape_ = base->shape();
    dtype_ = base->dtype();
    read_ = [base, adapter](const Parameter& p, int64_t begin, int64_t end, float* to) {
        if (p.is_adapter) return adapter->read(p, begin, end, to);
        base->read(p, begin, end, to);
        adapter->add_to(p, begin, end, to);
    };
}

void StoredModel::open_llmc() {
    const auto model = std::make_shared<const LlmcModel>(path_);
    shape_ = model->shape();
    dtype_ = model->dtype();
    read_ = [model](const Parameter& p, int64_t begin, int64_t end, float* to) { model->read(p, begin, end, to); };
}

void StoredModel::read(const Parameter& p, int64_t begin, int64_t end, float* to) const {
    ensure(begin >= 0 && begin <= end && end <= p.size());
    read_(p, begin, end, to);
    require(std::all_of(to, to + (end - begin), [](float value) { return std::isfinite(value); }),
            "%s: %s has values that are not finite (NaN or infinite), so the model is unusable; take an earlier "
            "checkpoint or "
            "another file",
            path_.c_str(), p.name.c_str());
}

std::string StoredModel::tokenizer_path() const {
    std::error_code ignored;
    const std::string path = path_ + "/tokenizer.json";
    if (fs::is_directory(path_, ignored) && fs::exists(path, ignored)) return path;
    return base_ ? base_->tokenizer_path() : "";
}
