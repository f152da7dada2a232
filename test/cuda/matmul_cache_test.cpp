// The file of tuned algorithms: reading returns what was written, and damaged or foreign files are not used.
#include "llmc/cuda/matmul_cache.h"
#include <filesystem>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "test/testing.h"

static const std::string kMachine = "NVIDIA H200, driver 13000, cuBLASLt 131000", kCall = "BF16 (2, 3) x BF16 (3, 4)";

static MatmulAlgorithm algorithm(uint64_t seed) {
    MatmulAlgorithm result{{}, 12.5 * double(seed)};
    for (size_t i = 0; i < result.words.size(); i++) result.words[i] = mix64(seed * 100 + i);
    return result;
}

// nullptr is no algorithm
static bool finds(const MatmulCache& cache, const std::string& call, const MatmulAlgorithm& want) {
    const MatmulAlgorithm* found = cache.find(call);
    return found && *found == want;
}

TEST_CASE("matmul_cache: a line is read back as it was written", "[matmul_cache]") {
    MatmulAlgorithm written = algorithm(7);
    written.words[0] = 0, written.words[1] = ~uint64_t(0);
    const std::string line = matmul_cache_line(kMachine, kCall, written);
    INFO(line);
    std::string machine, call;
    MatmulAlgorithm read;
    REQUIRE(parse_matmul_cache_line(line, machine, call, read));
    CHECK(machine == kMachine);
    CHECK(call == kCall);
    CHECK(read == written);
    for (const char* bad : {"", "a | b", "a\nb"}) {
        CHECK(contains(error_of([&] { matmul_cache_line(bad, kCall, written); }), "1: internal"));
        CHECK(contains(error_of([&] { matmul_cache_line(kMachine, bad, written); }), "1: internal"));
    }
}

TEST_CASE("matmul_cache: a line with any byte changed, lost or added is damaged", "[matmul_cache]") {
    const std::string line = matmul_cache_line(kMachine, kCall, algorithm(1));
    std::string machine, call;
    MatmulAlgorithm read;
    size_t accepted = 0;
    for (size_t i = 0; i < line.size(); i++) {
        std::string changed = line, shorter = line, longer = line;
        changed[i] ^= 1;
        shorter.erase(i, 1);
        longer.insert(i, 1, 'x');
        for (const std::string& bad : {changed, shorter, longer, line.substr(0, i)})
            accepted += parse_matmul_cache_line(bad, machine, call, read);
    }
    CHECK(accepted == 0);
    for (const std::string& bad : {line + " ", line + "\r", line + " | ", line + line}) {
        INFO(bad);
        CHECK(!parse_matmul_cache_line(bad, machine, call, read));
    }
}

TEST_CASE("matmul_cache: without a file it only remembers", "[matmul_cache]") {
    MatmulCache cache;
    CHECK(!cache.find(kCall));
    cache.add(kCall, algorithm(1));
    CHECK(finds(cache, kCall, algorithm(1)));
}

