/*
The optimizer's state in host memory, all or a part, on a GPU: the bits are those of state on the device after every
update, however many stages there are and whatever is copied when. With lazy streams a wait that is missing shows.
*/
#include "llmc/optim/offload.h"
#include <algorithm>
#include <cmath>
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/optim/optimizer.h"
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/optim/parameter_lists.h"
#ifdef ANVIL_EMULATED
#include "dev/emulator/emulator.h"  // options
#endif

namespace {

struct Trained {
    std::vector<std::vector<float>> weights, state;  // after each step
    size_t stages = 0;                               // that are offloaded
};

// `reads`: after which steps the state is read, as a checkpoint does it.
template <class T>
Trained train(bool muon, bool bf16_moments, int64_t stage_elements, int steps, bool reads, int percent = 100) {
    Cuda cuda;
    ParameterList list = Family{3, 2, 2, 8, 64, false, false, true}.list();
    OptimizerConfig rules = with_rule({.muon_learning_rate = 0.1}, muon ? "muon" : "adamw");
    rules.bf16_moments = bf16_moments, rules.seed = 3, rules.stage_elements = stage_elements,
    rules.offload_percent = percent;
    const ShardingPlan plan = plan_sharding(
        list, {.world_size = 1, .whole_matrices = muon, .bucket_elements = 1 << 12, .piece_elements = stage_elements});
    list.place(plan.offsets, plan.buffer_size);
    ParameterList one_block({1, 1, 1, 1, 1});
    one_block.buffer_size = list.buffer_size;
    Buffer<Cuda, T> weights(cuda, cuda, "weights", one_block);
    Buffer<Cuda, float> gradients(cuda, cuda, "gradients", one_block);
    const auto values = [&](int step) {
        std::vector<float> all(size_t(list.buffer_size));
        for (size_t i = 0; i < all.size(); i++) all[i] = float(std::sin(double(i) * 0.7 + step));
        return all;
    };
    Optimizer<Cuda, T> optimizer(cuda, list, plan, 0, rules);
    std::vector<T> first;
    for (const float value : values(0)) first.push_back(rounded_value<T>(value));
    copy_to_device(cuda, weights.data, first.data(), weights.size);
    for (size_t i = 0; i < list.parameters.size(); i++) {
        const Parameter& p = list.parameters[i];
        std::vector<float> of_parameter;
        for (int64_t k = 0; k < p.size(); k++) of_parameter.push_back(to_float(first[size_t(p.offset + k)]));
        optimizer.set_masters(i, of_parameter.data());
    }
    OnDevice<StepScalars> scalars(cuda, 1);
    Trained all;
    all.stages = StateLayout(list, plan, 0, rules).offloaded.size();
    for (int step = 1; step <= steps; step++) {
        const std::vector<float> gradient = values(step);
        copy_to_device(cuda, gradients.data, gradient.data(), gradients.size);
        scalars.set({{.updates = step, .applied = step != 2}});
        optimizer.update(weights, gradients, rules.rates(0.1), scalars.data);
        if (!reads && step < steps) continue;
        // Nobody has waited for the update yet, which the copies to the host must do.
        optimizer.finish_copies();
        std::vector<float> state;
        bool on_host = false;
        const auto add = [&](const auto* from, int64_t n) {
            std::vector<std::remove_const_t<std::remove_pointer_t<decltype(from)>>> host(from,
                                                                                         from + (on_host ? n : 0));
            host.resize(size_t(n));
            if (!on_host) copy_to_host(cuda, host.data(), from, n);
            for (const auto value : host) state.push_back(to_float(value));
        };
        for (size_t i = 0; i < optimizer.pieces().size(); i++) {
            const ShardPiece& piece = optimizer.pieces()[i];
            on_host = optimizer.is_offloaded(i);
            for (size_t k = 0; k < optimizer.rule(piece).state.size(); k++) {
                const int64_t n = optimizer.range(k, piece).size();
                if (n == 0) continue;
                if (optimizer.state_dtype(k, piece) == DType::bf16)
                    add(static_cast<const bf16*>(optimizer.state_data(k, i)), n);
                else
                    add(optimizer.state(k, i), n);
            }
            if (optimizer.has_masters()) add(optimizer.master_weights(i), piece.size());
        }
        // In an order that does not depend on where pieces end.
        std::sort(state.begin(), state.end());
        all.state.push_back(state);
        std::vector<T> host(size_t(weights.size));
        copy_to_host(cuda, host.data(), weights.data, weights.size);
        all.weights.emplace_back();
        for (const T& weight : host) all.weights.back().push_back(to_float(weight));
    }
    return all;
}

template <class T>
void check_same(bool muon, bool bf16_moments) {
    constexpr int kSteps = 4;
    const Trained want = train<T>(muon, bf16_moments, 0, kSteps, true);
    std::vector<size_t> numbers;
    for (const int64_t stage_elements : {256, 2048, 1 << 20})
        for (const bool reads : {true, false}) {
            if (stage_elements != 2048 && (kWatched || !reads)) continue;
            INFO((muon ? "muon" : "adamw") << bf16_moments << ", stages of " << stage_elements << " reads " << reads);
            const Trained got = train<T>(muon, bf16_moments, stage_elements, kSteps, reads);
            numbers.push_back(got.stages);
            if (reads)
                CHECK((got.state == want.state && got.weights == want.weights));
            else
                CHECK((got.state.back() == want.state.back() && got.weights.back() == want.weights.back()));
        }
    CHECK((kWatched || numbers.front() > 3 * numbers.back()));
    for (const int percent : {60, 10}) {
        if (kWatched && percent == 10) continue;
        INFO((muon ? "muon" : "adamw") << bf16_moments << ", " << percent << " %");
        const Trained some = train<T>(muon, bf16_moments, 2048, kSteps, true, percent);
        CHECK((some.state == want.state && some.weights == want.weights));
        CHECK((some.stages > 0 && some.stages < numbers[kWatched ? 0 : 1]));
    }
}

}  // namespace

