// Decoding with the KV cache on a GPU: for every architecture the logits are those of a pass over the whole text, up to
// rounding.
#include "llmc/model/gpt_decoder.h"
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "test/cuda_testing.h"         // OnDevice, ON_DEVICE
#include "test/model/architectures.h"  // kArchitectureCases
#include "test/model/model_testing.h"  // load_weights, kModelTolerance, kFixtureShape
#include "test/models.h"               // Gpt

namespace {

using Text = std::vector<int32_t>;

Text text_of(int64_t n, int64_t V, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Text tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(rng.below(uint64_t(V)));
    return tokens;
}

template <class T>
Floats row_of_logits(Gpt<Cuda, T>& model, int64_t row) {
    std::vector<T> stored(size_t(model.shape.vocab_size));
    copy_to_host(model.device, stored.data(), model.logits(row, 1), model.shape.vocab_size);
    Floats logits;
    for (const T x : stored) logits.push_back(to_float(x));
    return logits;
}

// Two rows: one from its first token on, one from the middle of its text.
template <class T>
void check_decode(Cuda& cuda, Gpt<Cuda, T>& model, double tolerance) {
    const int64_t length = model.shape.max_seq_len, half = length / 2;
    const Text texts[] = {text_of(length, model.shape.vocab_size, 1), text_of(length, model.shape.vocab_size, 2)};
    std::vector<Floats> want[2];
    for (size_t row = 0; row < 2; row++) {
        const OnDevice<int32_t> tokens(cuda, texts[row]);
        model.forward(tokens.data, 1, length);
        for (int64_t t = 0; t < length; t++) want[row].push_back(row_of_logits(model, t));
    }
    const size_t before = cuda.used_bytes;
    GptDecoder<Cuda, T> decoder(model, 2, length, length);
    CHECK(cuda.used_bytes - before == KvCache<Cuda, T>::bytes(model.shape, model.windows, 2, length, length));
    decoder.prefill(0, {texts[0][0]});
    CHECK(relative_l2(row_of_logits(model, 0), want[0][0]) <= tolerance);
    decoder.prefill(1, Text(texts[1].begin(), texts[1].begin() + half));
    CHECK(relative_l2(row_of_logits(model, half - 1), want[1][size_t(half) - 1]) <= tolerance);
    for (int64_t step = 0; half + step < length; step++) {
        INFO("step " << step);
        decoder.decode({texts[0][size_t(1 + step)], texts[1][size_t(half + step)]});
        CHECK(relative_l2(row_of_logits(model, 0), want[0][size_t(1 + step)]) <= tolerance);
        CHECK(relative_l2(row_of_logits(model, 1), want[1][size_t(half + step)]) <= tolerance);
    }
}

}  // namespace

TEST_CASE("on a GPU, decode gives the logits of a pass over the whole text in fp32", "[kv_cache]" ON_DEVICE) {
    std::vector<ArchitectureCase> cases = kArchitectureCases;
    cases.push_back({"model", kB, kT, kFixtureShape});
    for (const ArchitectureCase& c : cases) {
        INFO(c.fixture);
        Cuda cuda;
        Gpt<Cuda, float> model(cuda, c.shape, 2, c.shape.max_seq_len, Recompute::never);
        load_weights(model, Fixture(c.fixture));
        model.document_token = 3;  // some will be documents
        check_decode(cuda, model, kModelTolerance);
    }
}

// Counted as in test/model/architecture_cuda_test.cu: on its way forward a token meets up to twelve roundings of half a
// unit a layer and eight at the ends, and so it does in both passes: 2 * (12 * 3 + 8) = 88.
TEST_CASE("on a GPU, decode gives these logits in bf16 but for roundings", "[kv_cache][once]" ON_DEVICE) {
    for (const char* architecture : {"llama", "nanochat"}) {
        INFO(architecture);
        Cuda cuda;
        const GptShape shape = small_shape(architecture, {3, 2, 128, 40, 300, 1, 192}, "SLL", 9);
        Gpt<Cuda, bf16> model(cuda, shape, 2, 40, Recompute::never);
        for (const Parameter& p : model.parameters) {
            const bool is_gain = p.name.ends_with("ln_1.weight") || p.name.ends_with("ln_2.weight") ||
                                 p.name == "ln_f.weight" || p.name == "resid_lambdas";
            Floats values = randn(size_t(p.size()), uint64_t(p.offset) + 1, float(1 / std::sqrt(128.)));
            for (float& x : values) x += is_gain ? 1.f : 0.f;
            std::fill(values.begin() + p.exported_rows * (p.size() / p.shape[0]), values.end(), 0.f);
            model.set_weight(p, values.data());
        }
        check_decode(cuda, model, std::sqrt(88.) / 2 * kEpsBf16);
    }
}
