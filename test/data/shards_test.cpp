// Token shards: what is written is llm.c's format byte for byte, and what is not that format is refused by name.
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "llmc/data/shards.h"
#include "llmc/data/token_scan.h"
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;

Ids all_of(const TokenShard& shard) {
    Ids ids(size_t(shard.num_tokens()));
    shard.copy(0, shard.num_tokens(), ids.data());
    return ids;
}

void write_shard(const std::string& path, int vocab_size, const Ids& ids) {
    ShardWriter writer(path, vocab_size);
    writer.append(ids.data(), int64_t(ids.size()));
    writer.finish();
}

std::string little_endian(uint32_t value, int bytes = 4) {
    std::string text;
    for (int i = 0; i < bytes; i++) text += char(value >> (8 * i));
    return text;
}

std::string header(uint32_t magic, uint32_t version, uint32_t tokens) {
    std::string text = little_endian(magic) + little_endian(version) + little_endian(tokens);
    text.resize(1024);
    return text;
}

// Overwrites a token in place, of a shard that may be mapped.
void put_token(const std::string& path, int64_t at, uint32_t id, int bytes = 2) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kShardHeaderBytes + at * bytes);
    file << little_endian(id, bytes);
}

bool leaves_nothing(const ScratchFolder& scratch) { return std::filesystem::is_empty(scratch.path); }

// The error of opening a file with this content; checks that it names the file.
std::string refusal(const std::string& content) {
    const ScratchFolder scratch;
    const std::string path = scratch / "some_shard.bin";
    write_file_atomically(path, content);
    const std::string error = error_of([&] { TokenShard shard(path); });
    CHECK(contains(error, "2: " + path));
    return error;
}
}  // namespace

TEST_CASE("a shard of a small vocabulary is llm.c's uint16 format, byte for byte", "[shards]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.bin";
    write_shard(path, 65536, {1, 258, 65535});
    CHECK(read_file(path) == header(20240520, 1, 3) + std::string("\x01\x00\x02\x01\xff\xff", 6));
    const TokenShard shard(path);
    CHECK(shard.bytes_per_token() == 2);
    CHECK(all_of(shard) == Ids{1, 258, 65535});
}

TEST_CASE("a shard of a large vocabulary is the uint32 format, byte for byte", "[shards]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.bin";
    write_shard(path, 65537, {1, 65536});
    CHECK(read_file(path) == header(20240801, 7, 2) + std::string("\x01\x00\x00\x00\x00\x00\x01\x00", 8));
    const TokenShard shard(path);
    CHECK(shard.bytes_per_token() == 4);
    CHECK(all_of(shard) == Ids{1, 65536});
}

TEST_CASE("a shard with a mask has a bit per token after the tokens, byte for byte", "[shards]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a.bin";
    for (const int vocab_size : {300, 100000}) {
        const int bytes = vocab_size == 300 ? 2 : 4;
        ShardWriter writer(path, vocab_size, ShardMask::some_learned);
        const Ids ids = {~7, 258, ~0, ~1, 5, 6, 7, 8, ~9, 10, 0};
        writer.append(ids.data(), 3);
        writer.append(ids.data() + 3, 8);
        writer.finish();
        std::string want = bytes == 2 ? header(20240520, 2, 11) : header(20240801, 8, 11);
        for (const int32_t id : ids) want += little_endian(uint32_t(id < 0 ? ~id : id), bytes);
        want += std::string("\xf2\x06", 2);
        CHECK(read_file(path) == want);
        const TokenShard shard(path);
        CHECK((shard.has_mask() && shard.learns_any()));
        Ids got(11);
        shard.read(0, 11, got.data(), vocab_size);
        CHECK(got == ids);
        shard.read(7, 4, got.data(), vocab_size);
        CHECK(Ids(got.begin(), got.begin() + 4) == Ids(ids.begin() + 7, ids.end()));
        CHECK(all_of(shard) == Ids{7, 258, 0, 1, 5, 6, 7, 8, 9, 10, 0});
        CHECK(contains(refusal(want.substr(0, want.size() - 1)), "11 tokens and a mask, which are"));
        CHECK(contains(refusal(want + "x"), "bytes after the last one"));
    }
    const Ids none = {~1, ~2};
    ShardWriter writer(path, 10, ShardMask::some_learned);
    writer.append(none.data(), 2);
    writer.finish();
    CHECK_FALSE(TokenShard(path).learns_any());
    ShardWriter plain(scratch / "b.bin", 10);
    CHECK(contains(error_of([&] { plain.append(none.data(), 1); }), "internal"));
}

