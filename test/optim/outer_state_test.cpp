// The outer step of islands: against the formulas, value by value, and in limiting cases.
#include "llmc/optim/outer_state.h"
#include <cmath>
#include <cstring>
#include <limits>
#include "llmc/base/bf16.h"  // to_bf16, to_float
#include "test/testing.h"    // Rng

namespace {

constexpr int64_t kSize = 3 * OuterState::kScaled + 17;  // the last scale has few

std::vector<float> numbers(uint64_t seed, double scale) {
    Rng rng(seed, Stream::tests);
    std::vector<float> all(static_cast<size_t>(kSize));
    for (float& x : all) x = float(scale * rng.normal());
    return all;
}

bool same_bits(const float* a, const std::vector<float>& b) {
    return std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

// What a value becomes on the wire, by the definition: of `most`, the largest magnitude in its block.
float rounded(float x, OuterType type, float most) {
    if (type == OuterType::fp32) return x;
    if (type == OuterType::bf16) return to_float(to_bf16(x));
    const float scale = most / 127;
    return scale > 0 ? scale * float(std::lrint(x / scale)) : 0;
}

}  // namespace

TEST_CASE("some outer steps of three islands are those of the formula, in every type", "[outer_state]") {
    for (const OuterType type : {OuterType::fp32, OuterType::bf16, OuterType::int8}) {
        INFO(int(type));
        const OuterConfig config{.learning_rate = 0.7, .momentum = 0.9, .type = type};
        std::vector<OuterState> islands(3, OuterState(kSize, config));
        std::vector<float> reference = numbers(1, 1), momentum(static_cast<size_t>(kSize));
        std::vector<std::vector<float>> errors(3, momentum);
        for (OuterState& island : islands) std::copy(reference.begin(), reference.end(), island.reference());
        for (uint64_t round = 0; round < 4; round++) {
            std::vector<std::string> sent;
            std::vector<std::vector<float>> weights;
            for (uint64_t k = 0; k < 3; k++) {
                weights.push_back(numbers(10 * round + k + 2, 0.1));
                for (size_t i = 0; i < reference.size(); i++) weights[k][i] += reference[i];
                sent.push_back(islands[k].encode(weights[k].data()));
                CHECK(sent[k].size() == OuterState::encoded_bytes(kSize, type));
            }
            for (OuterState& island : islands) REQUIRE(island.apply(sent));

            // The same with loops of its own.
            std::vector<std::vector<double>> arrived(3, std::vector<double>(size_t(kSize)));  // weights, as told
            for (size_t k = 0; k < 3; k++)
                for (size_t begin = 0; begin < size_t(kSize); begin += 64) {
                    const size_t end = std::min(begin + 64, size_t(kSize));
                    float most = 0;
                    const auto delta = [&](size_t i) { return (reference[i] - weights[k][i]) + errors[k][i]; };
                    for (size_t i = begin; i < end; i++) most = std::max(most, std::fabs(delta(i)));
                    for (size_t i = begin; i < end; i++) {
                        const float was = delta(i), told = rounded(was, type, most);
                        arrived[k][i] = type == OuterType::fp32 ? weights[k][i] : double(reference[i]) - told;
                        if (type != OuterType::fp32) errors[k][i] = was - told;
                    }
                }
            for (size_t i = 0; i < reference.size(); i++) {
                const double r = reference[i], g = r - (arrived[0][i] + arrived[1][i] + arrived[2][i]) / 3;
                momentum[i] = float(0.9 * double(momentum[i]) + g);
                reference[i] = float(r - 0.7 * (g + 0.9 * double(momentum[i])));
            }
            for (size_t k = 0; k < 3; k++) {
                CHECK(same_bits(islands[k].momentum(), momentum));
                if (type != OuterType::fp32) CHECK(same_bits(islands[k].error(), errors[k]));
                // The sum is taken in another order of the same doubles: apart where they round to different floats.
                for (size_t i = 0; i < reference.size(); i++)
                    REQUIRE(std::fabs(islands[k].reference()[i] - reference[i]) <=
                            std::fabs(reference[i]) * std::numeric_limits<float>::epsilon());
                CHECK(std::memcmp(islands[k].reference(), islands[0].reference(), size_t(kSize) * 4) == 0);
            }
            std::copy_n(islands[0].reference(), kSize, reference.begin());
        }
    }
}

TEST_CASE("with a rate of 1 and no momentum the outer step is the mean, and of one island its own weights",
          "[outer_state]") {
    const OuterConfig config{.learning_rate = 1, .momentum = 0};
    std::vector<float> a = numbers(1, 1), b = numbers(2, 1);
    a[0] = -0.f, a[1] = 1e-30f, a[2] = std::numeric_limits<float>::denorm_min();  // and references of about 1
    OuterState pair(kSize, config), one(kSize, config);
    const std::vector<float> start = numbers(3, 1);
    std::copy(start.begin(), start.end(), pair.reference());
    std::copy(start.begin(), start.end(), one.reference());
    REQUIRE(pair.apply({pair.encode(a.data()), pair.encode(b.data())}));
    std::vector<float> mean(static_cast<size_t>(kSize));
    for (size_t i = 0; i < mean.size(); i++) mean[i] = float((double(a[i]) + double(b[i])) / 2);
    CHECK(same_bits(pair.reference(), mean));
    REQUIRE(one.apply({one.encode(a.data())}));
    CHECK(same_bits(one.reference(), a));
}

TEST_CASE("error feedback: what is sent adds up to what has changed, but for the last error", "[outer_state]") {
    for (const OuterType type : {OuterType::bf16, OuterType::int8}) {
        // Everybody stays where they are, so every round has the same delta to send, and the mean moves by it.
        const OuterConfig config{.learning_rate = 0, .momentum = 0, .type = type};
        OuterState state(kSize, config);
        const std::vector<float> start(size_t(kSize), 0.f), weights = numbers(5, 1);
        OuterState listener(kSize, {.learning_rate = 1, .momentum = 0, .type = type});  // adds up what it hears
        double most_error = 0, most_without = 0;
        constexpr int kRounds = 32;
        std::vector<double> told(static_cast<size_t>(kSize));
        for (int round = 0; round < kRounds; round++) {
            const std::string sent = state.encode(weights.data());
            std::copy(start.begin(), start.end(), listener.reference());
            REQUIRE(listener.apply({sent}));  // 0 - what was sent
            for (size_t i = 0; i < told.size(); i++) {
                told[i] += double(listener.reference()[i]);
                if (round == 0) most_without = std::max(most_without, std::fabs(told[i] - double(weights[i])));
            }
        }
        for (size_t i = 0; i < told.size(); i++) {
            const double error = std::fabs(told[i] - kRounds * double(weights[i]));
            most_error = std::max(most_error, error);
            // The error that is left, and 32 roundings of it in fp32.
            REQUIRE(error <= std::fabs(double(state.error()[i])) + kRounds * 4e-7);
        }
        CHECK(most_without > 1e-3);
        CHECK(most_error < 2.1 * most_without);  // as of one round, not of 32
    }
}

TEST_CASE("no change is sent as zeros, and what is not finite is told", "[outer_state]") {
    for (const OuterType type : {OuterType::fp32, OuterType::bf16, OuterType::int8}) {
        OuterState state(kSize, {.type = type});
        std::vector<float> weights = numbers(6, 1);
        std::copy(weights.begin(), weights.end(), state.reference());
        REQUIRE(state.apply({state.encode(weights.data())}));
        CHECK(same_bits(state.reference(), weights));
        std::string sent = state.encode(weights.data());
        const float nan = std::nanf("");
        std::memcpy(sent.data(), &nan, sizeof nan);  // a weight, two deltas, or a scale
        CHECK(!state.apply({sent}));
    }
}
