// Training by many processes, with mpirun and over TCP: they learn what one process learns.
#include "test/train/mpi_runs.h"

namespace fs = std::filesystem;

TEST_CASE("processes train the model that one process trains, bit for bit", "[mpi_train][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = with(kEight, {{"optimizer", optimizer}});
        must_succeed(runs.train(optimizer + "1", flags));
        const std::string one = runs.path(optimizer + "1");
        const auto want = losses_in(one);
        REQUIRE(want.size() == 20);
        for (const int n : {2, 4}) {
            INFO(optimizer << " on " << n << " processes");
            const std::string name = optimizer + std::to_string(n), out = runs.path(name);
            const Finished finished = mpirun(n, command_of(runs.flags(name, flags)));
            must_succeed(finished);
            CHECK(contains(finished.out, std::to_string(n) + " ranks, by Open MPI's mpirun"));
            CHECK(count(finished.out, "step 20/20 ") == 1);
            CHECK(losses_in(out) == want);
            CHECK(tensor_difference(step_folder(out, 20), step_folder(one, 20)) == "");
            CHECK(records_in(out, "val") == records_in(one, "val"));
            // The manifest knows what the last rank has written.
            const std::string part = shard_file(kOptimizerStem, n - 1, n), path = step_folder(out, 20) + "/" + part;
            CHECK(verify(step_folder(out, 20)).why == "");
            fs::resize_file(path, fs::file_size(path) / 2);
            CHECK(contains(verify(step_folder(out, 20)).why, part));
        }
    }
}

TEST_CASE("processes that meet over TCP train the same model", "[mpi_train]") {
    const TinyRuns runs;
    must_succeed(runs.train("one", kEight));
    const auto check = [&](const std::string& name, const std::vector<Finished>& ended) {
        for (size_t r = 0; r < ended.size(); r++) {
            INFO(name << ", rank " << r << ": " << ended[r].err);
            CHECK(ended[r].exit_code == 0);
            CHECK(ended[r].err.find("error") == std::string::npos);
            CHECK((r == 0) == contains(ended[r].out, "step 20/20 "));  // the first one speaks
        }
        CHECK(losses_in(runs.path(name)) == losses_in(runs.path("one")));
        CHECK(tensor_difference(step_folder(runs.path(name), 20), step_folder(runs.path("one"), 20)) == "");
    };
    check("flags", TcpRun(2, runs.flags("flags", kEight), runs.path("flags")).finish());

    const std::string command = command_of(runs.flags("torchrun", kEight));
    const std::string port = std::to_string(free_port());
    std::vector<Started> ranks;
    for (const std::string rank : {"0", "1"})
        ranks.emplace_back("env RANK=" + rank + " LOCAL_RANK=" + rank + " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 " +
                               "MASTER_PORT=" + port + " TORCHELASTIC_RUN_ID=1 " + command,
                           runs.path("torchrun" + rank));
    const Finished first = ranks[0].finish();
    check("torchrun", {first, ranks[1].finish()});
    CHECK(contains(first.out, "2 ranks, by torchrun"));
}

TEST_CASE("gradients that travel as bf16 are rounded, and no more than that", "[mpi_train][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    const FlagMap exact = with(kEight, {{"virtual-ranks", "2"}, {"noise-scale", "true"}, {"steps", "6"}});
    must_succeed(runs.train("exact", exact));
    must_succeed(runs.train("virtual", with(exact, {{"grad-sum", "bf16"}})));
    must_succeed(
        mpirun(2, command_of(runs.flags("real", with(exact, {{"grad-sum", "bf16"}, {"virtual-ranks", "0"}})))));
    CHECK(losses_in(runs.path("real")) == losses_in(runs.path("virtual")));
    CHECK(tensor_difference(step_folder(runs.path("real"), 6), step_folder(runs.path("virtual"), 6)) == "");

    // The first step's loss does not depend on how gradients travel. Of its gradient g = a + b, the sum of two ranks',
    // a and b are rounded, and so is their sum: the norm of the error is at most u (|a| + |b|) + u (|g| + u (|a| +
    // |b|)) for u = eps / 2, and |a| + |b| <= sqrt(2 (|a|^2 + |b|^2)), which the noise scale tells: with m, the mean of
    // |2 a|^2 and |2 b|^2, it is n = 2 t (m - |g|^2) / (2 |g|^2 - m) for the t tokens of one rank.
    const StepRecord want = steps_in(runs.path("exact"))[0], got = steps_in(runs.path("real"))[0];
    double n = 0;
    from_json({{"", "noise_scale", &n, ""}}, records_in(runs.path("exact"), "step")[0], "log.jsonl");
    const double t = 128, squares = want.norm * want.norm, m = squares * (2 * n + 2 * t) / (2 * t + n);
    REQUIRE(m > 0);
    const double u = kEpsBf16 / 2, parts = std::sqrt(m);  // = sqrt(2 (|a|^2 + |b|^2))
    INFO("norm " << got.norm << " against " << want.norm << ", |a| + |b| up to " << parts);
    CHECK(got.loss == want.loss);
    CHECK(std::fabs(got.norm - want.norm) <= u * parts + u * (want.norm + u * parts));
    CHECK(got.norm != want.norm);
}

TEST_CASE("a run goes on at any number of processes", "[mpi_train][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags =
            with(kEight, {{"optimizer", optimizer}, {"steps", "16"}, {"lr-schedule", "constant"}, {"keep", "9"}});
        must_succeed(runs.train(optimizer, flags));
        const std::string out = runs.path(optimizer + "_elastic");
        const std::string first = command_of(runs.flags(optimizer + "_elastic", with(flags, {{"steps", "4"}})));
        const auto more = [&](const std::string& steps) {
            return command_of(runs.resume_flags(optimizer + "_elastic", {{"steps", steps}}));
        };
        must_succeed(mpirun(4, first));
        must_succeed(run(more("8")));
        must_succeed(mpirun(2, more("12")));
        must_succeed(mpirun(4, more("16")));
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{4, 8, 12, 16});
        CHECK(losses_in(out) == losses_in(runs.path(optimizer)));
        CHECK(tensor_difference(step_folder(out, 16), step_folder(runs.path(optimizer), 16)) == "");
        CHECK(state_in(step_folder(out, 16)).data.position ==
              state_in(step_folder(runs.path(optimizer), 16)).data.position);
    }
}