TEST_CASE("any range of a shard can be copied", "[shards]") {
    const ScratchFolder scratch;
    for (const int vocab_size : {1000, 100000}) {
        const std::string path = scratch / "a.bin";
        Ids ids(997);
        for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(i * 7 % size_t(vocab_size));
        ShardWriter writer(path, vocab_size);
        writer.append(ids.data(), 0);  // in pieces, some of them empty
        writer.append(ids.data(), 10);
        writer.append(ids.data(), 0);
        writer.append(ids.data() + 10, 987);
        CHECK(writer.num_tokens() == 997);
        writer.finish();
        const TokenShard shard(path);
        for (const auto& [begin, n] : {std::pair{0, 997}, {0, 1}, {996, 1}, {13, 101}, {997, 0}}) {
            Ids got(size_t(n) + 2, -1);
            shard.copy(begin, n, got.data() + 1);
            CHECK(got.front() == -1);
            CHECK(got.back() == -1);
            CHECK(Ids(got.begin() + 1, got.end() - 1) == Ids(ids.begin() + begin, ids.begin() + begin + n));
        }
        CHECK(contains(error_of([&] { shard.copy(996, 2, ids.data()); }), "1: internal"));
        CHECK(contains(error_of([&] { shard.copy(-1, 1, ids.data()); }), "1: internal"));
    }
}

TEST_CASE("what is not a shard is refused with the reason", "[shards]") {
    const std::string two_tokens("\x01\x00\x02\x00", 4);
    CHECK(contains(refusal(""), "is empty"));
    CHECK(contains(refusal(header(20240520, 1, 2).substr(0, 1023)), "has 1023 bytes: a token shard starts with"));
    CHECK(contains(refusal(header(20240522, 1, 2) + two_tokens), "its first number is 20240522, expected 20240520"));
    CHECK(contains(refusal(header(20240520, 7, 2) + two_tokens),
                   "has version 7 of the shard format: expected 1, or 2 with a mask"));
    CHECK(contains(refusal(header(20240801, 1, 1) + two_tokens),
                   "has version 1 of the shard format: expected 7, or 8 with a mask"));
    CHECK(contains(refusal(header(20240520, 1, 0)), "holds 0 tokens"));
    CHECK(contains(refusal(header(20240520, 1, 0x80000001u) + two_tokens), "holds -2147483647 tokens"));
    CHECK(contains(refusal(header(20240520, 1, 2) + two_tokens + "x"), "bytes after the last one"));
    CHECK(contains(refusal(header(20240801, 7, 2) + two_tokens), "it was cut short"));
    for (const size_t at : {12, 500, 1023}) {
        std::string flipped = header(20240520, 1, 2) + two_tokens;
        flipped[at] = '\x80';
        CHECK(contains(refusal(flipped), format("byte %zu of its header is 128: expected zeros", at)));
    }
}

TEST_CASE("a shard cut short is refused", "[shards]") {
    const std::string error = refusal(header(20240520, 1, 3) + std::string(5, '\1'));
    CHECK(contains(error, "has 1029 bytes, but its header promises 3 tokens, which are 1030 bytes (it was cut short)"));
    CHECK(contains(error, "data/tokenize"));
}

TEST_CASE("a missing shard is an error that says how to make one", "[shards]") {
    const ScratchFolder scratch;
    CHECK(contains(error_of([&] { TokenShard shard(scratch / "none.bin"); }), "none.bin: no such file; make token sh"));
    const std::string error = error_of([&] { open_shards(scratch / "train_*.bin"); });
    CHECK(contains(error, "2: no file matches '" + scratch / "train_*.bin"));
    CHECK(contains(error, "data/tokenize"));
    CHECK(contains(error_of([&] { TokenShard shard(scratch.path); }), "not a regular file"));
}

