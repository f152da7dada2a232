// How fast products are, and which type that speaks for.
#include "llmc/cpu/product_rates.h"
#include "test/testing.h"

TEST_CASE("bf16 is taken where its products are faster by three tenths", "[product_rates]") {
    CHECK(std::string(ProductRates{100e9, 129e9}.faster()) == "fp32");
    CHECK(std::string(ProductRates{100e9, 131e9}.faster()) == "bf16");
    CHECK(ProductRates{94e9, 183e9}.text() ==
          "bf16, as a core's products run at 94 GFLOP/s in fp32 and at 183 in bf16");
}

TEST_CASE("rates of products are measured, and alike when measured again", "[product_rates]") {
    const ProductRates rates = product_rates(), again = product_rates();
    for (const ProductRates& r : {rates, again})
        CHECK((r.fp32 > 1e6 && r.bf16 > 1e6 && r.fp32 < 1e13 && r.bf16 < 1e14));
    // A machine of which others take a part is slower, but not one type by more than twice than the other.
    const double change = again.bf16 / again.fp32 / (rates.bf16 / rates.fp32);
    CHECK((change > 0.5 && change < 2));
}
