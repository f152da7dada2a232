// Models with large linear layers in FP8, on the CUDA kernels.
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/limits.h"           // kOldestFp8, check_fp8_device
#include "test/cuda/mx_testing.h"       // has_mx
#include "test/cuda_testing.h"          // OnDevice, ON_DEVICE
#include "test/model/linear_testing.h"  // kFp8Cases, learn, check_learned
#include "test/models.h"                // Gpt
#include "test/train/rank_runs.h"       // TinyRuns

namespace {

bool has_fp8() { return Cuda().compute_capability >= kOldestFp8; }

// A layer and what it works on, on any device.
template <class Device, class T>
struct Layer {
    int64_t N, C, OC, kWidest = std::max(C, OC);
    Device& device;
    Arena arena;
    Fp8LinearState fp8;
    LinearLayer<T> site{N, C, OC, {}, &fp8};
    T *inp, *dout, *out, *dinp;

    Layer(Device& device, int64_t N, int64_t C, int64_t OC, bool mx)
        : N(N), C(C), OC(OC), device(device), arena(device, "layer", 1 << 20) {
        const auto give = [&](const Floats& values) {
            std::vector<T> host;
            for (const float x : values) host.push_back(rounded_value<T>(x));
            T* data = arena.take<T>(int64_t(host.size()));
            copy_to_device(device, data, host.data(), int64_t(host.size()));
            return data;
        };
        fp8 = {arena.take<e4m3>(OC * C), arena.take<e4m3>(OC * C), arena.take<e4m3>(N * C), arena.take<float>(1),
               arena.take<float>(1)};
        site.scratch = {arena.take<uint8_t>(N * kWidest), arena.take<uint8_t>(N * kWidest), arena.take<float>(1),
                        arena.take<float>(1)};
        if (mx) {
            const auto scales = [&](int64_t rows, int64_t cols) {
                return arena.take<e8m0>(mx_scale_bytes(rows, cols));
            };
            fp8.weight_scales = scales(OC, C), fp8.weight_t_scales = scales(C, OC), fp8.inp_t_scales = scales(C, N);
            site.scratch.row_scales = scales(N, kWidest), site.scratch.column_scales = scales(kWidest, N);
        }
        site.dweight = arena.take<float>(OC * C), site.dbias = arena.take<float>(OC);
        fill_zero(device, site.dweight, OC * C), fill_zero(device, site.dbias, OC);
        out = arena.take<T>(N * OC), dinp = arena.take<T>(N * C);
        inp = give(rounded<bf16>(randn(size_t(N * C), 1))), dout = give(rounded<bf16>(randn(size_t(N * OC), 2, 1e-5f)));
        site.weight = give(rounded<bf16>(randn(size_t(OC * C), 3, 0.02f)));
        site.bias = give(rounded<bf16>(randn(size_t(OC), 4, 0.3f)));
    }
    std::vector<Floats> pass() {
        linear_quantize_weight(device, site);
        linear_forward(device, out, inp, site);
        linear_backward(device, dinp, dout, static_cast<const T*>(nullptr), site);
        const auto get = [&](const auto* data, int64_t n) {
            std::vector<std::remove_cvref_t<decltype(*data)>> host(static_cast<size_t>(n));
            copy_to_host(device, host.data(), data, n);
            Floats floats;
            for (const auto x : host) floats.push_back(to_float(x));
            return floats;
        };
        return {get(out, N * OC), get(dinp, N * C), get(site.dweight, OC * C), get(site.dbias, OC)};
    }
};

}  // namespace

// On numbers of bf16 the codes are the same on both sides. What is left is as in test/cuda/matmul_fp8_cuda_test.cu:
// sums, one rounding to bf16, and what sums in tensor cores may lose.
TEST_CASE("on a GPU, a linear layer in FP8 is the CPU's", "[linear]" ON_DEVICE) {
    if (!has_fp8()) return;
    Cpu cpu;
    Cuda cuda;
    const std::vector<Floats> want = Layer<Cpu, float>(cpu, 48, 144, 80, false).pass(),
                              got = Layer<Cuda, bf16>(cuda, 48, 144, 80, false).pass();
    const auto sums = [](int64_t K) { return 2 * (2 + std::sqrt(double(K))) * kEpsF32; };
    check_close("out", got[0], want[0], sums(144) + kEpsBf16 + 4 * double(144 / 32) * 0x1p-14);
    check_close("dinp", got[1], want[1], sums(80) + kEpsBf16 + 4 * 0x1p-14);
    check_close("dweight", got[2], want[2], sums(48) + 4 * 0x1p-14);
    check_close("dbias", got[3], want[3], sums(48));
}

TEST_CASE("on a GPU, a linear layer in MX is the CPU's", "[linear]" ON_DEVICE) {
    Cuda cuda;
    if (!has_mx(cuda)) return;
    Cpu cpu;
    const std::vector<Floats> want = Layer<Cpu, float>(cpu, 160, 192, 96, true).pass(),
                              got = Layer<Cuda, bf16>(cuda, 160, 192, 96, true).pass();
    const auto sums = [](int64_t K) { return 2 * (2 + std::sqrt(double(K))) * kEpsF32 + 4 * double(K / 32) * 0x1p-14; };
    check_close("out", got[0], want[0], sums(192) + kEpsBf16);
    check_close("dinp", got[1], want[1], sums(96) + kEpsBf16);
    check_close("dweight", got[2], want[2], sums(160));
    check_close("dbias", got[3], want[3], sums(160));
}