TEST_CASE("a shard that is not finished leaves nothing behind", "[shards]") {
    const ScratchFolder scratch;
    const Ids ids{1, 2, 3};
    {
        ShardWriter writer(scratch / "a.bin", 10);
        writer.append(ids.data(), 3);
        // What a process killed here would leave: not under the final name, and refused even if renamed by hand.
        CHECK_FALSE(std::filesystem::exists(scratch / "a.bin"));
        CHECK(contains(error_of([&] { TokenShard shard(scratch / "a.bin.tmp"); }), "is not a token shard"));
    }
    CHECK(leaves_nothing(scratch));
    {
        ShardWriter writer(scratch / "a.bin", 10);
        CHECK(contains(error_of([&] { writer.finish(); }), "1: internal"));  // no tokens
    }
    CHECK(leaves_nothing(scratch));
    {
        ShardWriter writer(scratch / "a.bin", 3);
        CHECK(contains(error_of([&] { writer.append(ids.data(), 3); }), "1: internal"));  // 3 is no id of V = 3
    }
    CHECK(leaves_nothing(scratch));
    CHECK(contains(error_of([&] { ShardWriter writer(scratch / "no" + "/a.bin", 3); }),
                   "2: cannot write " + scratch / "no"));
}

TEST_CASE("an old shard survives until the new one is whole", "[shards]") {
    const ScratchFolder scratch;
    write_shard(scratch / "a.bin", 10, {1, 2, 3});
    {
        ShardWriter writer(scratch / "a.bin", 10);
        const Ids ids{7};
        writer.append(ids.data(), 1);
        CHECK(all_of(TokenShard(scratch / "a.bin")) == Ids{1, 2, 3});
        writer.finish();
    }
    CHECK(all_of(TokenShard(scratch / "a.bin")) == Ids{7});
}

TEST_CASE("the shards of a pattern come sorted; an interrupted data/tokenize is noticed", "[shards]") {
    const ScratchFolder scratch;
    for (const int i : {2, 0, 1}) write_shard(scratch / "train_00000" + std::to_string(i) + ".bin", 10, {i});
    const std::vector<TokenShard> shards = open_shards(scratch / "train_*.bin");
    REQUIRE(shards.size() == 3);
    for (int i = 0; i < 3; i++) CHECK(all_of(shards[size_t(i)]) == Ids{i});
    CHECK(open_shards(scratch / "train_000001.bin").size() == 1);

    make_folders(scratch / "unfinished");
    CHECK(contains(error_of([&] { open_shards(scratch / "train_*.bin"); }), "data/tokenize was interrupted there"));
}

TEST_CASE("a token is found wherever it stands, in either format", "[shards]") {
    const ScratchFolder scratch;
    Ids ids(1000);
    Rng rng(2, Stream::tests);
    for (int32_t& id : ids) id = int32_t(rng.below(40)) + 65000;
    ids[999] = 65100, ids[998] = 65101;
    for (const int vocab_size : {65536, 65537}) {
        const std::string path = scratch / "a.bin";
        write_shard(path, vocab_size, ids);
        const TokenShard shard(path);
        size_t wrong = 0;
        for (const int32_t id : {65000, 65017, 65039, 65100, 65101, 65102, 65536 + 65000})
            for (int64_t from = 0; from <= 1000; from++)
                wrong += shard.find(id, from) != std::find(ids.begin() + from, ids.end(), id) - ids.begin();
        CHECK(wrong == 0);
        CHECK(contains(error_of([&] { shard.find(65000, 1001); }), "internal"));
    }
}

