// Checkpoints are complete or do not exist, whatever happens to the program, the disk or the files.
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include "llmc/base/file.h"
#include "llmc/base/hash.h"             // xxh3, hex64
#include "llmc/base/json.h"             // Json
#include "llmc/checkpoint/run_state.h"  // model_config, checkpoint_shape
#include "llmc/cpu/kernels.h"           // Cpu, for run_state.h
#include "llmc/io/checkpoint.h"
#include "test/testing.h"

namespace fs = std::filesystem;

namespace {
// A checkpoint whose content follows from its step, so that a mixture of two is noticed.
struct Example {
    Floats wte, moments;
    explicit Example(int64_t step, size_t n = 300) : wte(n, float(step)), moments(2 * n, float(-step)) {}
    std::vector<Tensor> weights() { return {{"wte", DType::f32, {int64_t(wte.size()) / 3, 3}, wte.data()}}; }
};

std::string save(const std::string& out, int64_t step, size_t n = 300) {
    Example example(step, n);
    CheckpointWriter checkpoint(out, step);
    checkpoint.add_tensors("model.safetensors", example.weights(), {{"format", "pt"}});
    checkpoint.add_text("config.json", "{}\n");
    checkpoint.add_text("state.json", "{\"step\": " + std::to_string(step) + "}\n");
    const std::vector<Tensor> state = {{"wte.m", DType::f32, {int64_t(n)}}, {"wte.v", DType::f32, {int64_t(n)}}};
    checkpoint.add_tensors("optimizer_00000_of_00001.safetensors", state, {}, [&](const Tensor& tensor) {
        return example.moments.data() + (tensor.name == "wte.v" ? n : 0);
    });
    return checkpoint.commit();
}

const std::vector<std::string> kFiles = {"model.safetensors", "config.json", "state.json", "manifest.json",
                                         "optimizer_00000_of_00001.safetensors"};

bool is_content_of(const std::string& path, int64_t step, size_t n = 300) {
    Example want(step, n), got(0, n);
    const SafetensorsReader model(path + "/model.safetensors"),
        optimizer(path + "/optimizer_00000_of_00001.safetensors");
    model.copy(got.wte.data(), "wte", DType::f32, {int64_t(n) / 3, 3});
    optimizer.copy(got.moments.data(), "wte.m", DType::f32, {int64_t(n)});
    optimizer.copy(got.moments.data() + n, "wte.v", DType::f32, {int64_t(n)});
    return got.wte == want.wte && got.moments == want.moments &&
           read_file(path + "/state.json") == "{\"step\": " + std::to_string(step) + "}\n";
}

void put_file(const std::string& path, const std::string& content) {
    FileWriter(path).write(content.data(), content.size());
}

// In place: a file written anew for each flipped bit costs a second of disk time per thousand.
void put_byte(const std::string& path, size_t at, char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(at));
    file.put(byte);
}

// Why the newest of two checkpoints is passed over after `damage` was done to its folder; the older must be taken.
template <class F>
std::string passed_over(const std::string& out, F damage) {
    fs::remove_all(out);
    save(out, 10);
    const std::string newest = save(out, 20);
    damage(newest);
    const FoundCheckpoint found = find_checkpoint(out);
    CHECK(found.path == checkpoint_path(out, 10));
    CHECK(found.step == 10);
    if (found.passed_over.size() != 1 || found.passed_over[0].path != newest) return "";
    // Named alone, it is an error that says the same.
    CHECK(error_of([&] { find_checkpoint(newest); }) ==
          "2: " + newest + ": " + found.passed_over[0].why + "; use another checkpoint");
    return found.passed_over[0].why;
}

std::vector<std::string> entries(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}
}  // namespace

