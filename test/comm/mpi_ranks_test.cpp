/*
Ranks that mpirun starts, each of which runs a hidden test of this program.
*/
#include "llmc/comm/launch/mpi_ranks.h"
#include <signal.h>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include "llmc/comm/handshake.h"      // check_alike, check_connected
#include "llmc/comm/launch/launch.h"  // detect_launch, join
#include "llmc/comm/watchdog.h"       // Watchdog
#include "test/processes.h"
#include "test/test_clock.h"  // sleep_s

namespace {

std::unique_ptr<Ranks> join_all(double timeout_s = 30) { return join(detect_launch({}), timeout_s); }

// What main() does with an Error. `ranks` must be the body's own, so that it is gone before.
template <class Body>
void as_main_would(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        std::exit(error.exit_code);
    }
}

}  // namespace

TEST_CASE("each MPI rank: exchange", "[.rank]") {
    const Launch launch = detect_launch({});
    CHECK(launch.meet == Launch::Meet::by_mpi);
    const std::unique_ptr<Ranks> ranks = join(launch, 30);
    CHECK(ranks->rank == launch.rank);
    CHECK(ranks->world_size == launch.world_size);
    CHECK(ranks->local_rank == ranks->rank);
    CHECK(ranks->local_size == ranks->world_size);
    CHECK(ranks->num_hosts == 1);
    check_connected(*ranks);
    for (const size_t bytes : {size_t(0), size_t(1), size_t(3'000'000)}) {
        const auto record = [&](int r) { return std::string(bytes * size_t(r + 1), char('a' + r)); };
        const std::vector<std::string> records = ranks->all_gather(record(ranks->rank));
        REQUIRE(int(records.size()) == ranks->world_size);
        for (int r = 0; r < ranks->world_size; r++) CHECK(records[size_t(r)] == record(r));
    }
    for (int i = 0; i < 200; i++) {
        const int root = i % ranks->world_size;
        REQUIRE(ranks->broadcast(std::to_string(ranks->rank * 1000 + i), root) == std::to_string(root * 1000 + i));
    }
}

TEST_CASE("ranks under mpirun exchange records", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    for (const int n : {2, 4}) {
        const Finished ended = mpirun(n, this_test("each MPI rank: exchange"));
        INFO(ended.out << ended.err);
        CHECK(ended.exit_code == 0);
    }
}

TEST_CASE("each MPI rank: one dies", "[.rank]") {
    const std::unique_ptr<Ranks> ranks = join_all();
    std::signal(SIGTERM, SIG_IGN);  // mpirun's, to those who are left: as train_gpt, which would go on to a checkpoint
    ranks->watchdog()->add_hook([&](const std::string& why) {
        if (const char* folder = std::getenv("ANVIL_TEST_FOLDER"))
            std::ofstream(folder + ("/" + std::to_string(ranks->rank))) << why;
    });
    ranks->barrier();  // all have the hook before one dies
    if (ranks->rank == std::atoi(std::getenv("ANVIL_TEST_VICTIM"))) raise(SIGKILL);
    if (std::getenv("ANVIL_TEST_BUSY")) sleep_s(30);
    ranks->barrier();
    sleep_s(30);
}

TEST_CASE("under mpirun, a rank that dies ends all others", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    // Whether they wait for each other or are busy with something else, all others know at once who it was: mpirun
    // kills after 4 s whoever has not, and then the file with its words is missing.
    for (const auto& [victim, busy] : {std::pair(0, std::string("ANVIL_TEST_BUSY=1 ")), std::pair(2, std::string())}) {
        const ScratchFolder scratch;
        const Finished ended =
            mpirun(3, "--mca odls_base_sigkill_timeout 4 env " + busy + "ANVIL_TEST_VICTIM=" + std::to_string(victim) +
                          " ANVIL_TEST_FOLDER=" + scratch.path + " " + this_test("each MPI rank: one dies"));
        INFO("rank " << victim << " " << busy << ended.out << ended.err);
        CHECK(ended.exit_code != 0);
        CHECK(ended.exit_code != 124);  // that of the time limit
        for (int rank = 0; rank < 3; rank++) {
            if (rank == victim) continue;
            const std::string words = read_file(scratch / std::to_string(rank));
            CHECK(contains(words, "rank " + std::to_string(victim) + " is gone: its connection is closed"));
        }
    }
}