TEST_CASE("matmul_cache: a later run finds what an earlier one added", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    {
        MatmulCache cache(path, kMachine);
        CHECK(cache.warnings().empty());
        CHECK(!cache.find(kCall));
        cache.add(kCall, algorithm(1));
        cache.add("another", algorithm(2));
        cache.add(kCall, algorithm(3));
        CHECK(finds(cache, kCall, algorithm(3)));
        CHECK(cache.size() == 2);
        CHECK(cache.num_added() == 3);
        CHECK(!std::filesystem::exists(path));
        cache.save();
    }
    const MatmulCache cache(path, kMachine);
    CHECK(cache.warnings().empty());
    CHECK(finds(cache, kCall, algorithm(3)));
    CHECK(finds(cache, "another", algorithm(2)));
    CHECK(!cache.find("a third"));
    // Nothing else is left in the folder.
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("matmul_cache: other machines' lines are kept and not used, damaged ones are neither", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    const std::string foreign = matmul_cache_line("NVIDIA A100, driver 13000, cuBLASLt 131000", kCall, algorithm(1));
    const std::string ours = matmul_cache_line(kMachine, "ours", algorithm(2));
    std::string damaged = matmul_cache_line(kMachine, kCall, algorithm(3));
    damaged[60] ^= 1;
    write_file_atomically(path, "# a comment\n\n" + foreign + "\n" + damaged + "\n" + ours);  // no newline at the end
    MatmulCache cache(path, kMachine);
    REQUIRE(cache.warnings().size() == 2);
    CHECK(cache.warnings()[0] == path + ":4: damaged, ignored");
    CHECK(cache.warnings()[1] == path + ": 1 line of another GPU, driver or version of cuBLASLt, not used");
    CHECK(!cache.find(kCall));
    CHECK(finds(cache, "ours", algorithm(2)));

    CHECK(cache.size() == 1);
    cache.save();  // of nothing new
    CHECK(contains(read_file(path), damaged));
    cache.add(kCall, algorithm(4));
    cache.save();
    CHECK(cache.warnings().size() == 2);
    const std::string text = read_file(path);
    CHECK(contains(text, foreign + "\n"));
    CHECK(contains(text, ours + "\n"));
    CHECK(!contains(text, damaged));
    const MatmulCache again(path, kMachine);
    CHECK(again.warnings().size() == 1);
    CHECK(finds(again, kCall, algorithm(4)));
}

TEST_CASE("matmul_cache: of two lines for one product the later counts", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    std::string text;
    for (const uint64_t seed : {1, 3, 2}) text += matmul_cache_line(kMachine, kCall, algorithm(seed)) + "\n";
    write_file_atomically(path, text);
    CHECK(finds(MatmulCache(path, kMachine), kCall, algorithm(2)));
}

TEST_CASE("matmul_cache: two programs that share a file keep each other's lines", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    MatmulCache one(path, kMachine), two(path, kMachine);
    one.add("first", algorithm(1));
    one.add("both", algorithm(5));
    one.save();
    two.add("second", algorithm(2));
    two.add("both", algorithm(6));
    one.add("third", algorithm(3));
    two.save();
    one.save();
    const MatmulCache cache(path, kMachine);
    CHECK(finds(cache, "first", algorithm(1)));
    CHECK(finds(cache, "second", algorithm(2)));
    CHECK(finds(cache, "third", algorithm(3)));
    CHECK(finds(cache, "both", algorithm(5)));  // whoever read it may resume
    CHECK(finds(one, "second", algorithm(2)));
}

TEST_CASE("matmul_cache: only what could not be used is replaced", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    MatmulCache early(path, kMachine);
    MatmulCache one(path, kMachine);
    one.add("used", algorithm(1));
    one.add("refused", algorithm(2));
    one.save();
    MatmulCache two(path, kMachine);
    two.add("refused", algorithm(3));  // found, refused by the library, timed again
    two.add("refused", algorithm(4));
    for (const uint64_t seed : {8, 5}) early.add("used", algorithm(seed));  // not known when it began
    two.save();
    early.save();
    const MatmulCache cache(path, kMachine);
    CHECK(finds(cache, "used", algorithm(1)));
    CHECK(finds(cache, "refused", algorithm(4)));
    // Once saved it is the file's.
    two.add("new", algorithm(6));
    two.save();
    early.add("new", algorithm(7));
    early.save();
    CHECK(finds(MatmulCache(path, kMachine), "new", algorithm(6)));
}

TEST_CASE("matmul_cache: where --tune-matmul keeps it", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string user = folder / "cache/anvil";
    for (const char* none : {"", "off"}) {
        CHECK(matmul_cache_path(none, user).path.empty());
        CHECK(matmul_cache_path(none, user).why_not.empty());
    }
    CHECK(matmul_cache_path("tune.txt", user).path == "tune.txt");
    CHECK_FALSE(std::filesystem::exists(user));
    const MatmulCachePath kept = matmul_cache_path("auto", user);
    CHECK(kept.path == user + "/matmul.txt");
    CHECK(kept.why_not.empty());
    MatmulCache cache(kept.path, kMachine);
    cache.add(kCall, algorithm(1));
    cache.save();
    CHECK(finds(MatmulCache(matmul_cache_path("auto", user).path, kMachine), kCall, algorithm(1)));
    // No such place, and a file where the folder should be: no error.
    CHECK(matmul_cache_path("auto", "").path.empty());
    CHECK(matmul_cache_path("auto", "").why_not == "neither XDG_CACHE_HOME nor HOME is set");
    const MatmulCachePath blocked = matmul_cache_path("auto", kept.path);
    CHECK(blocked.path.empty());
    CHECK(contains(blocked.why_not, "cannot write " + kept.path));
}

TEST_CASE("matmul_cache: a file that cannot be written or read is an error that names it", "[matmul_cache]") {
    const ScratchFolder folder;
    const std::string missing = folder / "missing/matmul.txt";
    CHECK(contains(error_of([&] { MatmulCache(missing, kMachine); }), "2: cannot write " + missing));
    const std::string path = folder / "there/matmul.txt";
    std::filesystem::create_directory(folder / "there");
    MatmulCache cache(path, kMachine);
    cache.add(kCall, algorithm(1));
    std::filesystem::remove(folder / "there");
    CHECK(contains(error_of([&] { cache.save(); }), "2: cannot write " + path));
    CHECK(contains(error_of([&] { MatmulCache(folder.path, kMachine); }), "2: cannot read " + folder.path));
}