TEST_CASE("a checkpoint is found again with all it holds", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "deep/run";
    CHECK(find_checkpoint(out).path == "");
    const std::string path = save(out, 1000);
    CHECK(path == out + "/step_00001000");
    CHECK(entries(out) == std::vector<std::string>{"step_00001000"});
    std::vector<std::string> files = kFiles;
    std::sort(files.begin(), files.end());
    CHECK(entries(path) == files);
    CHECK(is_content_of(path, 1000));

    save(out, 123456789012);
    save(out, 0);
    put_file(out + "/step_00009999", "a file, not a folder");
    make_folders(out + "/step_x");
    const FoundCheckpoint found = find_checkpoint(out + "/");
    CHECK(found.path == out + "/step_123456789012");
    CHECK(found.step == 123456789012);
    CHECK(found.passed_over.empty());
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{0, 1000, 123456789012});

    CHECK(find_checkpoint(path).step == 1000);
    CHECK(find_checkpoint(path + "/").path == path);
    fs::copy(path, scratch / "mine", fs::copy_options::recursive);
    CHECK(find_checkpoint(scratch / "mine").step == 1000);
    CHECK(contains(error_of([&] { find_checkpoint(out + "/step_00000077"); }), "no such checkpoint folder"));
    fs::copy(path, out + "/step_00000500", fs::copy_options::recursive);
    CHECK(contains(error_of([&] { find_checkpoint(out + "/step_00000500"); }), "its manifest is of step 1000"));
}

TEST_CASE("each damage is noticed and named", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run";
    for (const std::string& name : kFiles) {
        CHECK(passed_over(out, [&](const std::string& path) { fs::remove(path + "/" + name); }) ==
              name + " is missing");
        const std::string content = read_file(checkpoint_path(out, 10) + "/" + name);
        for (const size_t size : {size_t(0), size_t(1), content.size() / 2, content.size() - 1}) {
            const std::string why =
                passed_over(out, [&](const std::string& path) { fs::resize_file(path + "/" + name, size); });
            INFO(name << " cut to " << size << ": " << why);
            CHECK(contains(why, name));
            CHECK(contains(why, "cut short"));
        }
    }
    CHECK(passed_over(out, [&](const std::string& path) { put_file(path + "/state.json", std::string(500, ' ')); }) ==
          "state.json has 500 bytes, expected 13");
    CHECK(passed_over(out, [&](const std::string& path) { fs::remove_all(path), fs::create_directory(path); }) ==
          "manifest.json is missing");
    CHECK(passed_over(out, [&](const std::string& path) {
              fs::remove_all(path), fs::copy(checkpoint_path(out, 10), path);
          }) == "its manifest is of step 10");
}

TEST_CASE("each flipped bit is noticed, and the tensor named", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string path = save(scratch / "run", 7, 30);
    REQUIRE(verify(path).why == "");
    const std::string model = read_file(path + "/model.safetensors");
    const size_t weights_begin = model.size() - 30 * sizeof(float);
    for (const std::string& name : kFiles) {
        const std::string good = read_file(path + "/" + name);
        for (size_t bit = 0; bit < 8 * good.size(); bit++) {
            const char bad = char(good[bit / 8] ^ (1 << bit % 8));
            put_byte(path + "/" + name, bit / 8, bad);
            const std::string why = verify(path).why;
            const std::string part = name == "manifest.json"       ? ""
                                     : name != "model.safetensors" ? name
                                     : bit / 8 >= weights_begin    ? "model.safetensors: tensor wte is damaged"
                                                                   : "model.safetensors: its header is damaged";
            if (why.empty() || !contains(why, part)) FAIL(name << ", bit " << bit << ": " << why);
            put_byte(path + "/" + name, bit / 8, good[bit / 8]);
        }
    }
    CHECK(verify(path).why == "");
}

