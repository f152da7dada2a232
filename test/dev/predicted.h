// Predictions from doc/results/predicted-GPU.json, as dev/results/perf_table.py prints them.
#pragma once
#include <cstdlib>
#include <string>
#include "llmc/base/file.h"  // read_file
#include "test/testing.h"

// The number after `key` in the object with this "what".
inline double predicted_number(const std::string& what, const std::string& key, const std::string& gpu = "h100") {
    const std::string text = read_file("doc/results/predicted-" + gpu + ".json");
    const size_t at = text.find("\"what\": \"" + what + "\"");
    REQUIRE(at != std::string::npos);
    const size_t number = text.find("\"" + key + "\": ", at);
    REQUIRE(number < text.find('}', at));
    return std::strtod(text.c_str() + number + key.size() + 4, nullptr);
}
// "567000 (532000 to 600000) tok/s"
inline std::string predicted_rate(const std::string& what, const std::string& gpu = "h100") {
    return format("%g (%g to %g) tok/s", predicted_number(what, "mid", gpu), predicted_number(what, "low", gpu),
                  predicted_number(what, "high", gpu));
}
// "-12 %": the deviation of a measurement from the prediction.
inline std::string beside_predicted(const std::string& what, const std::string& key, double measured,
                                    const std::string& gpu = "h100") {
    return format("%+.0f %%", 100 * measured / predicted_number(what, key, gpu) - 100);
}
