// The peak FLOP/s for MFU: the table of GPUs, measured and cached values, and the sum over ranks.
#include "llmc/run/peak_flops.h"
#include <sys/stat.h>
#include <cmath>
#include <filesystem>
#include "llmc/base/json.h"        // parse_json
#include "llmc/base/user_cache.h"  // user_cache_folder
#include "llmc/comm/local.h"       // LocalGroup, LocalRanks
#include "llmc/train/devices.h"    // peak_of
#include "test/processes.h"        // in_processes, free_port
#include "test/program.h"          // TinyRuns

namespace {

std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    return names;
}

// A device that counts how often it was measured, and is a little faster each time.
struct FakeDevice {
    int measured = 0;
    double flops = 1e12;

    DevicePeak find(const std::string& folder, const std::string& key = "a device", const std::string& asked = "auto",
                    double vendors = 0) {
        return find_peak(asked, vendors, folder, key, [&] {
            measured++;
            return PeakRates{0, flops + measured, "", "a product"};
        });
    }
};

Json header_of(const std::string& out_dir) {
    const std::string log = read_file(out_dir + "/log.jsonl");
    return parse_json(log.substr(0, log.find('\n')));
}

}  // namespace

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

TEST_CASE("a peak is measured once, for each device", "[peak_flops]") {
    const ScratchFolder scratch;
    const std::string folder = scratch / "not/there/yet";
    FakeDevice device;
    CHECK(device.find(folder).text() == "1 TFLOP/s, measured: a product");
    REQUIRE(files_in(folder).size() == 1);
    // As a later run: it was faster the second time, if there had been one.
    CHECK(device.find(folder).flops == 1e12 + 1);
    CHECK(device.find(folder).how == "measured: a product");
    CHECK(device.measured == 1);
    CHECK(device.find(folder, "another device").flops == 1e12 + 2);
    CHECK(device.find(folder).flops == 1e12 + 1);
    CHECK(device.find(folder, "a device", "measure").flops == 1e12 + 3);
    CHECK(device.find(folder).flops == 1e12 + 3);
    CHECK(device.measured == 3);

    // Known values need not be measured.
    CHECK(device.find(folder, "a third", "auto", 989e12).text() == "989 TFLOP/s, the vendor's figure");
    CHECK(device.find(folder, "a third", "165.2e12", 989e12).text() == "165 TFLOP/s, as peak-flops says");
    CHECK(device.find(folder, "a third", "0", 989e12).flops == 0);
    CHECK(device.measured == 3);
    CHECK(device.find(folder, "a third", "measure", 989e12).flops == 1e12 + 4);
}

TEST_CASE("a cache that is damaged, foreign or cannot be used is no error", "[peak_flops]") {
    const ScratchFolder scratch;
    const std::string folder = scratch / "cache";
    FakeDevice device;
    device.find(folder);
    const std::string path = folder + "/" + files_in(folder)[0], good = read_file(path);
    for (const std::string& content :
         {std::string(), good.substr(0, good.size() / 2), std::string("\0\xff\n", 3), std::string("[1]"),
          std::string("7"), std::string(R"({"device": "a device"})"),
          std::string(R"({"device": "another", "flops": 5e12, "of": ""})"),
          std::string(R"({"device": "a device", "flops": -1, "of": ""})"),
          std::string(R"({"device": "a device", "flops": 1e300, "of": ""})"),
          std::string(R"({"device": "a device", "flops": "5e12", "of": ""})"),
          std::string(R"({"device": "a device", "flops": 5e12, "of": 3})"), good + std::string(1 << 16, ' ')}) {
        INFO(content.substr(0, 80));
        put_file(path, content);
        const int before = device.measured;
        CHECK(device.find(folder).flops == 1e12 + before + 1);
        CHECK(device.measured == before + 1);
        CHECK(device.find(folder).flops == 1e12 + before + 1);  // and it is whole again
        CHECK(device.measured == before + 1);
    }

    // A pipe without a writer, a folder in the file's place, and no folder at all.
    std::filesystem::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    int times = device.measured;
    CHECK(device.find(folder).flops == 1e12 + times + 1);
    std::filesystem::remove(path);
    std::filesystem::create_directories(path + "/below");
    times = device.measured;
    CHECK(device.find(folder).flops == 1e12 + times + 1);
    CHECK(files_in(folder).size() == 1);  // nothing half-written is left
    for (const std::string& none : {std::string(), scratch / "file", std::string("/proc/1/nowhere")}) {
        put_file(scratch / "file", "");
        const int before = device.measured;
        CHECK(device.find(none).flops == 1e12 + before + 1);
        CHECK(device.find(none).flops == 1e12 + before + 2);
    }
}