TEST_CASE("shares of a verification are every byte once, and say what all of it says", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string path = save(scratch / "run", 7, 30);
    // As checkpoints were once, of headers nothing, or with no record of a last tensor: the file is then one part.
    const auto without = [&](const std::string& name, const std::string& record) {
        const std::string folder = save(scratch / name, 7, 30);
        Json manifest = parse_json(read_file(folder + "/manifest.json"));
        manifest.erase("manifest_xxh3");
        Json& tensors = manifest["files"]["optimizer_00000_of_00001.safetensors"]["tensors"];
        REQUIRE(tensors.erase(record) == 1);
        const std::string body = json_text(manifest);
        manifest["manifest_xxh3"] = hex64(xxh3(body.data(), body.size()));
        put_file(folder + "/manifest.json", json_text(manifest, 1) + "\n");
        return folder;
    };
    const std::string old = without("old", kHeaderRecord), short_of_one = without("short", "wte.v");

    uint64_t total = 0;
    constexpr uint64_t kLargest = 400;  // more than a header or a tensor has
    for (const std::string& name : kFiles)
        if (name != "manifest.json") total += fs::file_size(path + "/" + name);
    for (const std::string& folder : {path, old, short_of_one}) {
        INFO(folder);
        for (const int shares : {1, 2, 3, 5, 40}) {
            const Verification check(folder);
            REQUIRE(check.found().why == "");
            uint64_t sum = 0;
            for (int share = 0; share < shares; share++) {
                const uint64_t before = thread_read_bytes;
                CHECK(check.why_damaged(share, shares) == "");
                const uint64_t read = thread_read_bytes - before;
                sum += read;
                if (folder == path) CHECK(read <= total / uint64_t(shares) + kLargest);
            }
            CHECK(sum == total);
        }
        for (const std::string& name : kFiles) {
            if (name == "manifest.json") continue;
            const std::string good = read_file(folder + "/" + name);
            for (size_t at = 0; at < good.size(); at += 5) {
                put_byte(folder + "/" + name, at, char(good[at] ^ 1));
                const Verification check(folder);
                REQUIRE(check.found().why == "");
                int wrong = 0;
                for (int share = 0; share < 3; share++) {
                    const std::string why = check.why_damaged(share, 3);
                    wrong += why != "";
                    if (why != "" && why != verify(folder).why) FAIL(name << ", byte " << at << ": " << why);
                }
                if (wrong != 1) FAIL(name << ", byte " << at << ": " << wrong << " shares");
                put_byte(folder + "/" + name, at, good[at]);
            }
        }
    }
}

TEST_CASE("what cannot be reached is not called missing", "[checkpoint]") {
    const ScratchFolder scratch;
    make_folders(scratch / "a");
    CHECK(verify(scratch / "a").why == "manifest.json is missing");
    CHECK(verify(scratch / "none").why == "manifest.json is missing");
    fs::create_symlink("loop", scratch / "loop");  // permissions are nothing to root: another error of the system
    CHECK(verify(scratch / "loop").why == "manifest.json cannot be read: Too many levels of symbolic links");
}

TEST_CASE("a newer format is told apart from damage", "[checkpoint]") {
    const ScratchFolder scratch;
    const auto with_version = [&](const std::string& version) {
        return passed_over(scratch / "run", [&](const std::string& path) {
            std::string text = read_file(path + "/manifest.json");
            const std::string before = "\"format_version\": 2";
            REQUIRE(contains(text, before));
            put_file(path + "/manifest.json",
                     text.replace(text.find(before), before.size(), "\"format_version\": " + version));
        });
    };
    CHECK(with_version("3") == "it has format version 3, this program reads version 2; use a newer program");
    CHECK(with_version("1") == "it has format version 1, this program reads version 2");
    CHECK(contains(with_version("\"2\""), "damaged"));
}

TEST_CASE("why each newer checkpoint was passed over, newest first", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run";
    for (const int step : {10, 20, 30, 40}) save(out, step);
    fs::remove(checkpoint_path(out, 40) + "/config.json");
    fs::resize_file(checkpoint_path(out, 30) + "/model.safetensors", 5);
    const FoundCheckpoint found = find_checkpoint(out);
    CHECK(found.step == 20);
    REQUIRE(found.passed_over.size() == 2);
    CHECK(found.passed_over[0].path == checkpoint_path(out, 40));
    CHECK(found.passed_over[1].path == checkpoint_path(out, 30));
    fs::remove_all(checkpoint_path(out, 20));
    fs::remove_all(checkpoint_path(out, 10));
    CHECK(find_checkpoint(out).path == "");
    CHECK(find_checkpoint(out).passed_over.size() == 2);
}

