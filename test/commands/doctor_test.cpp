// train_gpt doctor: every check, in working environments and in broken ones.
#include "llmc/commands/doctor.h"
#include <cstdio>
#include <filesystem>
#include <map>
#include "llmc/commands/backend.h"  // no_gpu_line
#include "test/processes.h"         // in_processes, free_port
#include "test/program.h"

namespace {

using Grade = Finding::Grade;

std::string line_of(const Finding& finding) {
    const std::string text = text_of({finding});
    return text.substr(0, text.find('\n'));
}

}  // namespace

TEST_CASE("findings are a line each", "[doctor]") {
    const std::vector<Finding> findings = {
        {Grade::ok, "a", "1", ""}, {Grade::warn, "b", "2", "do this"}, {Grade::fail, "c", "3", "do that"}};
    CHECK(text_of(findings) == "ok    a: 1\nwarn  b: 2 -> do this\nFAIL  c: 3 -> do that\n1 ok, 1 warn, 1 FAIL\n");
    CHECK(text_of(findings, 3) == "warn  rank 3: b: 2 -> do this\nFAIL  rank 3: c: 3 -> do that\n");
}

TEST_CASE("a processor is made use of", "[doctor]") {
    const std::string cpuinfo = "flags\t\t: fpu\nmodel name\t: New One\n";
    const Finding good = check_processor(cpuinfo, CpuLevel::avx2, CpuLevel::avx2);
    CHECK(good.grade == Grade::ok);
    CHECK(contains(good.found, "New One, "));
    CHECK(contains(good.found, "; uses AVX2"));
    const Finding slow = check_processor(cpuinfo, CpuLevel::avx2, CpuLevel::avx512);
    CHECK(slow.grade == Grade::warn);
    CHECK(contains(slow.found, "has AVX-512, and this run uses AVX2"));
    CHECK(contains(slow.todo, "ANVIL_CPU_ISA=avx2"));
    CHECK(contains(check_processor("", CpuLevel::baseline, CpuLevel::baseline).found, "a processor without a name"));
}

TEST_CASE("libraries load, or are not there for a reason", "[doctor]") {
    const auto grades = [](const std::string& libraries, bool cuda) {
        std::string all;
        for (const Finding& finding : check_libraries(libraries, cuda))
            all += line_of(finding).substr(0, 4) + finding.what + " ";
        return all;
    };
    CHECK(grades("", false) == "ok  MPI ");
    CHECK(grades("", true) == "warncuDNN warnNCCL ok  MPI ");
    CHECK(grades("cuDNN=libm.so.6 NCCL=libm.so.6 MPI=libm.so.6", true) == "ok  cuDNN ok  NCCL ok  MPI ");
    CHECK(grades("MPI=/nowhere/libnone.so", false) == "FAILMPI ");
    CHECK(contains(check_libraries("MPI=/nowhere/libnone.so", false)[0].found, "libnone.so: cannot open"));
    // As the loader finds it, if it is not where it was when this was built.
    CHECK(check_libraries("math=/nowhere/libm.so.6", false)[0].found == "libm.so.6, elsewhere than where it was built");
}

TEST_CASE("a GPU is there, free, or not asked for", "[doctor]") {
    const auto grade = [](const std::string& device, const GpuFacts& gpu) {
        RunFlags config;
        config.device = device;
        return check_gpu(config, gpu).grade;
    };
    const size_t all = size_t(80) << 30;
    CHECK(grade("auto", {true, "", "cuda, H100", all, all}) == Grade::ok);
    CHECK(grade("cuda", {true, "", "cuda, H100", all / 2, all}) == Grade::warn);
    CHECK(grade("auto", {true, "no NVIDIA driver is loaded"}) == Grade::warn);
    CHECK(grade("cuda", {true, "no NVIDIA driver is loaded"}) == Grade::fail);
    CHECK(grade("cpu", {true, "no NVIDIA driver is loaded"}) == Grade::ok);
    CHECK(grade("auto", {false, "not built"}) == Grade::ok);
    RunFlags any;
    CHECK(line_of(check_gpu(any, {.why_none = "not built", .on_host = {2, 2}})) ==
          "warn  GPU: not built, and the driver of this host has 2 -> install the CUDA toolkit and make again");
    CHECK(contains(check_gpu(any, {.why_none = "not built", .on_host = {0, 2}}).todo, "docker run --gpus all"));
    CHECK(grade("cuda", {false, "not built"}) == Grade::fail);
}