TEST_CASE("each MPI rank: they differ", "[.rank]") {
    as_main_would([] {
        const std::unique_ptr<Ranks> ranks = join_all();
        check_alike(*ranks, {{"seed", ranks->rank == 1 ? "7" : "8"}});
    });
}

TEST_CASE("under mpirun, errors are said and give the exit code", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    const Finished ended = mpirun(3, this_test("each MPI rank: they differ"), 20);
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == kExitUsage);
    CHECK(contains(ended.err, "error: the ranks differ in seed: it is 7 on rank 1, and 8 on rank 0"));
}

TEST_CASE("each MPI rank: one fails", "[.rank]") {
    as_main_would([] {
        const std::unique_ptr<Ranks> ranks = join_all();
        if (ranks->rank == 1) throw Error(kExitUsage, "no space");
        ranks->barrier();
    });
}

TEST_CASE("under mpirun, an error of one rank ends all", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    const Finished ended = mpirun(3, this_test("each MPI rank: one fails"), 20);
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == kExitUsage);
    CHECK(contains(ended.err, "error: no space"));
}

TEST_CASE("each MPI rank: one does not come", "[.rank]") {
    const std::unique_ptr<Ranks> ranks = join_all(8);  // also how long starting them may take
    ranks->watchdog()->set_step(3);
    if (ranks->rank == 2) sleep_s(30);
    ranks->barrier();
}

TEST_CASE("under mpirun, a rank that does not come is named", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    const Finished ended = mpirun(3, this_test("each MPI rank: one does not come"), 40);
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == kExitRank);
    // Rank 0 alone knows who is missing; rank 1 has waited as long, and may be the first to say so.
    const std::string late = "the exchange of records in step 3 was not over after 8 s";
    CHECK((contains(ended.err, "error: rank 0: " + late + "; not there yet: rank 2\n") ||
           contains(ended.err, "error: rank 1: " + late + "; not there yet: rank 0, or whom it waits for\n")));
}

TEST_CASE("each MPI rank: another size", "[.rank]") {
    as_main_would([] { join_mpi(5, 30, [] { return static_cast<const char*>(nullptr); }); });
}

TEST_CASE("an mpirun that is not of the MPI library's is an error", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    const Finished ended = mpirun(2, this_test("each MPI rank: another size"), 20);
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == kExitUsage);
    CHECK(contains(ended.err, "error: the launcher started 5 ranks, and the MPI library of this build sees 2"));
    // As it comes about: a process that mpirun of another kind has started
    const Finished alone =
        run("PMI_RANK=1 PMI_SIZE=2 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
            "timeout 20 " +
            this_test("each MPI rank: they differ"));
    INFO(alone.out << alone.err);
    CHECK(alone.exit_code == kExitUsage);
    CHECK(contains(alone.err, "error: the launcher started 2 ranks, and the MPI library of this build sees 1"));
}

TEST_CASE("each MPI rank: over TCP", "[.rank]") {
    const char* master = std::getenv("ANVIL_TEST_MASTER");
    REQUIRE(master);
    LaunchFlags flags;
    flags.master = master;
    const Launch launch = detect_launch(flags);
    CHECK(launch.meet == Launch::Meet::at_address);
    check_connected(*join(launch, 20));
}

TEST_CASE("under mpirun, ranks can meet over TCP", "[mpi_ranks][mpi]") {
    if (!has_mpi()) return;
    const std::string with = "env ANVIL_TEST_MASTER=localhost:" + std::to_string(free_port()) + " ";
    const Finished ended = mpirun(3, with + this_test("each MPI rank: over TCP"), 20);
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == 0);
}