TEST_CASE("leftovers of a killed save are cleaned up", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run";
    const auto at = [&](int step, const std::string& suffix) { return checkpoint_path(out, step) + suffix; };
    // Killed while writing step 30: nothing visible, removed after the next save.
    save(out, 10);
    fs::rename(save(out, 30), at(30, ".tmp"));
    CHECK(find_checkpoint(out).step == 10);
    save(out, 20);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020", "step_00000030.tmp"});
    remove_leftovers(out);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020"});

    // Killed while step 20 was being replaced: first with both names there, then between the two renames.
    fs::copy(at(20, ""), at(20, ".old"), fs::copy_options::recursive);
    CHECK(find_checkpoint(out).path == at(20, ""));
    remove_leftovers(out);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020"});
    fs::rename(at(20, ""), at(20, ".old"));
    CHECK(find_checkpoint(out).path == at(20, ".old"));
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{10, 20});
    remove_leftovers(out);
    CHECK(find_checkpoint(out).path == at(20, ""));
    CHECK(is_content_of(at(20, ""), 20));

    // Saving a step again replaces it, also when the one that is there is damaged.
    fs::remove(at(20, "") + "/config.json");
    save(out, 20);
    CHECK(find_checkpoint(out).step == 20);
    remove_leftovers(out);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020"});
}

TEST_CASE("what is in the way of a save is left alone until the new checkpoint is there", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run", taken = checkpoint_path(out, 20) + ".tmp";
    save(out, 10);
    save(out, 20);
    fs::copy(checkpoint_path(out, 10), taken);
    fs::copy(checkpoint_path(out, 10), checkpoint_path(out, 20) + ".old");
    {
        CheckpointWriter checkpoint(out, 20);
        CHECK(checkpoint.name() == "step_00000020.tmp.2");
        CheckpointWriter(out, checkpoint.name()).add_text("of_another_rank", "x");
        CHECK(fs::exists(out + "/step_00000020.tmp.2/of_another_rank"));
        CHECK(find_checkpoint(out).step == 20);
    }
    CHECK_FALSE(fs::exists(out + "/step_00000020.tmp.2"));
    save(out, 20);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020", "step_00000020.old",
                                                   "step_00000020.old.2", "step_00000020.tmp"});
    CHECK(verify(taken).why == "");  // nobody has written there
    CHECK(find_checkpoint(out).path == checkpoint_path(out, 20));
    remove_leftovers(out);
    CHECK(entries(out) == std::vector<std::string>{"step_00000010", "step_00000020"});
    for (const std::string name : {"step_00000020", "step_00000020.old", "step_00000020.tmp.x", "step_20.tmp", ".."})
        CHECK(contains(error_of([&] { CheckpointWriter(out, name); }), name + " is no name of a checkpoint"));
}

TEST_CASE("of a link that has the name of a checkpoint, only the link is removed", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run", other = scratch / "other";
    for (const int step : {10, 20, 30}) save(out, step);
    make_folders(other);
    put_file(other + "/mine", "mine");
    fs::create_directory_symlink(other, out + "/step_00000020.tmp");
    fs::create_directory_symlink(other, out + "/step_00000005");
    remove_leftovers(out);
    prune(out, 1, 30);
    CHECK(entries(out) == std::vector<std::string>{"step_00000030"});
    CHECK(read_file(other + "/mine") == "mine");
}

TEST_CASE("prune keeps the newest, and the newest that verifies", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run";
    for (const int step : {10, 20, 30, 40}) save(out, step);
    prune(out, 4);
    CHECK(checkpoint_steps(out).size() == 4);
    prune(out, 3);
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{20, 30, 40});
    fs::remove(checkpoint_path(out, 40) + "/state.json");
    fs::remove(checkpoint_path(out, 30) + "/state.json");
    prune(out, 1);
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{20, 40});
    CHECK(find_checkpoint(out).step == 20);
    save(out, 50);
    prune(out, 1);
    CHECK(entries(out) == std::vector<std::string>{"step_00000050"});
}

TEST_CASE("what another program writes into a checkpoint is noticed before it is one", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run", path = checkpoint_path(out, 20) + ".tmp/model.safetensors";
    save(out, 10);
    const Floats values(300);
    const std::vector<Tensor> tensors = {{"a", DType::f32, {300}}, {"b", DType::f32, {300}}};
    const auto save_beside = [&](auto&& other_writer) {
        return error_of([&] {
            CheckpointWriter checkpoint(out, 20);
            checkpoint.add_tensors("model.safetensors", tensors, {}, [&](const Tensor& tensor) {
                if (tensor.name == "b") other_writer();
                return values.data();
            });
            checkpoint.commit();
            prune(out, 1, 20);
        });
    };
    CHECK(contains(save_beside([&] { put_byte(path, 100, 'x'); }), "2: " + path + " holds something else than was"));
    CHECK(contains(save_beside([&] { put_byte(path, 5000, 'x'); }), "(5001 bytes, expected "));
    CHECK(entries(out) == std::vector<std::string>{"step_00000010"});
    CHECK(find_checkpoint(out).step == 10);
    CHECK(save_beside([] {}) == "");
    CHECK(entries(out) == std::vector<std::string>{"step_00000020"});
}