TEST_CASE("on a GPU in FP8 an MLP with SwiGLU has the bits of its ops one after another", "[linear]" ON_DEVICE) {
    if (!has_fp8()) return;
    for (const bool is_delayed : {false, true})
        for (const bool has_biases : {false, true}) {
            Cuda cuda;
            check_swiglu_mlp<bf16>(cuda, is_delayed, has_biases);
        }
}

TEST_CASE("on a GPU, with the magnitudes of an equal step, delayed scales are the tensors' own",
          "[linear][once]" ON_DEVICE) {
    if (!has_fp8()) return;
    Cuda cuda;
    check_delayed_scales<bf16>(cuda, kFp8Cases[3], Recompute::norms);
}

#ifdef ANVIL_EMULATED  // a GPU's products in FP8 are not made for fp32, and their sums change codes
TEST_CASE("loss and gradients of models in FP8 agree with PyTorch in fp32", "[linear][once]" ON_DEVICE) {
    for (const ArchitectureCase& c : kFp8Cases)
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
            INFO(c.fixture << ", recompute " << int(recompute));
            Cuda cuda;
            check_learned(c, learn<float>(cuda, c, {recompute, true}), 4 * kEpsF32, kModelTolerance);
        }
}

TEST_CASE("loss and gradients of a model in MX agree with PyTorch in fp32", "[linear][once]" ON_DEVICE) {
    Cuda cuda;
    REQUIRE(has_mx(cuda));
    check_learned(kMxCase, learn<float>(cuda, kMxCase, {Recompute::norms, true, 0, 0, true}), 4 * kEpsF32,
                  kModelTolerance);
}
#endif

// A number that bf16 has rounded may lie on the other side of the middle between two codes; it is then a whole step
// off, and after it tensors have roundings of their own on either side. A rounding to e4m3 is off by 2^-3 / sqrt(12)
// of a number at most, to e5m2 by twice that. There are four of each in a block, on the way up and on the way down; the
// weights' are the same on both sides.
TEST_CASE("on a GPU, new bf16 models in FP8 learn what the CPU's do, in any way of recomputing", "[linear]" ON_DEVICE) {
    if (!has_fp8()) return;
    for (const ArchitectureCase& c : {kFp8Cases[0], kFp8Cases[3]}) {
        Cpu cpu;
        const Learned want = learn<float>(cpu, c, {Recompute::none, true}, true);
        std::vector<Floats> first;
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
            Cuda cuda;
            const Learned got = learn<bf16>(cuda, c, {recompute, true}, true);
            if (first.empty()) first = got.gradients;
            CHECK(std::fabs(got.loss - want.loss) <= kEpsBf16 * want.loss);
            const ParameterList list(c.shape);
            const double tolerance = std::sqrt(2 * 4 * double(c.shape.num_layers) * (1 + 4)) * 0.125 / std::sqrt(12.);
            for (size_t i = 0; i < got.gradients.size(); i++) {
                const std::string& name = list.parameters[i].name;
                INFO(c.fixture << ", recompute " << int(recompute) << ", " << name);
                CHECK(relative_l2(without_key_bias(name, got.gradients[i]),
                                  without_key_bias(name, want.gradients[i])) <= tolerance);
                CHECK(same_bits(got.gradients[i], first[i]));
            }
        }
    }
}

TEST_CASE("a run on a GPU in FP8 goes on after a stop, and recomputes, with the same bits",
          "[linear][once]" ON_DEVICE) {
    if (!has_fp8()) return;
    const TinyRuns runs;
    const std::string scaling = GENERATE("current", "delayed");
    if (kWatched && scaling == "current") return;
    const FlagMap flags = {{"fp8-scaling", scaling}, {"fp8-amax-history", "1"}, {"dtype", "fp8"},
                           {"device", "cuda"},       {"num-layers", "2"},       {"num-heads", "2"},
                           {"channels", "128"},      {"mlp-channels", "128"},   {"total-batch-size", "64"},
                           {"val-every", "0"},       {"warmup-steps", "2"},     {"steps", "4"}};
    must_succeed(runs.train("whole", flags));
    must_succeed(runs.train("parts", with(flags, {{"steps", "2"}})));  // all of them warm-up
    must_succeed(runs.resume("parts", {{"steps", "4"}, {"recompute", "block"}}));
    CHECK(difference(step_folder(runs.path("whole"), 4), step_folder(runs.path("parts"), 4)) == "");
    const auto losses = losses_in(runs.path("whole"));
    CHECK(losses.back().first < losses.front().first);
}

// The emulated GPU is a Hopper to a run.
TEST_CASE("a run in MX needs a Blackwell", "[linear][once]" ON_DEVICE) {
    if (Cuda().compute_capability >= kOldestMx) return;
    const Finished run = TinyRuns().train(
        "mx", {{"fp8-scaling", "mx"}, {"dtype", "fp8"}, {"device", "cuda"}, {"num-heads", "2"}, {"channels", "128"}});
    CHECK(run.exit_code == 2);
    CHECK(contains(run.err, "has no products in MX, which begin with Blackwell (sm_100), and this is sm_"));
}

TEST_CASE("a GPU without products in FP8 is refused", "[linear]" ON_DEVICE) {
    Cuda cuda;
    cuda.compute_capability = 86, cuda.name = "Old";
    CHECK(error_of([&] { check_fp8_device(cuda, "--dtype fp8"); }) ==
          "2: --dtype fp8: Old has no products in fp8, which begin with Ada (sm_89), and this is sm_86: train in bf16");
}
