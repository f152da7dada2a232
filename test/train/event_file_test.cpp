// TensorBoard's files, read back by a decoder of the test's own; scripts/check_interop.sh has TensorBoard itself read
// them.
#include "llmc/train/event_file.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include "llmc/train/log.h"
#include "test/testing.h"

namespace {

// CRC-32C a bit at a time, from its polynomial.
uint32_t crc_by_bits(const std::string& bytes) {
    uint32_t crc = 0xffffffff;
    for (const unsigned char byte : bytes)
        for (int bit = 0; bit < 8; bit++) {
            const bool carry = (crc ^ byte >> bit) & 1;
            crc = crc >> 1 ^ (carry ? 0x82f63b78 : 0);
        }
    return ~crc;
}

template <class Number>
Number number_at(const std::string& bytes, size_t at) {
    Number value;
    REQUIRE(at + sizeof(value) <= bytes.size());
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
}

// A protocol buffer's fields in their order: the number, and the bytes of what is not a varint.
struct Part {
    uint64_t field, integer;
    std::string bytes;
};
std::vector<Part> parts_of(const std::string& message) {
    size_t at = 0;
    const auto varint = [&] {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            REQUIRE(at < message.size());
            const auto byte = static_cast<unsigned char>(message[at++]);
            value |= uint64_t(byte & 127) << shift;
            if (byte < 128) return value;
        }
    };
    std::vector<Part> parts;
    while (at < message.size()) {
        const uint64_t key = varint();
        Part part{key >> 3, 0, ""};
        const int kind = int(key & 7);
        REQUIRE((kind == 0 || kind == 1 || kind == 2 || kind == 5));
        if (kind == 0) {
            part.integer = varint();
        } else {
            const size_t size = kind == 1 ? 8 : kind == 5 ? 4 : size_t(varint());
            REQUIRE(at + size <= message.size());
            part.bytes = message.substr(at, size);
            at += size;
        }
        parts.push_back(part);
    }
    return parts;
}

struct Event {
    double time = 0;
    int64_t step = 0;
    std::string version;
    bool starts = false;
    std::vector<std::pair<std::string, float>> scalars;
};

// A record cut short ends a file.
std::vector<Event> events_in(const std::string& path) {
    const std::string bytes = read_file(path);
    const auto masked = [](const std::string& of) {
        const uint32_t crc = crc_by_bits(of);
        return (crc >> 15 | crc << 17) + 0xa282ead8;
    };
    std::vector<Event> events;
    for (size_t at = 0; at + 12 <= bytes.size();) {
        const size_t size = size_t(number_at<uint64_t>(bytes, at));
        REQUIRE(number_at<uint32_t>(bytes, at + 8) == masked(bytes.substr(at, 8)));
        if (at + 16 + size > bytes.size()) break;
        const std::string message = bytes.substr(at + 12, size);
        REQUIRE(number_at<uint32_t>(bytes, at + 12 + size) == masked(message));
        at += 16 + size;
        Event event;
        for (const Part& part : parts_of(message)) {
            if (part.field == 1) event.time = number_at<double>(part.bytes, 0);
            if (part.field == 2) event.step = int64_t(part.integer);
            if (part.field == 3) event.version = part.bytes;
            if (part.field == 7)
                event.starts = parts_of(part.bytes).at(0).field == 1 && parts_of(part.bytes)[0].integer == 1;
            if (part.field != 5) continue;
            for (const Part& value : parts_of(part.bytes)) {
                const std::vector<Part> of = parts_of(value.bytes);
                REQUIRE((value.field == 1 && of.size() == 2 && of[0].field == 1 && of[1].field == 2));
                event.scalars.push_back({of[0].bytes, number_at<float>(of[1].bytes, 0)});
            }
        }
        events.push_back(event);
    }
    return events;
}

std::vector<std::string> event_files(const std::string& folder) {
    return files_matching(folder + "/events.out.tfevents.*");  // sorted, as TensorBoard reads them
}

// What TensorBoard shows: what the files say one after the other, each start making void what was said of its step and
// later. A step told twice is a failure.
using Curves = std::map<std::string, std::map<int64_t, float>>;
Curves curves_of(const std::string& folder) {
    Curves curves;
    for (const std::string& path : event_files(folder))
        for (const Event& event : events_in(path)) {
            if (event.starts)
                for (auto& [tag, points] : curves) points.erase(points.lower_bound(event.step), points.end());
            for (const auto& [tag, value] : event.scalars) {
                INFO(tag << " at step " << event.step);
                CHECK(curves[tag].insert({event.step, value}).second);
            }
        }
    return curves;
}

}  // namespace