TEST_CASE("SIGKILL at any moment leaves the newest checkpoint whole", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run";
    constexpr size_t n = 30000;
    // What the child has been told is safely on the disk, in memory that outlives it, and how many saves that were.
    auto* const committed = static_cast<volatile int64_t*>(
        mmap(nullptr, 2 * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(committed != MAP_FAILED);
    volatile int64_t* const num_saves = committed + 1;
    *committed = -1;
    // The moments are spread over three saves, however fast the disk is.
    const auto start_time = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; i++) save(scratch / "timing", i, n);
    const std::chrono::duration<double, std::micro> three_saves_us = std::chrono::steady_clock::now() - start_time;
    Rng rng(1, Stream::tests);
    int interrupted = 0;
    for (int kill_count = 0; kill_count < 50; kill_count++) {
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            const int64_t start = find_checkpoint(out).step;
            for (int64_t step = std::max<int64_t>(start, 0);; step++) {  // the first replaces what is there
                save(out, step, n);
                *committed = step;
                *num_saves = *num_saves + 1;
                remove_leftovers(out);
                prune(out, 2);
            }
        }
        // Counted from the child's start, first save or second, which on a busy machine may come late.
        int status = 0;
        for (const int64_t until = *num_saves + kill_count % 3; *num_saves < until; usleep(100))
            REQUIRE(waitpid(child, &status, WNOHANG) == 0);  // it did not end
        usleep(useconds_t(rng.uniform() * std::min(three_saves_us.count(), 9e5)));
        REQUIRE(kill(child, SIGKILL) == 0);
        REQUIRE(waitpid(child, &status, 0) == child);
        REQUIRE(WIFSIGNALED(status));  // it did not end by an error of its own
        const std::vector<std::string> names = fs::exists(out) ? entries(out) : std::vector<std::string>{};
        interrupted += std::any_of(names.begin(), names.end(), [](const std::string& s) { return contains(s, "."); });
        const FoundCheckpoint found = find_checkpoint(out);
        INFO("kill " << kill_count << ": " << (found.passed_over.empty() ? "" : found.passed_over[0].why));
        CHECK(found.passed_over.empty());
        CHECK(found.step >= *committed);
        if (found.step >= 0) CHECK(is_content_of(found.path, found.step, n));
        // Nor is an older one left half removed by prune().
        for (const std::string& name : names)
            if (!contains(name, ".")) CHECK(verify(out + "/" + name).why == "");
    }
    CHECK(interrupted > 0);  // some hit a save in the middle
    CHECK(*committed > 0);   // and some came later
    munmap(const_cast<int64_t*>(committed), 2 * sizeof(int64_t));
}