TEST_CASE("GPUs that nobody uses are counted and named", "[doctor][plain]") {
    const ScratchFolder host;
    CHECK(host_gpus(host.path).known == 0);
    const auto put = [&](const std::string& name) {
        std::filesystem::create_directories(std::filesystem::path(host / name).parent_path());
        put_file(host / name, "");
    };
    for (const char* name : {"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia", "dev/nvidia0x", "dev/sda1"}) put(name);
    CHECK(host_gpus(host.path).known == 0);
    for (const char* name : {"proc/driver/nvidia/gpus/0000:01:00.0/i", "proc/driver/nvidia/gpus/0000:02:00.0/i"})
        put(name);
    CHECK(host_gpus(host.path).open == 0);
    CHECK(host_gpus(host.path).known == 2);
    for (const char* name : {"dev/nvidia0", "dev/nvidia1", "dev/nvidia11"}) put(name);
    CHECK(host_gpus(host.path).open == 3);
    CHECK(host_gpus(host.path).known == 3);

    CHECK(no_gpu_line(false, "no CUDA", {}) == "");
    CHECK(no_gpu_line(true, "no driver", {}) == "no GPU, training on the CPU: no driver");
    CHECK(no_gpu_line(false, "no CUDA", {1, 1}) ==
          "this host has a GPU that nobody uses, training on the CPU: no CUDA");
    CHECK(no_gpu_line(true, "too old", {8, 8}) ==
          "this host has 8 GPUs that nobody uses, training on the CPU: too old");
    CHECK(unused_gpus_line(8, 8) == "");
    CHECK(unused_gpus_line(1, 2) == "");
    CHECK(unused_gpus_line(8, 1) ==
          "this host has 8 GPUs, and this run uses 1: mpirun -np 8 ./train_gpt ... uses all\n");
    CHECK(contains(no_gpu_line(true, "no driver", {0, 8}), "given none of them (docker run --gpus all)"));
}

TEST_CASE("ranks that meet at an address time what they exchange", "[doctor][plain]") {
    const auto look = [](int ranks, const std::vector<std::string>& hosts) {
        const std::string master = "127.0.0.1:" + std::to_string(free_port());
        return in_processes(ranks, [&](int rank) {
            if (!hosts.empty()) setenv("ANVIL_HOST", hosts[size_t(rank)].c_str(), 1);
            Launch launch;
            launch.meet = Launch::Meet::at_address, launch.master = master;
            launch.rank = rank, launch.world_size = 2;
            std::printf("%s\n", line_of(check_link(launch, ranks == 2 ? 30 : 0.2)).c_str());
        });
    };
    for (const std::vector<std::string>& hosts : {std::vector<std::string>{}, {"alpha", "beta"}}) {
        for (const Finished& rank : look(2, hosts)) {
            INFO(rank.out << rank.err);
            CHECK(rank.exit_code == 0);
            const size_t at = rank.out.find("; an all-reduce of 4 bytes takes ");
            double us = 0, gb_per_s = 0;
            REQUIRE(at != std::string::npos);
            REQUIRE(std::sscanf(rank.out.c_str() + at,
                                "; an all-reduce of 4 bytes takes %lf us, and a rank sends %lf GB/s", &us,
                                &gb_per_s) == 2);
            CHECK(us > 0);
            CHECK(gb_per_s > 0);
            CHECK(rank.out.starts_with("ok    link: all are at 127.0.0.1:"));
            CHECK(contains(rank.out, hosts.empty() ? ": shared memory, 2 ranks;" : " and TCP, 2 ranks on 2 hosts;"));
        }
    }
    const std::string alone = look(1, {})[0].out;
    CHECK(alone.starts_with("FAIL  link: "));
    CHECK(contains(alone, "rank 1 did not come to 127.0.0.1:"));
}

TEST_CASE("a launch that is half set fails", "[doctor]") {
    using Variables = std::map<std::string, std::string>;
    const auto look = [](const Variables& variables, Launch* launch) {
        return check_launch(
            {},
            [&](const char* name) {
                const auto found = variables.find(name);
                return found == variables.end() ? nullptr : found->second.c_str();
            },
            launch);
    };
    Launch launch;
    CHECK(line_of(look({}, &launch)) == "ok    launch: 1 rank");
    const Finding half = look({{"RANK", "1"}}, &launch);
    CHECK(half.grade == Grade::fail);
    CHECK(contains(half.found, "RANK is set in the environment and WORLD_SIZE is not"));
    CHECK(contains(half.todo, "--launcher none"));
    const Finding whole =
        look({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}}, &launch);
    CHECK(line_of(whole) == "ok    launch: 2 ranks, by RANK and WORLD_SIZE, who meet at localhost:1234");
    CHECK(launch.rank == 1);
}

TEST_CASE("limits and shared memory", "[doctor]") {
    const auto grades = [](int ranks, size_t files, size_t shared) {
        const std::vector<Finding> findings = check_limits(ranks, files, shared);
        REQUIRE(findings.size() == 2);
        return std::pair(findings[0].grade, findings[1].grade);
    };
    const size_t mib = 1 << 20;
    CHECK(grades(1, 4096, 64 * mib) == std::pair(Grade::ok, Grade::ok));
    CHECK(grades(2, 4096, 64 * mib) == std::pair(Grade::ok, Grade::warn));
    CHECK(grades(2, 4096, 256 * mib) == std::pair(Grade::ok, Grade::ok));
    CHECK(grades(512, 4096, 256 * mib) == std::pair(Grade::warn, Grade::ok));
    CHECK(grades(1, 255, 0) == std::pair(Grade::fail, Grade::ok));
}