TEST_CASE("state in host memory has the bits of state on the GPU", "[offload][once]" ON_DEVICE) {
    check_same<bf16>(false, false);
    check_same<float>(true, true);
}

#ifdef ANVIL_EMULATED
TEST_CASE("too little host memory to pin for offloaded state is an error that says what is missing",
          "[offload][once]" ON_DEVICE) {
    emulator::options().pinned_bytes = 1 << 10;
    CHECK(error_of([] { train<bf16>(false, false, 2048, 1, false); }).starts_with("2: out of pinned host memory: "));
    train<bf16>(false, false, 2048, 1, false, 0);  // all of it stays
    emulator::options().pinned_bytes = SIZE_MAX;
}

TEST_CASE("copies of offloaded state wait for what they need", "[offload][once]" ON_DEVICE) {
    emulator::options().lazy_streams = true;  // nothing is done before somebody waits
    check_same<bf16>(false, false);
    check_same<float>(true, true);
    emulator::options().lazy_streams = false;
}

TEST_CASE("a slot is filled when its content is out, and stages come back before they go out again",
          "[offload][once]" ON_DEVICE) {
    emulator::options().lazy_streams = true;
    Cuda cuda;
    const OnDevice<float> slot(cuda, 4);
    float* const host = static_cast<float*>(cuda.allocate_pinned(8 * sizeof(float)));
    // Whichever stream goes on first waits for the others.
    for (const bool device_first : {false, true}) {
        for (int i = 0; i < 8; i++) host[i] = float(i + 1);
        Cuda::SlotCopies copies(cuda, 1);
        const auto part = [&](int i) { return host + 4 * i; };
        const auto fill = [&](int i) { copies.fill(0, [&](auto&& copy) { copy(slot.data, part(i), 16); }); };
        fill(0);
        for (const int i : {0, 1, 0}) {
            copies.await(0);
            ops<float>(cuda).accumulate(cuda, slot.data, slot.data, 4);  // doubles it
            copies.empty(0, [&](auto&& copy) { copy(part(i), slot.data, 16); });
            fill(1 - i);
        }
        if (device_first) cuda.synchronize();
        copies.finish();
        CHECK(std::vector<float>(host, host + 8) == std::vector<float>{4, 8, 12, 16, 10, 12, 14, 16});
    }
    cuda.release_pinned(host);
    emulator::options().lazy_streams = false;
}
#endif