TEST_CASE("a full disk leaves nothing behind but the older checkpoint", "[checkpoint]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "run", says = scratch / "says";
    save(out, 10);
    const auto check = [&](const std::string& error, const std::string& reason) {
        CHECK(contains(error, "2: cannot write " + out + "/step_00000020.tmp/model.safetensors: " + reason));
        CHECK(entries(out) == std::vector<std::string>{"step_00000010"});
        CHECK(find_checkpoint(out).step == 10);
    };

    // Files of at most 64 KiB, in a child because such a limit cannot be lifted again.
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {1 << 16, 1 << 16};
        setrlimit(RLIMIT_FSIZE, &limit);
        put_file(says, error_of([&] { save(out, 20, 30000); }));
        _exit(0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    check(read_file(says), "File too large");

    // A small disk of its own, where the tests may mount one.
    if (mount("tmpfs", out.c_str(), "tmpfs", 0, "size=64k") != 0) return;
    save(out, 10);
    check(error_of([&] { save(out, 20, 30000); }), "No space left on device");
    umount2(out.c_str(), MNT_DETACH);
}

TEST_CASE("an output folder that cannot be written to is named", "[checkpoint]") {
    const ScratchFolder scratch;
    put_file(scratch / "file", "");
    CHECK(error_of([&] { save(scratch / "file/run", 1); }) ==
          "2: cannot create the folder " + scratch / "file/run" + ": Not a directory");
    CHECK(find_checkpoint(scratch / "file/run").path == "");
    // A name that is taken by something else is an error, and that stays as it is.
    make_folders(scratch / "run");
    put_file(scratch / "run/step_00000001", "mine");
    CHECK(contains(error_of([&] { save(scratch / "run", 1); }), "run/step_00000001 is in the way"));
    CHECK(read_file(scratch / "run/step_00000001") == "mine");
    CHECK(entries(scratch / "run") == std::vector<std::string>{"step_00000001"});
}

TEST_CASE("config.json gives back the shape of every model, and every part of its architecture", "[checkpoint]") {
    std::vector<GptShape> shapes;
    for (const GptPreset& preset : kGptPresets) {
        shapes.push_back(preset.shape);
        shapes.back().architecture = find_architecture(preset.architecture);
    }
    for (const std::string& name : architecture_names()) {
        GptShape shape{5, 6, 96, 33, 301, 3, 120};
        shape.architecture = find_architecture(name);
        shapes.push_back(shape);
        // Each part changed by itself to what no preset has.
        const auto changed = [&](auto&& change) {
            shapes.push_back(shape);
            change(shapes.back().architecture);
        };
        changed([](Architecture& a) { a.norm = NormKind::rmsnorm; });
        changed([](Architecture& a) { a.norm_eps = 1.0 / 3e6; });
        changed([](Architecture& a) { a.biases = !a.biases; });
        changed([](Architecture& a) { a.biases = false, a.qkv_biases = true; });
        changed([](Architecture& a) { a.mlp = MlpKind::swiglu; });
        changed([](Architecture& a) { a.tied_head = !a.tied_head; });
        changed([](Architecture& a) { a.rotary_positions = true, a.rotary.base = 12345.678; });
        changed([](Architecture& a) { a.rotary_positions = true, a.rotary.half_truncated ^= true; });
        changed([](Architecture& a) { a.rotary_positions = true, a.rotary.clockwise ^= true; });
        changed([](Architecture& a) { a.rotary_positions = true, a.rotary.qk_norm ^= true; });
        changed([](Architecture& a) { a.rotary.qk_norm = false, a.qk_rmsnorm = true; });
        changed([](Architecture& a) {
            a.rotary_positions = true, a.rotary.qk_norm = false, a.rotary.scale = 1, a.rotary_layers = "RRN";
        });
        changed([](Architecture& a) {
            a.rotary_positions = true, a.rotary.half_truncated = false;
            a.rotary.scaling = {.factor = 7.25, .low_turns = 0.75, .high_turns = 3.5, .original_length = 77};
            a.rotary.scaling.kind = RotaryScaling::Kind::yarn;
        });
        changed([](Architecture& a) { a.windows = "S", a.short_window = 7, a.full_last_layer = false; });
        shapes.push_back(shape);
        shapes.back().head_channels = 24;
        changed([](Architecture& a) { a.rotary.eps = 0.3e-6f, a.rotary.scale = 1.1f; });
        changed([](Architecture& a) { a.score_scale = 0.123; });
        changed([](Architecture& a) { a.windows = "SLLS", a.short_window = 77; });
        changed([](Architecture& a) { a.embedding_norm ^= a.rotary_positions; });
        changed([](Architecture& a) { a.value_embeddings ^= true; });
        changed([](Architecture& a) { a.residual_lambdas ^= true; });
        changed([](Architecture& a) { a.smear ^= true; });
        changed([](Architecture& a) { a.backout ^= true; });
        changed([](Architecture& a) { a.softcap = {Softcap::Kind::isru, 23.5f}; });
    }
    const ScratchFolder folder;
    for (const GptShape& shape : shapes)
        for (const DType dtype : {DType::f32, DType::bf16}) {
            const std::string text = model_config(shape, dtype);
            INFO(text);
            std::ofstream(folder / "config.json") << text;
            CHECK(same_model(checkpoint_shape(folder / ""), shape));
            CHECK(contains(text, dtype == DType::bf16 ? "bfloat16" : "float32"));
        }
}
