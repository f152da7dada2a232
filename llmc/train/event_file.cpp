// See event_file.h.
#include "llmc/train/event_file.h"
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include "llmc/base/check.h"  // format

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr const char *kBegin = "events.out.tfevents.", *kEnd = ".anvil";

// The times in the names of a folder's event files, seconds since 1970.
std::vector<int64_t> times_in(const std::string& out_dir) {
    const std::string begin = kBegin, end = kEnd;
    std::vector<int64_t> times;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(out_dir, ignored)) {
        const std::string name = entry.path().filename();
        if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size()) continue;
        const std::string digits = name.substr(begin.size(), name.size() - begin.size() - end.size());
        if (digits.size() == 10 && digits.find_first_not_of("0123456789") == std::string::npos)
            times.push_back(std::stoll(digits));
    }
    return times;
}

// File names are sorted as text, which is correct as long as times have ten digits: until 2286.
std::string path_of(const std::string& out_dir, int64_t time) {
    return format("%s/%s%010lld%s", out_dir.c_str(), kBegin, static_cast<long long>(time), kEnd);
}

// Later than all existing files' times: a clock can go back, and a run can start twice in a second.
std::string new_path(const std::string& out_dir) {
    int64_t time = std::time(nullptr);
    for (const int64_t other : times_in(out_dir)) time = std::max(time, other + 1);
    return path_of(out_dir, time);
}

// The parts of a protocol buffer.
enum Kind { varint = 0, fixed64 = 1, counted = 2, fixed32 = 5 };

void put_varint(std::string& to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) to += char(value | 0x80);
    to += char(value);
}

void put_key(std::string& to, int field, Kind kind) { put_varint(to, uint64_t(field) << 3 | kind); }

template <class Number>
void put_raw(std::string& to, Number value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    to.append(bytes, sizeof(value));
}

void put_text(std::string& to, int field, const std::string& text) {
    put_key(to, field, counted);
    put_varint(to, text.size());
    to += text;
}

void put_integer(std::string& to, int field, int64_t value) {
    put_key(to, field, varint);
    put_varint(to, uint64_t(value));
}

// An Event with the current time and the step, but without its content.
std::string event_at(int64_t step) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    std::string event;
    put_key(event, 1, fixed64);
    put_raw(event, std::chrono::duration<double>(now).count());
    put_integer(event, 2, step);
    return event;
}

uint32_t masked_crc(const std::string& bytes) {
    return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + 0xa282ead8u;
}

}  // namespace

uint32_t crc32c(const void* data, size_t bytes) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> t;
        for (uint32_t i = 0; i < 256; i++) {
            t[i] = i;
            for (int bit = 0; bit < 8; bit++) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82f63b78u : 0);
        }
        return t;
    }();
    uint32_t crc = ~0u;
    for (const auto* p = static_cast<const uint8_t*>(data); bytes > 0; bytes--)
        crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
    return ~crc;
}

EventFile::EventFile(const std::string& out_dir, int64_t first_step) : file_(new_path(out_dir)) {
    std::string version = event_at(0), start = event_at(first_step), status;
    put_text(version, 3, "brain.Event:2");
    record(version);
    put_integer(status, 1, 1);  // START
    put_text(start, 7, status);
    record(start);
}

void EventFile::scalars(int64_t step, const Scalars& values) {
    std::string summary;
    for (const auto& [tag, value] : values) {
        std::string one;
        put_text(one, 1, tag);
        put_key(one, 2, fixed32);
        put_raw(one, float(value));
        put_text(summary, 1, one);
    }
    std::string event = event_at(step);
    put_text(event, 5, summary);
    record(event);
}

void EventFile::record(const std::string& event) {
    std::string bytes;
    put_raw(bytes, uint64_t(event.size()));
    put_raw(bytes, masked_crc(bytes));
    bytes += event;
    put_raw(bytes, masked_crc(event));
    file_.write(bytes.data(), bytes.size());
}

void EventFile::remove_all(const std::string& out_dir) {
    std::error_code ignored;  // files that cannot be removed are void anyway: see first_step
    for (const int64_t time : times_in(out_dir)) std::filesystem::remove(path_of(out_dir, time), ignored);
}
