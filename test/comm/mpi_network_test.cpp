/*
Collectives between hosts over MPI, with ranks that mpirun starts on this machine and that act as several hosts.
*/
#include "llmc/comm/host/host_comm.h"  // HostComm
#include "llmc/comm/launch/launch.h"   // detect_launch, join
#include "test/comm/collectives.h"     // check_collectives
#include "test/processes.h"            // has_mpi, mpirun, this_test

TEST_CASE("each MPI rank: hosts", "[.rank]") {
    const std::unique_ptr<Ranks> ranks = join(detect_launch({}), 60);
    const std::string hosts = std::getenv("ANVIL_TEST_HOSTS");
    Cpu cpu(1);
    HostCommOptions options;
    options.host = hosts.substr(size_t(ranks->rank), 1);
    HostComm comm(*ranks, cpu, std::move(options));
    for (const bool shared : {true, false})
        for (const int64_t shard : {0, 1, 1000, 100003}) check_collectives(comm, hosts, shared, shard);
    check_collectives(comm, hosts, true, (2 << 20) + 3);  // more than one piece of 8 MB
    ranks->barrier();
}

TEST_CASE("hosts exchange over MPI", "[mpi_network][mpi]") {
    if (!has_mpi()) return;
    for (const std::string hosts : {"01", "00", "0011", "0111", "0101"}) {
        const Finished ended =
            mpirun(int(hosts.size()), "env ANVIL_TEST_HOSTS=" + hosts + " " + this_test("each MPI rank: hosts"), 120);
        INFO(hosts << ": " << ended.out << ended.err);
        CHECK(ended.exit_code == 0);
    }
}
