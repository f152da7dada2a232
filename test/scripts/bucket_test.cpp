// --after-checkpoint and --before-resume with scripts/bucket.sh and a folder as the bucket: what is in it at any time,
// and what a run on a new disk resumes from. dev/interop/check_bucket.py does this with a server of S3 and kills.
#include <filesystem>
#include "llmc/io/checkpoint.h"  // checkpoint_steps
#include "llmc/io/manifest.h"    // verify
#include "test/train/mpi_runs.h"

namespace {

namespace fs = std::filesystem;

const FlagMap kSaves =
    with(kEight, {{"steps", "8"}, {"checkpoint-every", "2"}, {"keep", "1"}, {"lr-schedule", "constant"}});

struct BucketRuns : TinyRuns {
    const std::string bucket = path("bucket"), script = fs::absolute("scripts/bucket.sh");
    const FlagMap hooks = {{"after-checkpoint", script + " put " + bucket},
                           {"before-resume", script + " get " + bucket}};

    Finished resume_there(const std::string& out, const FlagMap& changes = {}) const {
        return run(command_of(flags(out, with(with(with(kSaves, hooks), {{"resume", "auto"}}), changes))));
    }
};

}  // namespace

TEST_CASE("a bucket has every checkpoint, and a run goes on from it on a new disk", "[bucket][plain]") {
    const BucketRuns runs;
    must_succeed(runs.train("straight", with(kSaves, {{"steps", "12"}})));
    must_succeed(runs.resume_there("a"));  // an empty bucket is no error
    CHECK(checkpoint_steps(runs.bucket) == std::vector<int64_t>{2, 4, 6, 8});
    for (const int64_t step : {2, 4, 6, 8}) CHECK(verify(step_folder(runs.bucket, step)).why == "");
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{8});
    // A command is for those who gave it, and not for whoever gets the checkpoint.
    CHECK_FALSE(contains(read_file(step_folder(runs.path("a"), 8) + "/" + kRunFlagsFile), "bucket.sh"));

    // Two ranks with disks of their own: rank 0 needs the files.
    const std::string master = "127.0.0.1:" + std::to_string(free_port());
    std::vector<Started> ranks;
    for (const std::string rank : {"0", "1"})
        ranks.emplace_back(
            command_of(runs.flags(
                "disk" + rank,
                with(with(kSaves, runs.hooks),
                     {{"resume", "auto"}, {"steps", "12"}, {"rank", rank}, {"world-size", "2"}, {"master", master}}))),
            runs.path("rank" + rank));
    for (const Started& rank : ranks) must_succeed(rank.finish());
    CHECK(tensor_difference(step_folder(runs.path("disk0"), 12), step_folder(runs.path("straight"), 12)) == "");
    CHECK(checkpoint_steps(runs.path("disk1")).empty());
    CHECK(checkpoint_steps(runs.bucket).back() == 12);

    // Half of one in the bucket, and half of one on the disk, count for nothing.
    fs::remove(step_folder(runs.bucket, 12) + "/manifest.json");
    fs::create_directories(step_folder(runs.path("b"), 10) + ".tmp");
    put_file(step_folder(runs.path("b"), 10) + ".tmp/model.safetensors", "half");
    const Finished ended = runs.resume_there("b", {{"steps", "12"}});
    must_succeed(ended);
    CHECK(contains(ended.out, "step 10"));
    CHECK_FALSE(contains(ended.err, "passed over"));
    CHECK(tensor_difference(step_folder(runs.path("b"), 12), step_folder(runs.path("straight"), 12)) == "");
    CHECK(verify(step_folder(runs.bucket, 12)).why == "");
}

TEST_CASE("--before-resume has the run's folder, and none that is not its run's", "[bucket][plain]") {
    const BucketRuns runs;
    must_succeed(runs.resume_there("a"));
    const std::string copy = "cp -r " + runs.bucket + "/step_00000008 " + runs.bucket + "/step_00000006 $ANVIL_OUT_DIR";
    const Finished there = runs.resume_there("b", {{"before-resume", copy}, {"steps", "10"}});
    must_succeed(there);
    CHECK(contains(there.out, "resume from " + step_folder(runs.path("b"), 8) + " at step 8"));
    // Without --resume a run would begin anew and replace what is in the bucket; a checkpoint's folder is for no other.
    for (const std::string& resume : {std::string(), step_folder(runs.path("b"), 10), runs.path("b")}) {
        const Finished ended =
            runs.resume_there("b", {{"resume", resume}, {"before-resume", "touch " + runs.path("ran")}});
        CHECK(ended.exit_code == kExitUsage);
        CHECK(contains(ended.err,
                       "error: --before-resume brings the newest checkpoint of a run for --resume auto, and "
                       "--resume is '" +
                           resume + "': give --resume auto, or leave --before-resume out\n"));
        CHECK_FALSE(fs::exists(runs.path("ran")));
    }
}

TEST_CASE("of a checkpoint that is replaced a bucket never has half", "[bucket][plain]") {
    const BucketRuns runs;
    must_succeed(runs.resume_there("a", {{"steps", "2"}}));
    must_succeed(runs.train("b", with(kSaves, {{"steps", "2"}, {"seed", "3"}})));
    const auto put = [&](const std::string& path) {
        return run("env PATH=" + path + ":$PATH ANVIL_OUT_DIR=" + runs.path("b") +
                   " ANVIL_CHECKPOINT=" + step_folder(runs.path("b"), 2) + " " + runs.script + " put " + runs.bucket);
    };
    // The copy ends in the middle.
    fs::create_directory(runs.path("bin"));
    put_file(runs.path("bin/cp"), "#!/bin/sh\nexit 1\n");
    fs::permissions(runs.path("bin/cp"), fs::perms::owner_all);
    CHECK(put(runs.path("bin")).exit_code == 1);
    CHECK_FALSE(fs::exists(step_folder(runs.bucket, 2) + "/manifest.json"));
    must_succeed(put("/nowhere"));
    CHECK(verify(step_folder(runs.bucket, 2)).why == "");
    must_succeed(put(runs.path("bin")));  // it is there, so nothing is copied
}

TEST_CASE("a bucket that cannot be reached ends no run that has checkpoints, and begins none anew", "[bucket][plain]") {
    const BucketRuns runs;
    const FlagMap fails = {{"after-checkpoint", "false"}, {"before-resume", "false"}};
    const Finished lost = runs.resume_there("a", fails);
    CHECK(lost.exit_code == kExitRank);
    CHECK(contains(lost.err, "error: --before-resume ended with exit code 1, and there is no checkpoint in "));
    const Finished alone = run(command_of(runs.flags("a", with(kSaves, {{"after-checkpoint", "false"}}))));
    must_succeed(alone);
    CHECK(contains(alone.err, "warning: --after-checkpoint of step "));
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{2, 4, 6, 8});  // none is removed, up to four
    const Finished on = runs.resume_there("a", with(fails, {{"steps", "12"}}));
    must_succeed(on);
    CHECK(contains(on.err, "warning: --before-resume ended with exit code 1\n"));
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{6, 8, 10, 12});
}