TEST_CASE("CRC-32C", "[event_file]") {
    CHECK(crc32c("123456789", 9) == 0xe3069283);  // the check value that its definition comes with
    CHECK(crc32c("", 0) == 0);
    for (int n = 1; n < 300; n += 13) {
        std::string bytes;
        for (int i = 0; i < n; i++) bytes += char(i * 37 + n);
        CHECK(crc32c(bytes.data(), bytes.size()) == crc_by_bits(bytes));
    }
}

TEST_CASE("events read back", "[event_file]") {
    const ScratchFolder out;
    const double before = double(std::time(nullptr));
    {
        EventFile events(out.path, 300);
        events.scalars(300, {{"train/loss", 3.25}, {"train/lr", 0.1}});
        events.scalars(int64_t(1) << 40, {{std::string(200, 'x'), -INFINITY}});
        events.scalars(301, {{"val/loss", NAN}});
        for (const int64_t step : {127, 128, 16383, 16384}) events.scalars(step, {{"a", 1}});  // lengths of a varint
    }
    const std::vector<std::string> files = event_files(out.path);
    REQUIRE(files.size() == 1);
    CHECK(std::filesystem::path(files[0]).filename().string().size() == std::strlen("events.out.tfevents.") + 10 + 6);
    const std::vector<Event> events = events_in(files[0]);
    REQUIRE(events.size() == 9);
    CHECK((events[5].step == 127 && events[6].step == 128 && events[7].step == 16383 && events[8].step == 16384));
    CHECK(events[0].version == "brain.Event:2");
    CHECK((events[1].starts && events[1].step == 300 && events[1].version.empty()));
    CHECK(events[2].step == 300);
    REQUIRE(events[2].scalars.size() == 2);
    CHECK((events[2].scalars[0].first == "train/loss" && events[2].scalars[0].second == 3.25f));
    CHECK((events[2].scalars[1].first == "train/lr" && events[2].scalars[1].second == 0.1f));
    CHECK(events[3].step == int64_t(1) << 40);
    CHECK((events[3].scalars.at(0).first == std::string(200, 'x') && events[3].scalars[0].second == -INFINITY));
    CHECK(std::isnan(events[4].scalars.at(0).second));
    for (const Event& event : events) CHECK((event.time >= before && event.time <= before + 60));
}

TEST_CASE("each file comes after all that are there", "[event_file]") {
    const ScratchFolder out;
    const std::string late = out / "events.out.tfevents.9000000000.anvil",
                      others = out / "events.out.tfevents.9100000000.host";
    EventFile(out.path, 0), EventFile(out.path, 1), EventFile(out.path, 2);  // in one second
    std::vector<std::string> files = event_files(out.path);
    REQUIRE(files.size() == 3);
    for (int i = 0; i < 3; i++) CHECK(events_in(files[size_t(i)]).at(1).step == i);
    write_file_atomically(late, "");
    EventFile(out.path, 3);
    CHECK(event_files(out.path).back() == out / "events.out.tfevents.9000000001.anvil");

    // Of a fresh run nothing older is left but what is not ours.
    write_file_atomically(others, "");
    const std::string odd = out / "events.out.tfevents.99999999999999999999.anvil";
    write_file_atomically(odd, "");
    EventFile::remove_all(out.path);
    CHECK(event_files(out.path) == std::vector<std::string>({others, odd}));
    CHECK(contains(error_of([&] { EventFile(out / "none", 0); }),
                   "2: cannot write " + out / "none/events.out.tfevents."));
}

TEST_CASE("events that cannot be written cost a run nothing but these", "[event_file]") {
    const ScratchFolder out;
    RunLog log(out.path, RunLog::Mode::fresh, {.steps = 9, .print_every = 100, .tensorboard = true});
    log.start({.config_json = "{}", .device = "cpu", .data_hash = "ff"});
    log.validation(0, 5);
    const std::string path = event_files(out.path).at(0);
    const auto size = std::filesystem::file_size(path);
    // From here on its disk is full.
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code ignored;
        if (std::filesystem::equivalent(entry.path(), path, ignored))
            REQUIRE(dup2(full, std::stoi(entry.path().filename())) >= 0);
    }
    close(full);
    log.validation(1, 5);
    log.validation(2, 5);
    CHECK(std::filesystem::file_size(path) == size);
    const std::string lines = read_file(out / "log.jsonl");
    CHECK(contains(lines, "{\"type\":\"val\",\"step\":1,"));
    CHECK(contains(lines, "{\"type\":\"val\",\"step\":2,"));
}

