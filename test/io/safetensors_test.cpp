// The safetensors format, and all ways in which a file can be invalid.
#include <cstring>
#include <filesystem>
#include <fstream>
#include "llmc/base/hash.h"  // xxh3, hex64
#include "llmc/base/file.h"
#include "llmc/io/safetensors.h"
#include "test/testing.h"

namespace {
// A file from a header's text and its data, with the length in front.
std::string bytes_of(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

// Without the fsync of write_file_atomically, and in place: there are thousands of them below.
void put_byte(const std::string& path, size_t at, char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(at));
    file.put(byte);
}

void put_file(const std::string& path, const std::string& content) {
    FileWriter(path).write(content.data(), content.size());
}

std::string read_error(const std::string& content) {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    put_file(path, content);
    return error_of([&] { SafetensorsReader file(path); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

// Five tensors of all types, a scalar and an empty one among them.
const std::vector<Tensor> kTensors = {{"wte", DType::f32, {3, 2}},
                                      {"empty", DType::f32, {0, 4}},
                                      {"scalar", DType::i32, {}},
                                      {"tokens", DType::u16, {5}},
                                      {"half", DType::bf16, {1, 3}}};
std::string data_of(const Tensor& tensor) {
    std::string data(tensor.size_bytes(), '\0');
    Rng rng(tensor.name.size(), Stream::tests);
    for (char& c : data) c = char(rng.next());
    return data;
}

void write_example(const std::string& path, size_t piece = SIZE_MAX) {
    SafetensorsWriter out(path, kTensors, {{"format", "pt"}, {"step", "7"}});
    for (const Tensor& tensor : kTensors) {
        const std::string data = data_of(tensor);
        for (size_t at = 0; at < data.size(); at += std::min(piece, data.size() - at))
            out.write(data.data() + at, std::min(piece, data.size() - at));
    }
    out.finish();
    const std::string content = read_file(path);
    CHECK(out.size_bytes() == content.size());
    CHECK(out.hash() == xxh3(content.data(), content.size()));
    REQUIRE(out.records().size() == 1 + kTensors.size());
    const TensorRecord& header = out.records()[0];
    CHECK((header.name == kHeaderRecord && header.begin_bytes == 0));
    CHECK(header.end_bytes == 8 + uint64_t(uint8_t(content[0])) + 256 * uint64_t(uint8_t(content[1])));
    CHECK(header.hash == xxh3(content.data(), header.end_bytes));
    for (size_t i = 0; i < kTensors.size(); i++) {
        const std::string data = data_of(kTensors[i]);
        const TensorRecord& record = out.records()[1 + i];
        CHECK(record.name == kTensors[i].name);
        CHECK(record.hash == xxh3(data.data(), data.size()));
        CHECK(content.substr(record.begin_bytes, record.end_bytes - record.begin_bytes) == data);
    }
}
}  // namespace

TEST_CASE("what is written is read back", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    write_example(path);
    SafetensorsReader opened(path);
    const SafetensorsReader file = std::move(opened);
    REQUIRE(file.tensors().size() == kTensors.size());
    for (const Tensor& tensor : kTensors) {
        const Tensor& got = file.at(tensor.name);
        CHECK(got.dtype == tensor.dtype);
        CHECK(got.shape == tensor.shape);
        CHECK(std::string(static_cast<const char*>(got.data), got.size_bytes()) == data_of(tensor));
    }
    CHECK(file.metadata() == Metadata{{"format", "pt"}, {"step", "7"}});
    CHECK(file.find("wpe") == nullptr);
    CHECK(error_of([&] { file.at("wpe"); }) == "2: " + path + ": no tensor named \"wpe\" among its 5");

    uint64_t header_bytes;
    std::memcpy(&header_bytes, read_file(path).data(), 8);
    CHECK(header_bytes % 8 == 0);

    write_example(scratch / "b.safetensors", 3);
    CHECK(read_file(scratch / "b.safetensors") == read_file(path));
}

TEST_CASE("copy insists on type and shape", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    write_example(path);
    const SafetensorsReader file(path);
    Floats wte(6);
    file.copy(wte.data(), "wte", DType::f32, {3, 2});
    CHECK(std::memcmp(wte.data(), data_of(kTensors[0]).data(), 24) == 0);
    CHECK(error_of([&] { file.copy(wte.data(), "wte", DType::f32, {2, 3}, "look at --channels"); }) ==
          "2: " + path + ": tensor \"wte\" is F32 [3, 2], expected F32 [2, 3]; look at --channels");
    CHECK(contains(error_of([&] { file.copy(wte.data(), "wte", DType::i32, {3, 2}); }), "expected I32 [3, 2]"));
    CHECK(contains(error_of([&] { file.copy(wte.data(), "wte", DType::f32, {6}); }), "expected F32 [6]"));
    CHECK(contains(error_of([&] { file.copy(wte.data(), "h", DType::f32, {6}); }), "no tensor named"));
}

TEST_CASE("the writer takes exactly what its list says", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors", data(100, 'x');
    const std::vector<Tensor> list = {{"a", DType::f32, {2}}, {"b", DType::f32, {1}}};
    CHECK(contains(error_of([&] { SafetensorsWriter(path, list).write(data.data(), 9); }), "1: internal"));
    CHECK(contains(error_of([&] { SafetensorsWriter(path, list).finish(); }), "1: internal"));
    CHECK(contains(error_of([&] {
                       SafetensorsWriter out(path, list);
                       out.write(data.data(), 8);
                       out.write(data.data(), 4);
                       out.write(data.data(), 1);
                   }),
                   "1: internal"));
    CHECK(contains(error_of([&] { SafetensorsWriter(path, {list[0], list[0]}); }), "1: internal"));
    CHECK(contains(error_of([&] { SafetensorsWriter("/nowhere/a", list); }), "2: cannot write /nowhere/a"));
    SafetensorsWriter(path, {}).finish();
    CHECK(SafetensorsReader(path).tensors().empty());
}

TEST_CASE("headers of other writers are read", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    // Out of order, unpadded, with an unknown key.
    put_file(path, bytes_of("{" + entry("b", "U16", "[1]", "[4,6]") + ", " +
                                "\"a\":{\"x\":1,\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                            "abcdef"));
    const SafetensorsReader file(path);
    REQUIRE(file.tensors().size() == 2);
    CHECK(file.tensors()[0].name == "a");
    CHECK(file.tensors()[1].name == "b");
    CHECK(std::string(static_cast<const char*>(file.at("b").data), 2) == "ef");
}

// With quadratic work for each further tensor this test takes minutes.
TEST_CASE("a header is read in linear time", "[safetensors]") {
    constexpr size_t kEntries = 60'000;
    const auto header = [](size_t last) {
        std::string text = "{";
        for (size_t i = 0; i < kEntries; i++)
            text += (i ? "," : "") + entry(std::to_string(i + 1 < kEntries ? i : last), "F32", "[0]", "[0,0]");
        return bytes_of(text + "}", "");
    };
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    put_file(path, header(kEntries));
    CHECK(SafetensorsReader(path).tensors().size() == kEntries);
    CHECK(contains(read_error(header(7)), "two tensors named \"7\""));
}

TEST_CASE("tensors of other types than ours are passed over, and say so when asked for", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    put_file(path, bytes_of("{" + entry("mask", "BOOL", "[3]", "[0,3]") + "," + entry("a", "F16", "[1]", "[3,5]") +
                                "," + entry("t", "I64", "[1]", "[5,13]") + "}",
                            "abcde12345678"));
    const SafetensorsReader file(path);
    REQUIRE(file.tensors().size() == 1);
    CHECK(file.at("a").dtype == DType::f16);
    CHECK(std::string(static_cast<const char*>(file.at("a").data), 2) == "de");
    CHECK(!file.find("mask"));
    CHECK(contains(error_of([&] { file.at("t"); }), "tensor \"t\" is of type I64, expected F32, F16"));
}

TEST_CASE("a file that does not fit together is refused", "[safetensors]") {
    const std::string four(4, '\0'), eight(8, '\0');
    const std::string good = entry("a", "F32", "[2]", "[0,8]");
    CHECK(read_error(bytes_of("{" + good + "}", eight)) == "");

    struct Case {
        std::string content, part;
    };
    const std::vector<Case> cases = {
        {"", "it has 0 bytes"},
        {"1234567", "it has 7 bytes"},
        {std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8) + "{}", "it says its header has 18446744073709551615"},
        {bytes_of("{}", "").replace(0, 1, "\x03"), "it says its header has 3 bytes, the file has 10"},
        {bytes_of("", ""), "not a JSON object"},
        {bytes_of("[]", ""), "not a JSON object"},
        {bytes_of("{" + good, eight), "not a JSON object"},
        {bytes_of("{" + good + "}x", eight), "not a JSON object"},
        {bytes_of("{\"\xFF\":1}", ""), "not a JSON object"},
        {bytes_of(std::string(100000, '['), ""), "not a JSON object"},
        {bytes_of("{" + good + "," + good + "}", eight), "two tensors named \"a\""},
        {bytes_of("{\"\":1,\"\":1}", ""), "two tensors named \"\""},
        {bytes_of("{\"a\":1}", ""), "tensor \"a\": expected dtype, shape and data_offsets"},
        {bytes_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", eight), "expected dtype, shape and data_offsets"},
        {bytes_of("{\"a\":{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}}", eight), "dtype is not a string"},
        {bytes_of("{" + entry("a", "F128", "[1]", "[0,8]") + "}", eight), "tensor \"a\": unknown tensor type 'F128'"},
        {bytes_of("{" + entry("a", "F64", "[2]", "[0,8]") + "}", eight), "F64 [2] is 16 bytes"},
        {bytes_of("{" + entry("a", "F16", "[2]", "[0,8]") + "}", eight), "F16 [2] is 4 bytes"},
        {bytes_of("{" + entry("a", "F32", "2", "[0,8]") + "}", eight), "shape is not a list"},
        {bytes_of("{" + entry("a", "F32", "[-2]", "[0,8]") + "}", eight), "the extent -2 is not a count"},
        {bytes_of("{" + entry("a", "F32", "[2.0]", "[0,8]") + "}", eight), "the extent 2.0 is not a count"},
        {bytes_of("{" + entry("a", "F32", "[\"2\"]", "[0,8]") + "}", eight), "is not a count"},
        {bytes_of("{" + entry("a", "F32", "[9223372036854775808]", "[0,8]") + "}", eight), "is not a count"},
        {bytes_of("{" + entry("a", "F32", "[99999999999999999999]", "[0,8]") + "}", eight), "is not a count"},
        // 2^32 * 2^32 * 4 is 0 in 64 bits
        {bytes_of("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", ""), "the shape overflows"},
        {bytes_of("{" + entry("a", "F32", "[4294967296,4294967296,0]", "[0,0]") + "}", ""), "the shape overflows"},
        {bytes_of("{" + entry("a", "F32", "[2]", "[0,8,8]") + "}", eight), "data_offsets are not two counts"},
        {bytes_of("{" + entry("a", "F32", "[2]", "[-8,0]") + "}", eight), "data_offsets are not two counts"},
        {bytes_of("{" + entry("a", "F32", "[2]", "{\"0\":0,\"1\":8}") + "}", eight), "data_offsets are not two counts"},
        {bytes_of("{" + entry("a", "F32", "[2]", "[8,0]") + "}", eight), "data_offsets run backwards"},
        {bytes_of("{" + entry("a", "F32", "[2]", "[0,4]") + "}", four), "F32 [2] is 8 bytes, its data_offsets span 4"},
        {bytes_of("{" + entry("a", "BF16", "[2]", "[0,8]") + "}", eight), "BF16 [2] is 4 bytes"},
        {bytes_of("{" + entry("a", "F32", "[0,2]", "[0,8]") + "}", eight), "F32 [0, 2] is 0 bytes"},
        {bytes_of("{" + good + "}", four), "tensor \"a\" ends at byte 8 of the data, which has 4 (cut short?)"},
        {bytes_of("{" + entry("a", "F32", "[1]", "[18446744073709551612,18446744073709551616]") + "}", four),
         "data_offsets are not two counts"},
        {bytes_of("{" + good + "}", eight + "x"), "1 bytes follow the last tensor"},
        {bytes_of("{}", "x"), "1 bytes follow the last tensor"},
        {bytes_of("{" + entry("a", "F32", "[1]", "[4,8]") + "}", eight), "begins at byte 4 of the data, expected 0"},
        {bytes_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}",
                  eight + four),
         "tensor \"b\" begins at byte 8 of the data, expected 4 (a hole or an overlap)"},
        {bytes_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[0,4]") + "}", four),
         "tensor \"b\" begins at byte 0 of the data, expected 4 (a hole or an overlap)"},
        {bytes_of("{\"__metadata__\":[]}", ""), "__metadata__ is not an object"},
        {bytes_of("{\"__metadata__\":{\"step\":7}}", ""), "__metadata__ \"step\" is not a string"},
        // a name with a line break and a letter cut short stays on one line of plain characters
        {bytes_of("{\"a\\nb\":1}", ""), "tensor \"a\\nb\": expected"},
        {bytes_of("{\"" + std::string(99, 'a') + "\xC3\xA9\":1}", ""), "..."},
    };
    for (const Case& c : cases) {
        const std::string error = read_error(c.content);
        INFO("expected ..." << c.part << ", got " << error);
        CHECK(error.starts_with("2: /"));
        CHECK(contains(error, "a.safetensors: "));
        CHECK(contains(error, c.part));
    }
}

TEST_CASE("a file cut anywhere is refused, and no flipped bit crashes the reader", "[safetensors]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.safetensors";
    write_example(path);
    const std::string good = read_file(path);
    for (size_t size = good.size(); size-- > 0;) {
        std::filesystem::resize_file(path, size);
        if (!contains(error_of([&] { SafetensorsReader file(path); }), "a.safetensors: ")) FAIL("accepted at " << size);
    }
    put_file(path, good);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, good.data(), 8);
    size_t refused = 0;
    for (size_t bit = 0; bit < 8 * (8 + header_bytes); bit++) {
        put_byte(path, bit / 8, char(good[bit / 8] ^ (1 << bit % 8)));
        refused += !error_of([&] {
                        const SafetensorsReader file(path);
                        for (const Tensor& t : file.tensors()) {
                            // Every byte it points to must be there.
                            const std::string data(static_cast<const char*>(t.data), t.size_bytes());
                        }
                    }).empty();
        put_byte(path, bit / 8, good[bit / 8]);
    }
    // Names, metadata and shapes such as [3, 2] -> [2, 2] aside, all are noticed; the checksums of a manifest see the
    // rest.
    CHECK(refused > 8 * header_bytes / 2);
}
