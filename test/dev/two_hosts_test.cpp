// dev/two_hosts.sh, dev/two_disks.sh and dev/two_pods.sh: ranks on two hosts, which are network namespaces of this
// machine, joined by a link of known speed.
#include <cstdlib>
#include "test/processes.h"  // has_mpi
#include "test/testing.h"

namespace {

const std::string kScript = "dev/two_hosts.sh";

std::string programs() {
    const std::string train = program("train_gpt");
    return "ANVIL_PROGRAMS=" + train.substr(0, train.size() - std::string("train_gpt").size()) + " ";
}

// The message of a script that something is missing here, such as root privileges.
bool is_skipped(const Finished& ended) {
    if (ended.exit_code == 2) WARN("skipped: " << ended.err);
    return ended.exit_code == 2;
}

std::string namespaces() { return run("ip netns list 2>&1; ip link show type veth 2>&1").out; }

}  // namespace

// [plain]: the sanitizers watch the same exchange in test/comm/tcp_network_test.cpp and mpi_network_test.cpp.
TEST_CASE("two hosts exchange at the speed of their line, and a slow one is named", "[two_hosts][plain][slow]") {
    program("data/tokenize");
    const std::string before = namespaces();
    const Finished ended = run(programs() + "timeout 300 " + kScript + " --rate 400mbit --steps 10");
    CHECK(namespaces() == before);
    if (is_skipped(ended)) return;
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    CHECK(contains(ended.out, "shared memory and TCP, 2 ranks on 2 hosts"));
    const char* const row = "| bytes that a host sends, MB | ";
    const size_t at = ended.out.find(row);
    REQUIRE(at != std::string::npos);
    double computed = 0, measured = 0;
    REQUIRE(std::sscanf(ended.out.c_str() + at + std::string(row).size(), "%lf | %lf", &computed, &measured) == 2);
    // Half of gradients and of weights and no more: Ethernet, IP and TCP take 66 bytes of 1514 or less,
    // acknowledgements of the other direction as much again for every second packet; a step that was cut in two at the
    // first or last reading is one of six.
    CHECK(measured > computed * 5 / 6);
    CHECK(measured < computed * (1 + 66. / 1448 + 33. / 1448) * 7 / 6);
    CHECK(contains(ended.out, "warning: rank 1 is slow"));
}

TEST_CASE("two hosts that mpirun joins exchange by MPI", "[two_hosts][plain][slow]") {
    if (!has_mpi()) return;
    program("data/tokenize");
    const Finished ended =
        run(programs() + "timeout 300 " + kScript + " --rate 400mbit --launcher mpi --only-collectives");
    if (is_skipped(ended)) return;
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    CHECK(contains(ended.out, "shared memory and MPI, 2 ranks on 2 hosts"));
    CHECK(contains(ended.out, "| all-reduce | 16384 |"));
}

// The commands of doc/tutorials/two_machines.md, with a smaller model, and with flags to test the loss of a side.
TEST_CASE("two machines without a common folder go on after losing either, with the losses of one process",
          "[two_hosts][plain][slow]") {
    program("data/tokenize");
    const std::string before = namespaces();
    const Finished ended = run(programs() + "timeout 300 dev/two_disks.sh --small");
    CHECK(namespaces() == before);
    if (is_skipped(ended)) return;
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    CHECK(contains(ended.out, "both with rank 0 on beta to 50 | 1 to 50 | all bits |"));
    CHECK(contains(ended.out, "| three ranks on both, and three virtual ranks in one process | 51 to 80 | all bits |"));
    CHECK(contains(ended.out, "The weights of step 50 are those of one process, bit for bit."));
}

TEST_CASE("two pods of each cluster's file train to the bits of one process, and go on after one is lost",
          "[two_hosts][plain][slow]") {
    program("data/tokenize");
    const std::string before = namespaces();
    const Finished ended = run(programs() + "timeout 600 dev/two_pods.sh");
    CHECK(namespaces() == before);
    if (is_skipped(ended)) return;
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    for (const std::string file : {"trainjob.yaml", "indexed_job.yaml", "jobset.yaml", "skypilot.yaml", "slurm.sh"})
        CHECK(contains(ended.out, file + ": two pods have the bits of one process; one was lost"));
    CHECK(contains(ended.out, has_mpi() ? "mpijob.yaml: two pods" : "mpijob.yaml: left out"));
}

TEST_CASE("two_hosts says what is missing, and leaves nothing when it is interrupted", "[two_hosts]") {
    const auto refused = [](const std::string& command, const std::string& why) {
        const Finished ended = run(command);
        INFO(ended.err);
        CHECK(ended.exit_code == 2);
        CHECK(ended.err.starts_with("error: "));
        CHECK(contains(ended.err, why));
    };
    program("data/tokenize");
    refused(kScript + " --rate fast", "--rate 'fast'");
    refused(kScript + " --rate gbit", "--rate 'gbit'");
    refused(kScript + " --steps few", "--steps 'few'");
    refused(kScript + " --launcher ssh", "--launcher 'ssh'");
    refused("dev/two_disks.sh --slow", "--slow: expected --small");
    refused("ANVIL_PROGRAMS=/nowhere/ " + kScript, "/nowhere/train_gpt is missing");
    // A folder of all commands but one, and with one that a small system may not have.
    const ScratchFolder commands;
    run("for folder in /usr/sbin /usr/bin /sbin /bin; do ln -s $folder/* " + commands.path + "; done; rm -f " +
        commands.path + "/tc; ln -sf /bin/true " + commands.path + "/ip");
    refused(programs() + "PATH=" + commands.path + " " + kScript, "tc is missing");

    const std::string before = namespaces();
    const Finished stopped = run(programs() + "timeout --signal=INT 4 " + kScript);
    CHECK(namespaces() == before);
    if (stopped.exit_code == 2) return;
    CHECK(stopped.exit_code == 124);  // timeout's own: it had to send the signal
    CHECK_FALSE(contains(stopped.out, "| bytes that a host sends"));
}
