// What a model reports of its activations, against their definitions.
#include "llmc/eval/activation_sizes.h"
#include "llmc/cpu/kernels.h"
#include "test/testing.h"

TEST_CASE("sizes are root mean squares of what the last block adds, in every architecture", "[activation_sizes]") {
    for (const std::string& architecture : architecture_names()) {
        INFO(architecture);
        GptShape shape{2, 4, 64, 32, 61};  // a vocabulary with padding
        shape.architecture = find_architecture(architecture);
        constexpr int64_t B = 2, T = 16, N = B * T, C = 64;
        Cpu cpu;
        const auto sizes_of = [&](const Recompute recompute) {
            Gpt<Cpu> model(cpu, shape, B, T, recompute);
            model.initialize_weights(3);
            Rng rng(4, Stream::tests);
            for (const Parameter& p : model.parameters)  // projections that begin as zeros would hide an error
                for (int64_t i = 0; i < p.exported_rows * p.size() / p.shape[0]; i++)
                    model.weights.at(p)[i] += float(0.01 * rng.normal());
            std::vector<int32_t> tokens;
            for (int32_t i = 0; i < N; i++) tokens.push_back(i * 5 % 61);
            model.forward(tokens.data(), B, T);
            auto sizes = activation_sizes(model);
            double squares = 0;
            for (int64_t i = 0; i < N * C; i++)
                squares += std::pow(double(model.acts.branch[i]), 2);  // still the MLP's
            // A difference of sums up to 4 times as large, each rounded once.
            CHECK(sizes["mlp"] == Approx(std::sqrt(squares / double(N * C))).epsilon(8 * double(kEpsF32)));
            squares = 0;
            const float* logits = model.logits(0, N);
            for (int64_t n = 0; n < N; n++)
                for (int64_t v = 0; v < 61; v++) squares += std::pow(double(logits[n * 128 + v]), 2);
            CHECK(sizes["logits"] == Approx(std::sqrt(squares / double(N * 61))).epsilon(1e-12));
            for (const Parameter& p : model.parameters)  // then attention adds nothing
                if (p.name.find("attn.c_proj") != std::string::npos) std::fill_n(model.weights.at(p), p.size(), 0.f);
            model.forward(tokens.data(), B, T);
            CHECK(activation_sizes(model)["attention"] == 0);
            CHECK(activation_sizes(model)["mlp"] > 0);
            return sizes;
        };
        const auto sizes = sizes_of(Recompute::none);
        CHECK(sizes == sizes_of(Recompute::block));
        CHECK(sizes == sizes_of(Recompute::never));
    }
}
