// scripts/cluster/slurm.sh, with a fake srun and scontrol that print their arguments: when a job is requeued, and on
// which nodes it continues.
#include <filesystem>
#include <fstream>
#include "llmc/base/file.h"  // read_file
#include "test/testing.h"

namespace {

// A job of four nodes with two ranks each. `srun` is what the ranks say and how they end.
struct Job {
    ScratchFolder scratch;

    explicit Job(const std::string& srun) {
        program("srun", "echo \"$*\" >>" + scratch / "asked" + "; " + srun);
        program("scontrol",
                "case $1 in show) printf 'n0\\nn1\\nn2\\nn3\\n' ;; *) echo \"$*\" >>" + scratch / "queue" + " ;; esac");
    }
    void program(const std::string& name, const std::string& body) const {
        std::ofstream(scratch / name) << "#!/bin/sh\n" << body << "\n";
        std::filesystem::permissions(scratch / name, std::filesystem::perms::owner_all);
    }
    std::string file(const std::string& name) const {
        return std::filesystem::exists(scratch / name) ? read_file(scratch / name) : "";
    }
    Finished run_with(const std::string& variables = "", const std::string& flags = "") const {
        return run("env PATH=" + (scratch / "") +
                   ":$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST='n[0-3]' SLURM_NTASKS_PER_NODE=2 "
                   "SLURM_CPUS_PER_TASK=4 " +
                   variables + " scripts/cluster/slurm.sh --depth 4 " +
                   (flags.empty() ? "--out-dir " + scratch / "out" : flags));
    }
};

std::string says(const std::string& line, int exit_code) {
    return "echo '" + line + "' >&2; exit " + std::to_string(exit_code);
}

}  // namespace

TEST_CASE("a Slurm job that lost a rank goes back into the queue, and on without that node", "[slurm][plain]") {
    const Job job(says("error: rank 0: rank 5 (10.0.0.3:41000) is gone: its connection is closed (in step 31)", 137));
    const Finished ended = job.run_with();
    INFO(ended.err);
    CHECK(job.file("queue") == "requeue 7\n");
    CHECK(job.file("out/lost_nodes") == "n2\n");
    CHECK(contains(ended.err, "is gone: its connection is closed (in step 31)\n"));
    CHECK(contains(ended.err, "rank 5 was lost, on n2: the job goes back into the queue"));
    CHECK(job.file("asked") == "--cpus-per-task=4 --kill-on-bad-exit=1 ./train_gpt --resume auto --depth 4 --out-dir " +
                                   job.scratch / "out" + "\n");
    // The same nodes again; now rank 4 is the first of n3.
    job.program(
        "srun",
        "echo \"$*\" >>" + job.scratch / "asked" + "; " +
            says("error: rank 0: the all-reduce was not over after 600 s; not there yet: rank 4 on another host", 3));
    CHECK(contains(job.run_with("SLURM_RESTART_COUNT=1").err, "on n0 n1 n3\n"));
    CHECK(contains(job.file("asked"), "\n--nodes=3 --ntasks=6 --nodelist=n0,n1,n3 --cpus-per-task=4 "));
    CHECK(job.file("out/lost_nodes") == "n2\nn3\n");
    CHECK(job.file("queue") == "requeue 7\nrequeue 7\n");
}

TEST_CASE("a Slurm job is requeued as often as it may be, and not where that does not help", "[slurm][plain]") {
    const std::string gone = "error: rank 0: rank 1 is gone: its connection is closed";
    const Job often(says(gone, 3));
    const Finished last = often.run_with("SLURM_RESTART_COUNT=10");
    CHECK(last.exit_code == 3);
    CHECK(contains(last.err, "error: a rank was lost, and the job has been requeued 10 times (ANVIL_MAX_REQUEUES)\n"));
    CHECK(often.file("queue") == "");
    CHECK(often.run_with("SLURM_RESTART_COUNT=10 ANVIL_MAX_REQUEUES=11").exit_code == 0);
    CHECK(often.file("queue") == "requeue 7\n");

    const Job nameless(says("error: rank 2: rank 0 was not at n0:29500 within 600 s (--comm-timeout)", 3));
    nameless.run_with();
    CHECK(nameless.file("queue") == "requeue 7\n");
    CHECK(nameless.file("out/lost_nodes") == "");

    const Job wrong(says("error: rank 1: cannot write out/step_5: No space left on device", 137));
    CHECK(wrong.run_with().exit_code == 137);
    CHECK(wrong.file("queue") == "");

    const Job all_lost("exit 0");
    std::filesystem::create_directory(all_lost.scratch / "out");
    std::ofstream(all_lost.scratch / "out/lost_nodes") << "n0\nn1\nn2\nn3\n";
    CHECK(contains(all_lost.run_with().err, "names all nodes of this job"));
    CHECK(all_lost.file("asked") == "");

    for (const std::string reason : {"SIGUSR1", "the last step"}) {
        const Job over("echo '{\"type\":\"end\",\"reason\":\"" + reason +
                       "\"}' >>$(echo \"$*\" | sed 's/.*--out-dir //')/log.jsonl");
        const Finished ended = over.run_with();
        INFO(ended.err);
        CHECK(ended.exit_code == 0);
        CHECK(over.file("queue") == (reason == "SIGUSR1" ? "requeue 7\n" : ""));
    }
}

TEST_CASE("the run's folder is that of the flags, also where a file has them", "[slurm][plain]") {
    for (const std::string line : {"out-dir = \"FOLDER\"  # here", "out_dir='FOLDER'", "  out-dir = FOLDER # here",
                                   "{\"keep\": 2,\n \"out-dir\": \"FOLDER\",\n \"steps\": 3}", ""}) {
        INFO(line);
        const Job job("exit 0");
        const std::string out = job.scratch / "a run";
        std::filesystem::create_directory(out);
        std::ofstream(out + "/log.jsonl") << "{\"type\":\"end\",\"reason\":\"SIGUSR1\"}\n";
        std::string text = line;
        if (!line.empty()) text.replace(line.find("FOLDER"), 6, out);
        std::ofstream(job.scratch / "run.conf") << text << "\n";
        const std::string flags =
            "--config " + job.scratch / "run.conf" + (line.empty() ? " --out_dir '" + out + "'" : "");
        CHECK(job.run_with("", flags).exit_code == 0);
        CHECK(job.file("queue") == "requeue 7\n");
        CHECK(std::filesystem::exists(out + "/lost_nodes"));
    }
}