TEST_CASE("the first token outside the vocabulary is found wherever it stands, in either format", "[shards]") {
    const ScratchFolder scratch;
    for (const int bytes : {2, 4}) {
        const std::string path = scratch / std::to_string(bytes);
        write_shard(path, bytes == 2 ? 65536 : 65537, Ids(400, 999));
        const TokenShard shard(path);
        Ids ids(400);
        size_t wrong = 0;
        for (int64_t at = 0; at < 400; at += 7) {
            put_token(path, at, 1000, bytes);
            shard.check(0, at, 1000);
            shard.check(at + 1, 399 - at, 1000);
            const std::string want = "2: " + path + ": token " + std::to_string(at) + " has the id 1000, outside the " +
                                     "vocabulary of 1000; prepare the data again";
            wrong += !contains(error_of([&] { shard.check(at / 2, 400 - at / 2, 1000); }), want);
            wrong += !contains(error_of([&] { shard.read(at / 2, 400 - at / 2, ids.data(), 1000); }), want);
            put_token(path, at, 999, bytes);
        }
        CHECK(wrong == 0);
        // What no token of two bytes can be outside of; and the highest that there is.
        put_token(path, 17, bytes == 2 ? 65535 : 4294967295u, bytes);
        if (bytes == 2) shard.check(0, 400, 65536);
        const std::string highest = bytes == 2 ? "65535, outside the vocabulary of 65535" : "4294967295, outside";
        CHECK(contains(error_of([&] { shard.check(0, 400, 65535); }), "token 17 has the id " + highest));
        CHECK(contains(error_of([&] { shard.check(1, 400, 1000); }), "internal"));
    }
}

TEST_CASE("a scan looks at every token once, whatever the number of parts", "[shards]") {
    const ScratchFolder scratch;
    const std::vector<int64_t> sizes = {5, 1, 9, 4};
    std::vector<std::string> paths;
    for (const int64_t size : sizes) {
        paths.push_back(scratch / "train_" + std::to_string(paths.size()) + ".bin");
        write_shard(paths.back(), 10, Ids(size_t(size), 9));
    }
    std::filesystem::rename(paths[3], scratch / "val_0.bin");
    paths[3] = scratch / "val_0.bin";
    const std::vector<TokenShard> train = open_shards(scratch / "train_*.bin"), val = open_shards(paths[3]);
    const auto finders = [&](int parts) {
        std::vector<std::string> errors;
        for (int part = 0; part < parts; part++) {
            const TokenScan scan({&train, &val}, 10, part, parts);
            scan.wait();
            if (scan.has_found()) errors.push_back(error_of([&] { scan.rethrow(); }));
        }
        return errors;
    };
    for (const int parts : {1, 2, 3, 25}) {
        CHECK(finders(parts).empty());
        for (size_t s = 0; s < sizes.size(); s++)
            for (int64_t at = 0; at < sizes[s]; at++) {
                put_token(paths[s], at, 10);
                const std::vector<std::string> errors = finders(parts);
                REQUIRE(errors.size() == 1);
                CHECK(contains(errors[0], paths[s] + ": token " + std::to_string(at) + " has the id 10, outside"));
                put_token(paths[s], at, 9);
            }
    }
    // A file that is cut is found as well, up to the end of its page without a signal.
    REQUIRE(truncate(paths[2].c_str(), 1030) == 0);
    CHECK(contains(finders(1).at(0), paths[2] + " was cut short"));
}

TEST_CASE("a scan that is no longer wanted stops before its end", "[shards]") {
    // 4 GB that take no space, a second's work; the only token outside the vocabulary is the last one.
    const ScratchFolder scratch;
    const std::string path = scratch / "a.bin";
    write_file_atomically(path, header(20240520, 1, INT32_MAX));
    REQUIRE(truncate(path.c_str(), kShardHeaderBytes + int64_t(INT32_MAX) * 2) == 0);
    put_token(path, INT32_MAX - 1, 10);
    const std::vector<TokenShard> shards = open_shards(path);
    TokenScan scan({&shards}, 10, 0, 1);
    scan.stop();
    CHECK_FALSE(scan.has_found());
    CHECK(contains(error_of([&] { shards[0].check(INT32_MAX - 5, 5, 10); }), "token 2147483646 has the id 10"));
}
