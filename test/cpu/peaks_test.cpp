// Measured GEMM rates, and the type that --dtype auto derives from them.
#include "llmc/cpu/peaks.h"
#include "test/testing.h"

TEST_CASE("bf16 is chosen where its GEMMs are faster by 30%", "[peaks]") {
    CHECK(std::string(MatmulRates{100e9, 129e9}.faster()) == "fp32");
    CHECK(std::string(MatmulRates{100e9, 131e9}.faster()) == "bf16");
    CHECK(MatmulRates{94e9, 183e9}.text() == "bf16 (GEMMs on one core: 94 GFLOP/s in fp32, 183 in bf16)");
}

TEST_CASE("GEMM rates are measured, and similar when measured again", "[peaks]") {
    const MatmulRates rates = matmul_rates(), again = matmul_rates();
    for (const MatmulRates& r : {rates, again}) CHECK((r.fp32 > 1e6 && r.bf16 > 1e6 && r.fp32 < 1e13 && r.bf16 < 1e14));
    // A machine of which others take a part is slower, but not one type by more than twice than the other.
    const double change = again.bf16 / again.fp32 / (rates.bf16 / rates.fp32);
    CHECK((change > 0.5 && change < 2));
}