TEST_CASE("names of hosts", "[doctor]") {
    const auto last = [](const std::string& master, const std::string& host) {
        Launch launch;
        if (!master.empty()) launch.meet = Launch::Meet::at_address, launch.world_size = 2, launch.master = master;
        return check_network(launch, host);
    };
    CHECK(last("", "localhost").size() == 2);
    CHECK(last("", "localhost")[1].grade == Grade::ok);
    CHECK(last("", "no such host")[1].grade == Grade::warn);
    CHECK(line_of(last("127.0.0.1:29500", "localhost").at(2)) == "ok    rank 0: 127.0.0.1");
    CHECK(last("[::1]:29500", "localhost").at(2).grade == Grade::ok);
    CHECK(last("no such host:29500", "localhost").at(2).grade == Grade::fail);
}

TEST_CASE("a disk has room, and is measured without a trace", "[doctor]") {
    const ScratchFolder scratch;
    RunFlags config;
    config.out_dir = scratch / "not/there/yet";
    const Finding good = check_disk(config, 1000);
    INFO(line_of(good));
    CHECK(good.grade == Grade::ok);
    CHECK(contains(good.found, " MB/s"));
    CHECK(std::filesystem::is_empty(scratch.path));
    CHECK(check_disk(config, size_t(1) << 60).grade == Grade::fail);
    // Room for one, but not for all that --keep keeps.
    config.keep = 1 << 30;
    const Finding kept = check_disk(config, 64 << 20);
    CHECK(kept.grade == Grade::warn);
    CHECK(contains(kept.todo, "--keep 1073741824 of them need more"));
    config.keep = 2;
    put_file(scratch / "file", "");
    config.out_dir = scratch / "file/run";
    CHECK(check_disk(config, 1000).grade == Grade::fail);
    config.out_dir = "/proc/sys";
    CHECK(check_disk(config, 0).grade == Grade::fail);
}

TEST_CASE("the program says what stands in the way of a run", "[doctor]") {
    const TinyRuns runs;
    const Finished good = run(command_of(runs.flags("a"), "doctor"));
    INFO(good.out << good.err);
    CHECK(good.exit_code == 0);
    for (const char* part :
         {"ok    build: ", "ok    GEMMs: --dtype auto on the CPU: ", "ok    launch: 1 rank\n",
          "ok    run: begins anew\n", "ok    training data: 1 shard of ", "ok    validation data: 1 shard of ",
          "ok    tokenizer: ", "ok    tokens: all are in the vocabulary of ", "ok    disk: --out-dir ",
          " warn, 0 FAIL\n"})
        CHECK(contains(good.out, part));
    CHECK_FALSE(std::filesystem::exists(runs.path("a")));

    const std::string shard = runs.path("data/val_000000.bin"), as_it_was = read_file(shard);
    // The last token is one that the model does not know.
    put_file(shard, as_it_was.substr(0, as_it_was.size() - 2) + "\xFF\xFF");
    int64_t vocab_size = 0;
    RunFlags config;
    config.train_data = runs.path("data/train_*.bin"), config.val_data = runs.path("data/val_*.bin");
    const Finding tokens = check_data(config, &vocab_size).back();
    INFO(line_of(tokens));
    CHECK(tokens.grade == Grade::fail);
    CHECK(contains(tokens.found, shard + ": token "));
    CHECK(contains(line_of(tokens), " has the id 65535, outside the vocabulary of "));

    put_file(shard, read_file(shard).substr(0, 500));
    const Finished bad = run("env WORLD_SIZE=2 " + command_of(runs.flags("a", {{"warmup-steps", "100"}}), "doctor"));
    INFO(bad.out << bad.err);
    CHECK(bad.exit_code == 2);
    CHECK(contains(bad.out, "FAIL  launch: WORLD_SIZE is set in the environment and RANK is not -> "));
    CHECK(contains(bad.out, "FAIL  run: --warmup-steps 100 is more than --steps "));
    CHECK(contains(bad.out, "FAIL  validation data: " + shard + " has 500 bytes"));
    CHECK(contains(bad.out, " warn, 3 FAIL\n"));

    // A run that is there, with its flags and its data.
    TinyRuns others;
    must_succeed(others.train("a"));
    const Finished again = run(program("train_gpt") + " doctor --resume '" + others.path("a") + "'");
    INFO(again.out << again.err);
    CHECK(again.exit_code == 0);
    CHECK(contains(again.out, "ok    run: goes on from " + others.path("a/step_")));
    const Finished anew = run(command_of(others.flags("a"), "doctor"));
    CHECK(anew.exit_code == 2);
    CHECK(contains(anew.out, "holds the checkpoints of a run -> continue it with --resume auto"));
}
