// The table of GPUs: names as drivers report them, and that none is taken for another.
#include "llmc/train/peak_flops.h"
#include "test/testing.h"

TEST_CASE("a GPU's peak is found by the name that its driver gives it", "[peak_flops]") {
    CHECK(peak_bf16_flops("NVIDIA H100 80GB HBM3") == 989e12);
    CHECK(peak_bf16_flops("NVIDIA H100 NVL") == 835e12);
    CHECK(peak_bf16_flops("NVIDIA H100 PCIe") == 756e12);
    CHECK(peak_bf16_flops("NVIDIA H200") == 989e12);
    CHECK(peak_bf16_flops("NVIDIA H200 NVL") == 836e12);
    CHECK(peak_bf16_flops("NVIDIA GB200") == 2500e12);
    CHECK(peak_bf16_flops("NVIDIA B200") == 2250e12);
    CHECK(peak_bf16_flops("NVIDIA A100-SXM4-80GB") == 312e12);
    CHECK(peak_bf16_flops("NVIDIA A40") == 149.7e12);
    CHECK(peak_bf16_flops("NVIDIA L40S") == 362e12);
    CHECK(peak_bf16_flops("NVIDIA L4") == 121e12);
    CHECK(peak_bf16_flops("NVIDIA GeForce RTX 4090") == 165.2e12);
}

TEST_CASE("of a GPU that is not in the table nothing is known", "[peak_flops]") {
    for (const char* name : {"NVIDIA RTX A4000", "NVIDIA L40", "Tesla V100-SXM2-32GB", "NVIDIA GeForce RTX 4090D", ""})
        CHECK(peak_bf16_flops(name) == 0);
}
