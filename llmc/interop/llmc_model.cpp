// See llmc_model.h.
#include "llmc/interop/llmc_model.h"
#include <algorithm>
#include <cstring>
#include "llmc/base/bf16.h"             // bf16, to_float, to_bf16
#include "llmc/base/check.h"            // require, ensure
#include "llmc/interop/model_config.h"  // family_of

namespace {

constexpr int32_t kMagic = 20240326, kVersionFp32 = 3, kVersionBf16 = 5;
constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kMostLayers = 1000, kMostSize = 1 << 20;  // the limits of the flags

// The parameters in the file's order: all layers of the first kind, then all of the next. GPT-2's list has the
// embeddings first, then blocks with the same kinds in the same order, then the last norm.
std::vector<size_t> order_of(const ParameterList& list) {
    std::vector<size_t> order;
    const auto take = [&](auto&& belongs) {
        for (size_t i = 0; i < list.parameters.size(); i++)
            if (belongs(list.parameters[i])) order.push_back(i);
    };
    const int64_t L = list.model.num_layers;
    take([](const Parameter& p) { return p.layer < 0; });
    for (const Parameter& first : list) {
        if (first.layer != 0) continue;
        const std::string kind = first.name.substr(3);  // after "h.0"
        take([&](const Parameter& p) {
            return p.layer >= 0 && p.layer < L && p.name.ends_with(kind) &&
                   p.name.size() == kind.size() + 2 + std::to_string(p.layer).size();
        });
    }
    take([&](const Parameter& p) { return p.layer == L; });
    ensure(order.size() == list.parameters.size());
    return order;
}

// Whether this is a file of torch.save(): since 2020 a zip archive, before that a pickle of protocol 2.
bool is_pickle(const void* data, size_t size) {
    return size >= 4 && (!std::memcmp(data, "PK\3\4", 4) || !std::memcmp(data, "\x80\2", 2));
}
constexpr const char* kPickleAdvice =
    ". It is a file of torch.save(), as nanochat's are: Anvil runs no pickles. Write the weights as a folder of "
    "config.json and model.safetensors, from transformers by save_pretrained(), in the names of doc/formats.md";

}  // namespace

LlmcModel::LlmcModel(const std::string& path) : file_(path) {
    const auto size = int64_t(file_.size());
    int32_t header[8] = {};
    if (size >= kHeaderBytes) std::memcpy(header, file_.data(), sizeof header);
    require(size >= kHeaderBytes && header[0] == kMagic,
            "%s is not a model file of llm.c: expected one that begins with the number %d; models of transformers are "
            "folders%s",
            path.c_str(), kMagic, is_pickle(file_.data(), file_.size()) ? kPickleAdvice : "");
    require(header[1] == kVersionFp32 || header[1] == kVersionBf16,
            "%s has version %d of llm.c's model format: expected 3 (fp32) or 5 (bf16)", path.c_str(), header[1]);
    dtype_ = header[1] == kVersionBf16 ? DType::bf16 : DType::f32;
    const auto count_of = [&](int i, const char* what, int64_t most) {
        require(header[i] >= 1 && header[i] <= most, "%s says that it has %d %s: expected 1 to %ld", path.c_str(),
                header[i], what, most);
        return int64_t(header[i]);
    };
    shape_.max_seq_len = count_of(2, "positions", kMostSize);
    shape_.vocab_size = count_of(3, "tokens", kMostSize);
    shape_.num_layers = count_of(4, "layers", kMostLayers);
    shape_.num_heads = count_of(5, "heads", kMostLayers);
    shape_.channels = count_of(6, "channels", kMostSize);
    padded_vocab_size_ = count_of(7, "rows of tokens", 2 * kMostSize);
    require(padded_vocab_size_ >= shape_.vocab_size && shape_.channels % shape_.num_heads == 0,
            "%s says that it has %ld tokens in %ld rows, %ld channels in %ld heads, which do not fit", path.c_str(),
            shape_.vocab_size, padded_vocab_size_, shape_.channels, shape_.num_heads);

    const ParameterList list(shape_);
    offsets_.resize(list.parameters.size());
    names_.resize(list.parameters.size());
    int64_t at = 0;
    for (const size_t i : order_of(list)) {
        const Parameter& p = list.parameters[i];
        offsets_[i] = at;
        names_[i] = p.name;
        at += p.group == ParameterGroup::embedding ? padded_vocab_size_ * shape_.channels : p.size();
    }
    const int64_t expected = kHeaderBytes + at * int64_t(size_of(dtype_));
    require(size == expected, "%s has %ld bytes, but its header promises %ld (%s); use another copy of it",
            path.c_str(), size, expected,
            size < expected ? "it was cut short" : "there are bytes after the last tensor");
}

void LlmcModel::read(const Parameter& p, int64_t begin, int64_t end, float* to) const {
    const auto found = std::find(names_.begin(), names_.end(), p.name);
    ensure(found != names_.end());
    const int64_t offset = offsets_[size_t(found - names_.begin())] + begin,
                  n = std::clamp(p.exported_rows * (p.size() / p.shape[0]) - begin, int64_t(0), end - begin);
    std::fill(to + n, to + (end - begin), 0.f);
    thread_read_bytes += size_t(n) * size_of(dtype_);
    if (n == 0) return;
    const char* from = file_.data() + kHeaderBytes + offset * int64_t(size_of(dtype_));
    if (dtype_ == DType::f32) {
        std::memcpy(to, from, size_t(n) * sizeof(float));
        return;
    }
    const auto* halves = reinterpret_cast<const bf16*>(from);
    for (int64_t i = 0; i < n; i++) to[i] = to_float(halves[i]);
}

void write_llmc_model(const std::string& path, const GptShape& s, DType dtype,
                      const std::function<void(const Parameter&, float*)>& read) {
    require(
        family_of(s) == ModelFamily::gpt2 && same_function(s.architecture, {}) && s.hidden() == 4 * s.channels,
        "--format llmc: its files hold GPT-2 with a tied head and 4 C hidden channels, and this is another model; %s",
        export_advice(s));
    const ParameterList list(s);
    FileWriter file(path);
    std::vector<int32_t> header(size_t(kHeaderBytes) / sizeof(int32_t));
    const int64_t fields[] = {kMagic,        dtype == DType::bf16 ? kVersionBf16 : kVersionFp32,
                              s.max_seq_len, s.vocab_size,
                              s.num_layers,  s.num_heads,
                              s.channels,    s.padded_vocab_size()};
    std::copy(std::begin(fields), std::end(fields), header.begin());
    file.write(header.data(), size_t(kHeaderBytes));
    std::vector<float> values;
    std::vector<bf16> halves;
    for (const size_t i : order_of(list)) {
        const Parameter& p = list.parameters[i];
        values.resize(size_t(p.size()));
        read(p, values.data());
        if (dtype == DType::bf16) {
            halves.clear();
            for (const float value : values) halves.push_back(to_bf16(value));
            file.write(halves.data(), halves.size() * sizeof(bf16));
        } else {
            file.write(values.data(), values.size() * sizeof(float));
        }
    }
    file.sync_and_close();
}