TEST_CASE("what cannot be measured is not known", "[peak_flops]") {
    const ScratchFolder scratch;
    CHECK(find_peak("auto", 0, scratch.path, "full", []() -> PeakRates { throw Error(2, "out of memory"); }).flops ==
          0);
    for (const double nonsense : {0.0, -1.0, double(NAN), double(INFINITY)})
        CHECK(find_peak("auto", 0, scratch.path, "clock", [&] { return PeakRates{0, nonsense, "", ""}; }).flops == 0);
    CHECK(files_in(scratch.path).empty());
    for (const char* wrong : {"", "fast", "1e12x", "-1", "nan", "inf", "Auto"})
        CHECK(contains(error_of([&] { given_peak(wrong); }),
                       std::string("2: peak-flops = ") + wrong + ": expected auto"));
}

TEST_CASE("several processes measure and keep at once", "[peak_flops][plain]") {
    const ScratchFolder scratch;
    for (const Finished& ended : in_processes(4, [&](int rank) {
             FakeDevice device;
             for (int i = 0; i < 50; i++) {
                 const double flops = device.find(scratch.path, "a device", rank % 2 ? "auto" : "measure").flops;
                 ensure(flops > 1e12 && flops <= 1e12 + 50);
             }
         }))
        CHECK(ended.exit_code == 0);
    CHECK(files_in(scratch.path).size() == 1);
    FakeDevice device;
    device.find(scratch.path);
    CHECK(device.measured == 0);
}

TEST_CASE("the cache is where the user's caches are", "[peak_flops]") {
    const auto folder = [](std::map<std::string, std::string> variables) {
        return user_cache_folder(
            [&](const char* name) -> const char* { return variables.count(name) ? variables[name].c_str() : nullptr; });
    };
    CHECK(folder({{"XDG_CACHE_HOME", "/a"}, {"HOME", "/b"}}) == "/a/anvil");
    CHECK(folder({{"HOME", "/b"}}) == "/b/.cache/anvil");
    CHECK(folder({{"XDG_CACHE_HOME", ""}, {"HOME", "/b"}}) == "/b/.cache/anvil");
    CHECK(folder({{"XDG_CACHE_HOME", "relative"}, {"HOME", ""}}) == "");
    CHECK(folder({}) == "");
}

TEST_CASE("unequal ranks add up, and virtual ranks share a device", "[peak_flops]") {
    const auto sum = [](std::vector<double> of_ranks, bool shares_device) {
        std::vector<double> all;
        LocalGroup group(int(of_ranks.size()));
        group.run([&](int rank) {
            LocalRanks ranks(group, rank);
            all.push_back(peak_of_all(ranks, of_ranks[size_t(rank)], shares_device));
        });
        for (const double one : all) CHECK(one == all[0]);
        return all[0];
    };
    CHECK(sum({1e12, 2e12, 4e12}, false) == 7e12);
    CHECK(sum({1e12, 0, 4e12}, false) == 0);
    CHECK(sum({0, 2e12, 4e12}, false) == 0);
    CHECK(sum({1e12, 2e12, 4e12}, true) == 1e12);
    CHECK(contains(error_of([&] { sum({1e12, INFINITY}, false); }), "the devices' peak makes no sense"));
}

