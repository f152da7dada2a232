// Embedding against PyTorch. Forward is one addition and a reference rounded once, so it must match exactly.
#include "llmc/cpu/embedding.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal, plus, whole_numbers
#include "test/testing.h"

TEST_CASE("embedding agrees with PyTorch", "[embedding]") {
    const Fixture f("embedding");
    const auto [B, T, C] = GENERATE(table<int, int, int>({{1, 1, 1}, {1, 1, 16}, {2, 5, 7}, {3, 4, 33}, {2, 9, 48}}));
    const std::string name = format("%dx%dx%d.", B, T, C);
    INFO(name);
    const Floats wte = f.floats(name + "wte"), wpe = f.floats(name + "wpe"), dout = f.floats(name + "dout");
    const Ints tokens = f.ints(name + "tokens");
    const Floats dwte_start = randn(wte.size(), 1), dwpe_start = randn(wpe.size(), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dwte(dwte_start), dwpe(dwpe_start);
        embedding_forward<float>(cpu, out, tokens.data(), wte.data(), wpe.data(), B, T, C);
        embedding_backward<float>(cpu, dwte, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{out.get(), dwte.get(), dwpe.get()};
    });
    check_equal("out", got[0], f.floats("want." + name + "out"));
    // A token's row gets at most B*T <= 18 additions of random signs: sqrt(18) half units, doubled for the sums'
    // growth.
    check_close("dwte", got[1], plus(dwte_start, f.floats("want." + name + "dwte")), 4 * kEpsF32);
    check_close("dwpe", got[2], plus(dwpe_start, f.floats("want." + name + "dwpe")), 4 * kEpsF32);
}

TEST_CASE("embedding without learned positions is the token's row, and changes nothing else", "[embedding]") {
    const int64_t B = 2, T = 7, C = 133, V = 11;  // C spans several of the ranges that threads get
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(V)));
    const Floats wte = randn(size_t(V * C), 1), wpe = randn(size_t(T * C), 2), dout = randn(size_t(B * T * C), 3);
    const Floats start = randn(wte.size(), 4);
    Floats want;
    for (const int32_t token : tokens) want.insert(want.end(), wte.begin() + token * C, wte.begin() + (token + 1) * C);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dwte(start), dwte_beside(start), dwpe(wpe);
        embedding_forward<float>(cpu, out, tokens.data(), wte.data(), nullptr, B, T, C);
        embedding_backward<float>(cpu, dwte, nullptr, dout.data(), tokens.data(), B, T, C);
        embedding_backward<float>(cpu, dwte_beside, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{out.get(), dwte.get(), dwte_beside.get()};
    });
    check_equal("out", got[0], want);
    check_equal("dwte", got[1], got[2]);
}

TEST_CASE("embedding_backward adds whole numbers exactly", "[embedding]") {
    const int64_t B = 3, T = 41, C = 200, V = 9;  // C spans several of the ranges that threads get
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(V)));
    const Floats dout = whole_numbers(B * T * C, 2, 100);
    const Floats dwte_start = whole_numbers(V * C, 3, 100), dwpe_start = whole_numbers(T * C, 4, 100);
    Floats dwte_want = dwte_start, dwpe_want = dwpe_start;
    for (int64_t row = 0; row < B * T; row++)
        for (int64_t c = 0; c < C; c++) {
            dwte_want[size_t(tokens[size_t(row)] * C + c)] += dout[size_t(row * C + c)];
            dwpe_want[size_t(row % T * C + c)] += dout[size_t(row * C + c)];
        }
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded dwte(dwte_start), dwpe(dwpe_start);
        embedding_backward<float>(cpu, dwte, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{dwte.get(), dwpe.get()};
    });
    check_equal("dwte", got[0], dwte_want);
    check_equal("dwpe", got[1], dwpe_want);
}

TEST_CASE("embedding in bf16 rounds each result once", "[embedding]") {
    const auto [B, T, C] = GENERATE(table<int64_t, int64_t, int64_t>({{1, 1, 1}, {3, 5, 33}, {2, 4, 768}}));
    const bool positions = GENERATE(true, false);
    INFO(B << " x " << T << " x " << C);
    check_rounds_once([B = B, T = T, C = C, positions]<class Element>(Cpu& cpu) {
        const int64_t V = 4;
        const auto wte = bf16_randn<Element>(V * C, 1), wpe = bf16_randn<Element>(T * C, 2);
        const auto dout = bf16_randn<Element>(B * T * C, 3);
        Ints tokens;
        for (int64_t n = 0; n < B * T; n++) tokens.push_back(int32_t(n * n % V));
        Guarded<Element> out(dout.size());
        Guarded dwte(randn(wte.size(), 4)), dwpe(randn(wpe.size(), 5));
        embedding_forward(cpu, out.data(), tokens.data(), wte.data(), positions ? wpe.data() : nullptr, B, T, C);
        embedding_backward(cpu, dwte, positions ? dwpe.data() : nullptr, dout.data(), tokens.data(), B, T, C);
        return std::vector{stored(out), dwte.get(), dwpe.get()};
    });
}