TEST_CASE("a run's scalars, through a kill and a resume", "[event_file]") {
    const ScratchFolder out;
    const auto step = [](RunLog& log, int64_t i, double loss) {
        log.step({.step = i, .loss = loss, .norm = 2, .lr = 1e-3, .ms = 500, .tokens = 1000, .mfu = 0.5});
    };
    const RunFacts facts{.config_json = "{}", .device = "cpu", .data_hash = "ff"};
    std::fflush(stdout);
    const int terminal = dup(1);
    REQUIRE(std::freopen("/dev/null", "w", stdout));
    {
        EventFile(out.path, 0).scalars(1, {{"train/loss", 99}});  // of a run that was here before
        RunLog log(out.path, RunLog::Mode::fresh, {.steps = 6, .tensorboard = true});
        log.start(facts);
        log.validation(0, 5);
        for (int i = 1; i <= 3; i++) step(log, i, i);
        log.validation(3, 4, 1.5);
        log.checkpoint(3, "step_00000003", 7);
        for (int i = 4; i <= 5; i++) step(log, i, 100 + i);
    }
    // Killed in the middle of a record.
    const std::string first = event_files(out.path).at(0);
    CHECK(events_in(first).at(1).step == 0);  // should files of before be left, all they say is void
    std::filesystem::resize_file(first, std::filesystem::file_size(first) - 5);
    {
        RunLog log(out.path, RunLog::Mode::resume, {.steps = 6, .tensorboard = true});
        log.resume(facts, 3, "step_00000003", {});
        log.validation(3, 4, 1.5);  // looked at again
        log.ranks(3, 7, 1, 2, 3, 0);
        log.tasks(3, "data/two.bin", {{"first", 4, 1, -0.5}, {"other", 2, 1, 0.25}}, -0.125, 10);
        for (int i = 4; i <= 6; i++) step(log, i, i == 5 ? double(NAN) : i);
        log.skip(5, NAN, 1, "not finite");
        log.sample(6, "nan", "inf");
        log.end(6, "finished");
    }
    {  // without the flag, nothing is added
        RunLog log(out.path, RunLog::Mode::resume, {.steps = 7});
        log.resume(facts, 6, "step_00000006", {});
        step(log, 7, 7);
    }
    std::fflush(stdout);
    dup2(terminal, 1);
    close(terminal);
    REQUIRE(event_files(out.path).size() == 2);

    Curves curves = curves_of(out.path);
    std::string tags;
    for (const auto& [tag, points] : curves) tags += tag + " ";
    CHECK(tags ==
          "checkpoint/ms ranks/max_ms ranks/median_ms ranks/min_ms ranks/slowest tasks/two/first/accuracy "
          "tasks/two/first/centered tasks/two/other/accuracy tasks/two/other/centered tasks/two/score train/loss "
          "train/lr train/mfu train/ms "
          "train/norm train/tokens_per_s val/bpb val/loss ");
    const auto& loss = curves["train/loss"];
    REQUIRE(loss.size() == 6);
    for (const int i : {1, 2, 3, 4, 6}) CHECK(loss.at(i) == float(i));
    CHECK(std::isnan(loss.at(5)));
    CHECK(curves["val/loss"] == std::map<int64_t, float>{{0, 5.f}, {3, 4.f}});
    CHECK(curves["val/bpb"] == std::map<int64_t, float>{{3, 1.5f}});
    CHECK(curves["checkpoint/ms"] == std::map<int64_t, float>{{3, 7.f}});
    CHECK(curves["ranks/max_ms"] == std::map<int64_t, float>{{3, 3.f}});
    CHECK(curves["tasks/two/score"] == std::map<int64_t, float>{{3, -0.125f}});
    CHECK(curves["tasks/two/first/accuracy"].at(3) == 0.25f);
    CHECK(curves["tasks/two/other/centered"].at(3) == 0.25f);
    CHECK(curves["train/lr"].at(6) == 1e-3f);
    CHECK(curves["train/tokens_per_s"].at(1) == 2000.f);
}