TEST_CASE("a processor has a name, also on Arm", "[peak_flops]") {
    CHECK(processor_text("processor\t: 0\nmodel name\t: New One @ 3 GHz\n\nmodel name\t: New One\n") ==
          "New One @ 3 GHz");
    CHECK(processor_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n") == "0x41 0xd0c");
    CHECK(processor_text("") == "");
}

TEST_CASE("this processor's peak is measured, and then read", "[peak_flops]") {
    Cpu cpu(2);
    const DevicePeak first = peak_of<float>(cpu, "measure"), second = peak_of<float>(cpu, "auto");
    CHECK(first.flops > 1e8);
    CHECK(first.how == "measured: multiply-adds in registers");
    CHECK(second.flops == first.flops);
    const ScratchFolder scratch;
    for (const int threads : {1, 2}) {
        Cpu some(threads);
        CHECK(busy_threads(some) == std::min(threads, busy_threads(cpu)));
        CHECK(cpu_kernels().compute_rate_bf16(some).flops > 1e8);
    }
}

TEST_CASE("a run on the CPU tells its MFU", "[peak_flops]") {
    const TinyRuns runs;
    const Finished first = runs.train("first", {{"steps", "3"}, {"warmup-steps", "1"}}),
                   second = runs.train("second", {{"steps", "3"}, {"warmup-steps", "1"}});
    must_succeed(first), must_succeed(second);
    CHECK(contains(first.out, "\nMFU: of "));
    CHECK(contains(first.out, " TFLOP/s, measured: multiply-adds in registers\n"));
    CHECK(contains(first.out, " | MFU "));
    const Json header = header_of(runs.path("first"));
    CHECK(header["machine"]["peak"] == "measured: multiply-adds in registers");
    CHECK(header_of(runs.path("second"))["machine"]["peak_flops"] == header["machine"]["peak_flops"]);
    const std::vector<std::string> steps = records_in(runs.path("first"), "step");
    REQUIRE(steps.size() == 3);
    for (const std::string& line : steps) {
        const double mfu = parse_json(line)["mfu"];
        CHECK(mfu > 0);
        CHECK(mfu < 1.2);
    }

    const Finished none = runs.train("none", {{"steps", "3"}, {"warmup-steps", "1"}, {"peak-flops", "0"}});
    must_succeed(none);
    CHECK(!contains(none.out, "MFU"));
    CHECK(!parse_json(records_in(runs.path("none"), "step")[0]).contains("mfu"));
    const Finished wrong = runs.train("wrong", {{"peak-flops", "much"}});
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "error: peak-flops = much: expected auto, measure, or FLOP/s"));
}

TEST_CASE("MFU of two ranks is a part of what both can do", "[peak_flops][plain]") {
    const TinyRuns runs;
    const std::string port = std::to_string(free_port());
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        const Finished one = runs.train("two", {{"steps", "2"},
                                                {"warmup-steps", "1"},
                                                {"total-batch-size", "128"},
                                                {"rank", std::to_string(rank)},
                                                {"world-size", "2"},
                                                {"master", "localhost:" + port},
                                                {"peak-flops", rank == 0 ? "1e12" : "3e12"}});
        std::printf("%s", one.out.c_str());
        if (one.exit_code) throw Error(one.exit_code, one.err);
    });
    for (const Finished& one : ended) must_succeed(one);
    CHECK(contains(ended[0].out, "\nMFU: of 4 TFLOP/s of all ranks, rank 0's 1 TFLOP/s, as peak-flops says\n"));
    const Json header = header_of(runs.path("two"));
    CHECK(header["machine"]["peak_flops"] == 4e12);
    for (const std::string& line : records_in(runs.path("two"), "step")) {
        const Json step = parse_json(line);
        CHECK(double(step["mfu"]) ==
              Approx(double(header["model"]["flops_per_token"]) * double(step["tokens_per_s"]) / 4e12));
    }
}
