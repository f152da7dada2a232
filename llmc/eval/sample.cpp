// What works on each logit of each token: a file of its own, because it is optimized.
#include "llmc/eval/sample.h"
#include <cmath>
#include <numeric>

namespace {

// The first of the largest. Sixteen maxima side by side, because each comparison waits for the one before.
int32_t most_probable(const std::vector<float>& logits) {
    constexpr size_t kRuns = 16;
    const size_t n = logits.size();
    float largest[kRuns];
    for (float& x : largest) x = logits[0];
    size_t v = 0;
    for (; v + kRuns <= n; v += kRuns)
        for (size_t i = 0; i < kRuns; i++) largest[i] = logits[v + i] > largest[i] ? logits[v + i] : largest[i];
    for (; v < n; v++) largest[0] = logits[v] > largest[0] ? logits[v] : largest[0];
    const float most = *std::max_element(largest, largest + kRuns);
    const auto first = std::find(logits.begin(), logits.end(), most);
    return first == logits.end() ? 0 : int32_t(first - logits.begin());  // the end: the first logit is NaN
}

template <class T>
void read_each(std::vector<float>& logits, const T* stored, Softcap softcap) {
    if (softcap.kind == Softcap::Kind::none)
        for (size_t v = 0; v < logits.size(); v++) logits[v] = to_float(stored[v]);
    else
        for (size_t v = 0; v < logits.size(); v++) logits[v] = capped(to_float(stored[v]), softcap);
}

}  // namespace

void read_logits(std::vector<float>& logits, const float* stored, Softcap softcap) {
    read_each(logits, stored, softcap);
}
void read_logits(std::vector<float>& logits, const bf16* stored, Softcap softcap) {
    read_each(logits, stored, softcap);
}

int32_t draw(const std::vector<float>& logits, const SampleConfig& config, Rng& rng) {
    if (config.temperature == 0) return most_probable(logits);
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    // Ties between logits are ordered by id, so that the choice does not depend on the sort.
    const auto likelier = [&](int32_t a, int32_t b) {
        return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
    };
    if (config.top_k > 0 && size_t(config.top_k) < order.size()) {
        std::partial_sort(order.begin(), order.begin() + config.top_k, order.end(), likelier);
        order.resize(size_t(config.top_k));
    }
    float largest = logits[size_t(order[0])];
    for (int32_t id : order) largest = std::max(largest, logits[size_t(id)]);
    const auto weight = [&](int32_t id) { return std::exp(double(logits[size_t(id)] - largest) / config.temperature); };
    if (config.top_p < 1) {
        const auto less_likely = [&](int32_t a, int32_t b) { return likelier(b, a); };
        double all = 0, part = 0;
        for (int32_t id : order) all += weight(id);
        std::vector<int32_t> nucleus;
        std::make_heap(order.begin(), order.end(), less_likely);
        while (nucleus.empty() || (part < config.top_p * all && !order.empty())) {
            std::pop_heap(order.begin(), order.end(), less_likely);
            nucleus.push_back(order.back()), order.pop_back();
            part += weight(nucleus.back());
        }
        order = nucleus;
    }
    std::vector<double> sums;
    double sum = 0;
    for (int32_t id : order) sums.push_back(sum += weight(id));
    const double point = rng.uniform() * sum;
    const auto chosen = std::upper_bound(sums.begin(), sums.end(), point);
    return order[size_t(std::min<ptrdiff_t>(chosen - sums.begin(), ptrdiff_t(order.size()) - 1))];
}
