// See outer_state.h.
#include "llmc/optim/outer_state.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include "llmc/base/bf16.h"   // bf16, to_bf16, to_float
#include "llmc/base/check.h"  // ensure

namespace {

int64_t num_scales(int64_t size) { return (size + OuterState::kScaled - 1) / OuterState::kScaled; }

// Decodes elements [begin, begin + n): deltas, or with fp32 the weights. All must have the same scale.
void decode(const std::string& encoded, OuterType type, int64_t size, int64_t begin, int64_t n, float* to) {
    const char* const from = encoded.data();
    if (type == OuterType::fp32) {
        std::memcpy(to, from + begin * int64_t(sizeof(float)), size_t(n) * sizeof(float));
    } else if (type == OuterType::bf16) {
        bf16 values[OuterState::kScaled];
        std::memcpy(values, from + begin * int64_t(sizeof(bf16)), size_t(n) * sizeof(bf16));
        for (int64_t i = 0; i < n; i++) to[i] = to_float(values[i]);
    } else {
        float scale = 0;
        std::memcpy(&scale, from + begin / OuterState::kScaled * int64_t(sizeof(float)), sizeof scale);
        const auto* values = reinterpret_cast<const int8_t*>(from) + num_scales(size) * int64_t(sizeof(float)) + begin;
        for (int64_t i = 0; i < n; i++) to[i] = scale * float(values[i]);
    }
}

}  // namespace

OuterState::OuterState(int64_t size, const OuterConfig& config)
    : config_(config), reference_(size_t(size)), momentum_(size_t(size)) {
    if (config.type != OuterType::fp32) error_.resize(size_t(size));
}

size_t OuterState::encoded_bytes(int64_t size, OuterType type) {
    if (type == OuterType::fp32) return size_t(size) * sizeof(float);
    if (type == OuterType::bf16) return size_t(size) * sizeof(bf16);
    return size_t(num_scales(size)) * sizeof(float) + size_t(size);
}

size_t OuterState::memory_bytes(int64_t size, int64_t islands, OuterType type) {
    const size_t kept = type == OuterType::fp32 ? 2 : 3, weights = 1;
    return (kept + weights) * size_t(size) * sizeof(float) + size_t(islands + 1) * encoded_bytes(size, type);
}

std::string OuterState::encode(const float* weights) {
    std::string encoded(encoded_bytes(size(), config_.type), '\0');
    char* const to = encoded.data();
    if (config_.type == OuterType::fp32) {
        std::memcpy(to, weights, encoded.size());
        return encoded;
    }
    for (int64_t begin = 0; begin < size(); begin += kScaled) {
        const int64_t n = std::min(kScaled, size() - begin);
        float delta[kScaled], sent[kScaled];
        for (int64_t i = 0; i < n; i++)
            delta[i] = (reference_[size_t(begin + i)] - weights[begin + i]) + error_[size_t(begin + i)];
        if (config_.type == OuterType::bf16) {
            bf16 values[kScaled];
            for (int64_t i = 0; i < n; i++) values[i] = to_bf16(delta[i]);
            std::memcpy(to + begin * int64_t(sizeof(bf16)), values, size_t(n) * sizeof(bf16));
        } else {
            float most = 0;
            for (int64_t i = 0; i < n; i++) most = std::max(most, std::fabs(delta[i]));
            const float scale = most / 127;
            std::memcpy(to + begin / kScaled * int64_t(sizeof(float)), &scale, sizeof scale);
            auto* values = reinterpret_cast<int8_t*>(to) + num_scales(size()) * int64_t(sizeof(float)) + begin;
            for (int64_t i = 0; i < n; i++)
                values[i] = scale > 0 ? int8_t(std::clamp(std::nearbyint(delta[i] / scale), -127.f, 127.f)) : int8_t(0);
        }
        decode(encoded, config_.type, size(), begin, n, sent);
        for (int64_t i = 0; i < n; i++) error_[size_t(begin + i)] = delta[i] - sent[i];
    }
    return encoded;
}

bool OuterState::apply(const std::vector<std::string>& all) {
    for (const std::string& encoded : all) ensure(encoded.size() == encoded_bytes(size(), config_.type));
    const double rate = config_.learning_rate, momentum = config_.momentum, num = double(all.size());
    bool is_finite = true;
    for (int64_t begin = 0; begin < size(); begin += kScaled) {
        const int64_t n = std::min(kScaled, size() - begin);
        double mean[kScaled] = {};
        for (size_t k = 0; k < all.size(); k++) {
            float term[kScaled];
            decode(all[k], config_.type, size(), begin, n, term);
            for (int64_t i = 0; i < n; i++) {
                const double sent = term[i], reference = reference_[size_t(begin + i)];
                const double weight = config_.type == OuterType::fp32 ? sent : reference - sent;
                mean[i] = k == 0 ? weight : mean[i] + weight;
            }
        }
        for (int64_t i = 0; i < n; i++) {
            float &r = reference_[size_t(begin + i)], &m = momentum_[size_t(begin + i)];
            const double weight = mean[i] / num, g = double(r) - weight;
            m = float(momentum * double(m) + g);
            // r - rate (g + momentum m), computed from the mean, so that it is exact if there is nothing to add.
            double next = weight;
            if (rate != 1) next += (1 - rate) * g;
            if (rate * momentum != 0) next -= rate * momentum * double(m);
            r = float(next);
            is_finite &= std::isfinite(r) && std::isfinite(m);
        }
    }
    return is_finite;
}
