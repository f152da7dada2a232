// --profile on a GPU: slices lie between events of the streams that the work went to.
#include "llmc/cuda/cuda_profile.h"
#include <cstring>
#include "llmc/comm/gpu/cuda_comm.h"  // OnStream
#include "llmc/cuda/gelu.cuh"
#include "test/cuda_testing.h"  // OnDevice, ON_DEVICE
#include "test/program.h"       // TinyRuns

TEST_CASE("an op on the device has its kernel, and a stream beside has its own track", "[profile]" ON_DEVICE) {
    Cuda cuda;
    cudaStream_t beside;
    REQUIRE(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking) == cudaSuccess);
    {
        OnDevice<float> x(cuda, Floats(1024, 1)), out(cuda, 1024);
        CudaProfile profile(cuda);
        cuda.observer = &profile;
        for (int step = 0; step < 2; step++) {
            const PhaseScope scope(cuda, "step");
            gelu_forward(cuda, out.data, x.data, 1024);
            const OnStream on(cuda, beside);
            const Scope collective(cuda.observer, SliceKind::collective, "all_gather");
            fill_zero(cuda, x.data, 1024);
        }
        cuda.observer = nullptr;
        gelu_forward(cuda, out.data, x.data, 1024);
        profile.finish();
        const std::vector<Slice>& slices = profile.slices();
        REQUIRE(slices.size() == 10);
        for (size_t i = 0; i < slices.size(); i += 5) {
            const Slice &step = slices[i], &op = slices[i + 1], &kernel = slices[i + 2], &collective = slices[i + 3],
                        &clear = slices[i + 4];
            CHECK(!std::strcmp(op.name, "gelu_forward"));
            CHECK((op.kind == SliceKind::op && kernel.kind == SliceKind::kernel));
            CHECK((step.track == 0 && op.track == 0 && kernel.track == 0 && collective.track == 1 && clear.track == 1));
            CHECK((step.depth == 0 && op.depth == 1 && kernel.depth == 2 && collective.depth == 0 && clear.depth == 1));
            // One event for the op and its only kernel, each way.
            CHECK((op.begin_mark == kernel.begin_mark && op.end_mark == kernel.end_mark));
            CHECK(op.begin_mark != step.begin_mark);
            CHECK(op.cost.bytes == 2 * 4 * 1024);
            CHECK((step.begin_ns <= op.begin_ns && op.begin_ns < op.end_ns && op.end_ns <= step.end_ns));
            CHECK((collective.begin_ns <= clear.begin_ns && clear.end_ns <= collective.end_ns));
        }
        CHECK(slices[0].begin_ns == 0);
        CHECK(slices[0].end_ns <= slices[5].begin_ns);
        CHECK(slices[3].end_ns <= slices[8].begin_ns);
    }
    REQUIRE(cudaStreamDestroy(beside) == cudaSuccess);
}

TEST_CASE("a profiled run on a GPU has the losses of any other, and a trace that nests", "[profile][once]" ON_DEVICE) {
    const TinyRuns runs;
    const int ranks = GENERATE(0, 2);
    const bool offloads = GENERATE(false, true);
    const std::string trace = runs.path("trace.json");
    FlagMap flags = {{"device", "cuda"},
                     {"dtype", "auto"},
                     {"num-heads", "1"},
                     {"channels", "64"},
                     {"num-layers", "1"},
                     {"total-batch-size", "64"},
                     {"steps", "3"},
                     {"warmup-steps", "1"},
                     {"virtual-ranks", std::to_string(ranks)},
                     {"offload", offloads ? "optimizer" : "none"}};
    must_succeed(runs.train("plain", flags));
    flags["profile"] = trace;
    flags["profile-steps"] = "2";
    const Finished profiled = runs.train("profiled", flags);
    must_succeed(profiled);
    CHECK(difference(step_folder(runs.path("plain"), 3), step_folder(runs.path("profiled"), 3)) == "");
    const Finished checked = run("python3 dev/interop/check_trace.py '" + trace + "'");
    INFO(checked.out << checked.err << profiled.out);
    REQUIRE(checked.exit_code == 0);
    const bool many = ranks > 0;
    for (const std::string& line :
         {std::string("phase step 2"), std::string("op attention_forward ") + (many ? "2" : "4"),
          std::string("op adamw_update"), std::string("kernel cublaslt "), std::string("op copy_to_device ")})
        CHECK(checked.out.find(line) != std::string::npos);
    CHECK((checked.out.find("collective all_gather ") != std::string::npos) == many);
    for (const std::string copy : {"copy_to_device", "copy_to_host"}) {
        CHECK((checked.out.find("copy " + copy + " ") != std::string::npos) == offloads);
        CHECK((read_file(trace).find("{\"name\":\"" + copy + "\"}") != std::string::npos) == offloads);
    }
    CHECK((profiled.out.find("on a stream of their own") != std::string::npos) == (many || offloads));
}
