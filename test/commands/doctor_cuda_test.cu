// What doctor says of a GPU.
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/testing.h"

TEST_CASE("doctor says how a GPU sums the gradients of biases", "[doctor]" ON_DEVICE) {
    const auto said = [](const std::string& environment) {
        const std::string out = run("env " + environment + program("train_gpt") + " doctor --device cuda").out;
        const size_t at = out.find("ok    gradients of biases: ");
        return at == std::string::npos ? out : out.substr(at, out.find('\n', at) - at);
    };
    CHECK(contains(said(""), "ok    gradients of biases: a"));
#ifdef ANVIL_EMULATED
    CHECK(said("") == "ok    gradients of biases: an epilogue of cuBLASLt");
    CHECK(said("ANVIL_EMULATOR_NO_EPILOGUES=1 ") == "ok    gradients of biases: a pass of their own");
#endif
}
