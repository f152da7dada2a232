/*
Task files for tests: those of the fixture `tasks` (dev/fixtures/reference_tasks.py), and a small one.
*/
#pragma once
#include <cstring>
#include <string>
#include <vector>
#include "test/fixture.h"  // Fixture

// The bytes of "tiny.tasks" or "tiny_questions.bin", which the fixture stores as 16-bit numbers.
inline std::string tasks_fixture(const std::string& name) {
    std::string bytes;
    for (const int32_t number : Fixture("tasks").ints(name)) {
        bytes += char(number & 255);
        bytes += char(number >> 8);
    }
    return bytes;
}

// A file with two tasks of one example each. The first has two rows, 1 2 | 3 and 1 2 | 4 5; the second has one row,
// | 6 7 LAST. `width`: bytes per token.
inline std::string small_tasks(int width = 2, int32_t last = 300) {
    std::string bytes(1024, '\0');
    const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
    const int32_t header[] = {20260901, 1, width, 2, 2, 3};
    std::memcpy(bytes.data(), header, sizeof header);
    const int64_t num_tokens = 8;
    std::memcpy(bytes.data() + 24, &num_tokens, 8);
    for (const int32_t type : {0, 2}) {
        std::string name = type ? "words" : "choices";
        name.resize(48);
        bytes += name;
        put(type), put(1), put(type ? 0.0 : 0.5);
    }
    for (const int32_t number : {0, 1, 2, 2, 1, 0, 1, 0}) put(number);     // task, gold, rows, context
    for (const int32_t number : {1, 2, 3, 2, 2, 4, 3, 1, 3}) put(number);  // rest, start, end
    for (const int32_t id : {1, 2, 3, 4, 5, 6, 7, last}) width == 2 ? put(uint16_t(id)) : put(id);
    return bytes;
}

// Questions of four completions each, in llm.c's format.
inline std::string questions(int count = 3) {
    const int32_t header[] = {20240522, 1, count, 14 * count + 4};
    std::string bytes(1024, '\0');
    std::memcpy(bytes.data(), header, sizeof header);
    for (int i = 0; i < count; i++) {
        const int q = i % 3;
        std::vector<uint16_t> numbers = {65535, 0, uint16_t(i), uint16_t(q), 4, 3, 5, 6, uint16_t(7 + q)};
        for (const uint16_t length : {1, 2, 3, 1}) {
            numbers.push_back(length);
            for (uint16_t k = 0; k < length; k++) numbers.push_back(uint16_t(numbers.size() * 5 % 17));
        }
        numbers[1] = uint16_t(2 * numbers.size());
        bytes.append(reinterpret_cast<const char*>(numbers.data()), 2 * numbers.size());
    }
    return bytes;
}
