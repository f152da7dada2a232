// See tensor_files.h.
#include "llmc/interop/tensor_files.h"
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include "llmc/base/bf16.h"   // bf16, to_float
#include "llmc/base/check.h"  // ensure, require
#include "llmc/base/file.h"   // read_file, thread_read_bytes
#include "llmc/base/json.h"   // Json

namespace fs = std::filesystem;

// sign 1 bit, exponent 5 bits with bias 15, fraction 10 bits; exponent 0: fraction / 2^24; exponent 31: infinity or NaN
float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size =
        exponent == 31  ? (fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
        : exponent == 0 ? std::ldexp(float(fraction), -24)
                        : std::ldexp(float(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

TensorFiles::TensorFiles(const std::string& folder, const std::string& file) : where_(folder + "/" + file) {
    std::error_code ignored;
    if (fs::exists(where_, ignored)) {
        files_.emplace_back(where_);
        for (const Tensor& tensor : files_[0].tensors()) tensors_[tensor.name] = tensor;
        return;
    }
    where_ += ".index.json";
    require(fs::exists(where_, ignored),
            "%s: neither model.safetensors nor model.safetensors.index.json is in it; a model in another format is "
            "converted by save_pretrained() of transformers",
            folder.c_str());
    const Json index = parse_json(read_file(where_));
    require(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
            "%s: expected a JSON object with a \"weight_map\"; use another copy of it", where_.c_str());
    std::map<std::string, size_t> opened;
    for (const auto& [name, holder] : index["weight_map"].items()) {
        const std::string file_name = holder.is_string() ? holder.get<std::string>() : "";
        require(
            !file_name.empty() && file_name.find('/') == std::string::npos && file_name.find('\0') == std::string::npos,
            "%s: the file of %s: expected the name of one beside it", where_.c_str(), in_quotes(name).c_str());
        const auto [place, is_new] = opened.insert({file_name, files_.size()});
        if (is_new) {
            const std::string path = folder + "/" + file_name;
            require(fs::exists(path, ignored), "%s: %s is missing, which holds %s", where_.c_str(), path.c_str(),
                    in_quotes(name).c_str());
            files_.emplace_back(path);
        }
        // find() returns null for a tensor of an unsupported type, which is not part of the model.
        if (const Tensor* tensor = files_[place->second].find(name)) tensors_[name] = *tensor;
    }
}

const Tensor* TensorFiles::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::string TensorFiles::other_type(const std::string& name) const {
    for (const SafetensorsReader& file : files_)
        if (const auto found = file.passed_over().find(name); found != file.passed_over().end()) return found->second;
    return "";
}

void TensorFiles::copy(float* to, const Tensor& tensor, int64_t begin, int64_t n) const {
    require(tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16,
            "%s: tensor %s is %s, expected F32, F16 or BF16", where_.c_str(), in_quotes(tensor.name).c_str(),
            name_of(tensor.dtype));
    ensure(begin >= 0 && n >= 0 && begin + n <= tensor.size());
    const size_t bytes = size_of(tensor.dtype);
    const char* from = static_cast<const char*>(tensor.data) + size_t(begin) * bytes;
    thread_read_bytes += size_t(n) * bytes;
    if (tensor.dtype == DType::f32) {
        if (n > 0) std::memcpy(to, from, size_t(n) * bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        std::memcpy(&bits, from + 2 * i, 2);
        to[i] = tensor.dtype == DType::bf16 ? to_float(bf16{bits}) : half_to_float(bits);
    }
}
