/*
All ways of launching ranks, and incomplete settings for each.
*/
#include "llmc/comm/launch/launch.h"
#include <map>
#include "llmc/comm/handshake.h"  // check_alike
#include "llmc/comm/host.h"       // host_identity
#include "llmc/comm/local.h"      // LocalGroup, LocalRanks
#include "test/processes.h"

namespace {

using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables, const LaunchFlags& flags = {}, bool has_mpi = true) {
    return detect_launch(
        flags,
        [&](const char* name) {
            const auto found = variables.find(name);
            return found == variables.end() ? nullptr : found->second.c_str();
        },
        has_mpi);
}

// "2 of 4 at host:port, local 1, by ..."
std::string text(const Launch& launch) {
    std::string s = std::to_string(launch.rank) + " of " + std::to_string(launch.world_size);
    if (launch.meet == Launch::Meet::by_mpi) s += " by MPI";
    if (launch.meet == Launch::Meet::at_address) s += " at " + launch.master;
    if (launch.local_rank >= 0) s += " local " + std::to_string(launch.local_rank);
    if (!launch.run_key.empty()) s += " key " + launch.run_key;
    return s;
}

std::string error(const Variables& variables, const LaunchFlags& flags = {}, bool has_mpi = true) {
    return error_of([&] { detect(variables, flags, has_mpi); });
}

LaunchFlags launcher(const std::string& name) { return {.launcher = name}; }
LaunchFlags master(const std::string& address) { return {.master = address}; }

const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_JOB_ID", "1000"},
                          {"SLURM_STEP_ID", "3"},
                          {"SLURM_STEP_NODELIST", "gpu[07-08],big1"},
                          {"SLURM_JOB_NODELIST", "login,gpu[07-08],big1"}};
const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "0"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "1234"},
                             {"TORCHELASTIC_RUN_ID", "abc"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};

Variables with(Variables variables, const Variables& changes) {
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
}
Variables without(Variables variables, const std::string& name) {
    variables.erase(name);
    return variables;
}

}  // namespace

TEST_CASE("nothing says otherwise: one rank", "[launch]") {
    CHECK(text(detect({})) == "0 of 1");
    CHECK(detect({}).describe() == "1 rank");
    CHECK(text(detect({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "x"}})) == "0 of 1");  // set in somebody's profile
    CHECK(text(detect({{"RANK", ""}, {"WORLD_SIZE", ""}})) == "0 of 1");                // empty is not set
    CHECK(text(detect({}, {.local_rank = 2})) == "0 of 1 local 2");
    CHECK(contains(error({}, master("node1")), "2: --master node1 is given, but nothing says which rank this is"));
}

TEST_CASE("flags say who a rank is", "[launch]") {
    const LaunchFlags full{.rank = 1, .world_size = 4, .local_rank = 0, .master = "node1:2000"};
    CHECK(text(detect({}, full)) == "1 of 4 at node1:2000 local 0");
    CHECK(detect({}, full).describe() == "4 ranks, by --rank and --world-size");
    for (const Variables& other : {kOpenMpi, kPmi, kSlurm, kTorchrun})
        CHECK(text(detect(other, full, false)) == "1 of 4 at node1:2000 local 0");
    CHECK(text(detect({}, {.rank = 0, .world_size = 1})) == "0 of 1");
    CHECK(text(detect({}, {.rank = 0, .world_size = 2, .master = "[::1]"})) == "0 of 2 at [::1]:29500");

    CHECK(contains(error({}, {.rank = 1}), "2: --rank 1 is given without --world-size"));
    CHECK(contains(error({}, {.world_size = 4}), "2: --world-size 4 is given without --rank"));
    CHECK(contains(error({}, {.rank = 4, .world_size = 4, .master = "a"}), "2: --rank 4 is not below --world-size 4"));
    CHECK(contains(error({}, {.rank = 1, .world_size = 4}), "2: --world-size 4 needs --master"));
    CHECK(contains(error({}, {.rank = 1, .world_size = 4, .master = "a", .launcher = "slurm"}),
                   "2: --launcher slurm contradicts --rank and --world-size"));
    CHECK(contains(error({}, launcher("torch")), "2: --launcher torch: expected auto, none, mpi, slurm or torchrun"));
}

TEST_CASE("--interface is for ranks that meet at an address", "[launch]") {
    CHECK(detect({}, {.rank = 0, .world_size = 2, .master = "a", .interface = "eth0"}).interface == "eth0");
    CHECK(detect(kTorchrun, {.interface = "eth0"}).interface == "eth0");
    CHECK(detect(kOpenMpi, {.master = "a", .interface = "eth0"}).interface == "eth0");
    CHECK(contains(error(kOpenMpi, {.interface = "eth0"}),
                   "2: --interface eth0 is for ranks that meet at an address, and MPI connects these"));
}

TEST_CASE("--launcher none is one rank anywhere", "[launch]") {
    for (const Variables& other : {kOpenMpi, kPmi, kSlurm, kTorchrun, Variables{{"RANK", "x"}}})
        CHECK(text(detect(other, launcher("none"))) == "0 of 1");
}

TEST_CASE("Open MPI's mpirun", "[launch]") {
    CHECK(text(detect(kOpenMpi)) == "2 of 4 by MPI local 1");
    CHECK(detect(kOpenMpi).describe() == "4 ranks, by Open MPI's mpirun");
    CHECK(text(detect(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"))) == "2 of 4 by MPI");
    // Alone, and without MPI being started for it
    const Variables alone = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
    CHECK(text(detect(alone)) == "0 of 1");
    CHECK(text(detect(alone, {}, false)) == "0 of 1");
    // What started mpirun may have left more
    for (const Variables& other : {kPmi, kSlurm, without(kTorchrun, "TORCHELASTIC_RUN_ID")})
        CHECK(text(detect(with(other, kOpenMpi))) == "2 of 4 by MPI local 1");
    // An address that is given wins; one that lies around only where there is no MPI
    CHECK(text(detect(kOpenMpi, master("node1"))) == "2 of 4 at node1:29500 local 1");
    CHECK(text(detect(with(kOpenMpi, {{"MASTER_ADDR", "node1"}}))) == "2 of 4 by MPI local 1");
    CHECK(text(detect(with(kOpenMpi, {{"MASTER_ADDR", "node1"}}), {}, false)) == "2 of 4 at node1:29500 local 1");
    CHECK(text(detect(kOpenMpi, {.local_rank = 7})) == "2 of 4 by MPI local 7");

    CHECK(contains(error(kOpenMpi, {}, false),
                   "2: Open MPI's mpirun started 4 ranks, and this build of Anvil has no "
                   "MPI to connect them"));
    CHECK(contains(error(kOpenMpi, {}, false), "or give --master"));
    CHECK(contains(error(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
                   "2: OMPI_COMM_WORLD_RANK is set in the environment and OMPI_COMM_WORLD_SIZE is not"));
    CHECK(contains(error(without(kOpenMpi, "OMPI_COMM_WORLD_RANK")),
                   "2: OMPI_COMM_WORLD_SIZE is set in the environment and OMPI_COMM_WORLD_RANK is not"));
    CHECK(contains(error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
                   "2: OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4"));
    for (const char* wrong : {"-1", "two", "2x", " ", "99999999999999999999"})
        CHECK(contains(error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", wrong}})),
                       "2: OMPI_COMM_WORLD_RANK=" + std::string(wrong) + " in the environment: expected a whole"));
    CHECK(contains(error(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "0"}})), "2: OMPI_COMM_WORLD_SIZE=0"));
}

TEST_CASE("other MPI launchers, by PMI", "[launch]") {
    CHECK(text(detect(kPmi)) == "3 of 4 by MPI local 0");
    CHECK(detect(kPmi).describe() == "4 ranks, by an MPI launcher (PMI)");
    CHECK(text(detect(with(kSlurm, kPmi))) == "3 of 4 by MPI local 0");
    CHECK(contains(error(without(kPmi, "PMI_SIZE")), "2: PMI_RANK is set in the environment and PMI_SIZE is not"));
    CHECK(contains(error(kPmi, {}, false), "2: an MPI launcher (PMI) started 4 ranks, and this build"));
    // Of srun's own PMI variables Slurm's say the same; a helper of mpirun's that srun started has others.
    const Variables same = with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}});
    CHECK(text(detect(same, {}, true)) == "5 of 8 by MPI");
    CHECK(text(detect(same, {}, false)) == text(detect(kSlurm)));
    CHECK(contains(error(with(kSlurm, kPmi), {}, false), "this build of Anvil has no MPI"));
    CHECK(contains(error(with(same, {{"PMI_SIZE", "16"}}), {}, false), "this build of Anvil has no MPI"));
    // A launcher that this process does not know: MPI itself tells the number of ranks.
    CHECK(text(detect({}, launcher("mpi"))) == "0 of 0 by MPI");
    CHECK(text(detect({}, {.master = "a", .launcher = "mpi"})) == "0 of 0 by MPI");
    CHECK(detect({}, launcher("mpi")).describe() == "ranks, by MPI (--launcher mpi)");
    CHECK(contains(error({}, launcher("mpi"), false), "no MPI to connect them"));
    CHECK(text(detect(kOpenMpi, launcher("mpi"))) == "2 of 4 by MPI local 1");
}

TEST_CASE("Slurm's srun", "[launch]") {
    // 12000 + (1000 * 97 + 3) % 20000
    CHECK(text(detect(kSlurm)) == "5 of 8 at gpu07:29003 local 1 key slurm 1000.3");
    CHECK(detect(kSlurm).describe() == "8 ranks, by Slurm's srun");
    CHECK(text(detect(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "6"}}))) ==
          "5 of 6 at gpu07:29003 local 1 key slurm 1000.3");
    CHECK(text(detect(without(kSlurm, "SLURM_STEP_NODELIST"))) == "5 of 8 at login:29003 local 1 key slurm 1000.3");
    CHECK(text(detect(kSlurm, master("big1:80"))) == "5 of 8 at big1:80 local 1 key slurm 1000.3");
    CHECK(text(detect(with(kSlurm, {{"MASTER_PORT", "99"}}))) == "5 of 8 at gpu07:99 local 1 key slurm 1000.3");
    CHECK(text(detect(with(kSlurm, {{"MASTER_ADDR", "big1"}, {"MASTER_PORT", "99"}}))) ==
          "5 of 8 at big1:99 local 1 key slurm 1000.3");
    // What srun did not start is one rank: an interactive shell, a batch script, Slurm's own steps for them.
    CHECK(text(detect(without(kSlurm, "SLURM_STEP_ID"))) == "0 of 1");
    CHECK(text(detect(without(kSlurm, "SLURM_PROCID"))) == "0 of 1");
    for (const char* step : {"4294967290", "4294967291", "batch"})
        CHECK(text(detect(with(kSlurm, {{"SLURM_STEP_ID", step}}))) == "0 of 1");
    CHECK(text(detect(with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}))) == "0 of 1");
    CHECK(text(detect(kSlurm, launcher("slurm"))) == text(detect(kSlurm)));
    CHECK(contains(error(without(kSlurm, "SLURM_STEP_ID"), launcher("slurm")), "2: --launcher slurm: srun did not"));
    CHECK(
        contains(error(without(kSlurm, "SLURM_NTASKS")), "2: SLURM_PROCID is set in the environment and SLURM_NTASKS"));
    CHECK(contains(error(with(kSlurm, {{"SLURM_PROCID", "8"}})), "2: SLURM_PROCID=8 is not below SLURM_NTASKS=8"));
    CHECK(contains(error(without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST")), "says where rank 0"));
    // A script that sets torchrun's variables from Slurm's, and one that means something else
    CHECK(text(detect(with(kSlurm, {{"WORLD_SIZE", "8"}}))) == text(detect(kSlurm)));
    CHECK(text(detect(with(kSlurm, {{"WORLD_SIZE", "8"}, {"RANK", "5"}}))) == text(detect(kSlurm)));
    for (const char* rank : {"5", "21"})
        CHECK(contains(error(with(kSlurm, {{"WORLD_SIZE", "32"}, {"RANK", rank}})),
                       "2: srun says that this is rank 5 of 8, and RANK=" + std::string(rank) + " WORLD_SIZE=32"));
    CHECK(contains(error(with(kSlurm, {{"WORLD_SIZE", "8"}, {"RANK", "6"}})), "choose by --launcher slurm or"));
    // srun starts one torchrun on each node
    CHECK(text(detect(with(kSlurm, kTorchrun))) == "1 of 2 at node1:1234 local 0 key torchrun abc.0");
}

TEST_CASE("torchrun, and its variables set by others", "[launch]") {
    CHECK(text(detect(kTorchrun)) == "1 of 2 at node1:1234 local 0 key torchrun abc.0");
    CHECK(detect(kTorchrun).describe() == "2 ranks, by torchrun");
    // Its agent may listen at that port itself.
    CHECK(text(detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))) ==
          "1 of 2 at node1:1235 local 0 key torchrun abc.0");
    CHECK(text(detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}}))) ==
          "1 of 2 at node1:65534 local 0 key torchrun abc.0");
    const Variables others = without(without(kTorchrun, "TORCHELASTIC_RUN_ID"), "TORCHELASTIC_RESTART_COUNT");
    CHECK(text(detect(others)) == "1 of 2 at node1:1234 local 0");
    CHECK(detect(others).describe() == "2 ranks, by RANK and WORLD_SIZE");
    CHECK(text(detect(without(others, "MASTER_PORT"))) == "1 of 2 at node1:29500 local 0");
    CHECK(text(detect(without(others, "LOCAL_RANK"))) == "1 of 2 at node1:1234");
    CHECK(text(detect(with(others, {{"MASTER_ADDR", "fe80::1"}}))) == "1 of 2 at [fe80::1]:1234 local 0");
    CHECK(text(detect(others, master("big1:80"))) == "1 of 2 at big1:80 local 0");
    CHECK(text(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}})) == "0 of 1");
    CHECK(text(detect(with(kOpenMpi, others), launcher("torchrun"))) == "1 of 2 at node1:1234 local 0");

    CHECK(contains(error(without(others, "WORLD_SIZE")), "2: RANK is set in the environment and WORLD_SIZE is not"));
    CHECK(contains(error(without(others, "RANK")), "2: WORLD_SIZE is set in the environment and RANK is not"));
    CHECK(contains(error({{"LOCAL_RANK", "0"}}), "2: LOCAL_RANK is set in the environment and RANK is not"));
    CHECK(contains(error(without(others, "MASTER_ADDR")), "2: WORLD_SIZE=2 is set in the environment and MASTER_ADDR"));
    CHECK(contains(error(with(others, {{"RANK", "2"}})), "2: RANK=2 is not below WORLD_SIZE=2"));
    CHECK(contains(error(with(others, {{"RANK", "1.5"}})), "2: RANK=1.5 in the environment: expected a whole"));
    CHECK(contains(error(with(others, {{"LOCAL_RANK", "-1"}})), "2: LOCAL_RANK=-1 in the environment"));
    CHECK(contains(error(with(others, {{"MASTER_PORT", "http"}})), "2: MASTER_PORT=http in the environment"));
    CHECK(contains(error(with(others, {{"MASTER_PORT", "65536"}})), "expected a port from 1 to 65535"));
    CHECK(contains(error({}, launcher("torchrun")), "and RANK is not"));
}

// Kubeflow's TrainJob (kubeflow/trainer, pkg/constants/constants.go), SkyPilot, Kubernetes' indexed jobs, and others.
TEST_CASE("copies that cluster software starts are ranks, or an error, and never runs of their own", "[launch]") {
    const Variables pet = {{"PET_NNODES", "2"},          {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "1"},  {"PET_MASTER_ADDR", "job-node-0-0.job"},
                           {"PET_MASTER_PORT", "29400"}, {"JOB_COMPLETION_INDEX", "1"}};
    CHECK(text(detect(pet)) == "1 of 2 at job-node-0-0.job:29400");
    CHECK(detect(pet).describe() == "2 ranks, by torchrun's defaults (PET_NODE_RANK and PET_NNODES)");
    CHECK(text(detect(without(pet, "PET_MASTER_PORT"))) == "1 of 2 at job-node-0-0.job:29500");
    CHECK(text(detect(pet, master("big1:80"))) == "1 of 2 at big1:80");
    CHECK(text(detect(with(pet, {{"PET_NPROC_PER_NODE", "auto"}}))) == "1 of 2 at job-node-0-0.job:29400");
    CHECK(text(detect(with(pet, {{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}}))) == "0 of 1");
    CHECK(text(detect(with(pet, kTorchrun))) ==
          "1 of 2 at node1:1234 local 0 key torchrun abc.0");  // torchrun in a pod
    CHECK(text(detect(pet, launcher("none"))) == "0 of 1");
    CHECK(contains(error(with(pet, {{"PET_NPROC_PER_NODE", "8"}})),
                   "2: PET_NPROC_PER_NODE=8 in the environment asks for several processes on each host, and this "
                   "command is one: set it to 1"));
    CHECK(contains(error(without(pet, "PET_MASTER_ADDR")), "2: PET_NNODES=2 is set in the environment and PET_MASTER"));
    CHECK(contains(error(without(pet, "PET_NODE_RANK")), "2: PET_NNODES is set in the environment and PET_NODE_RANK"));
    CHECK(
        contains(error(with(pet, {{"PET_NNODES", "1:4"}})), "2: PET_NNODES=1:4 in the environment: expected a whole"));

    const Variables sky = {{"SKYPILOT_NUM_NODES", "2"},
                           {"SKYPILOT_NODE_RANK", "1"},
                           {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n"},
                           {"SKYPILOT_NUM_GPUS_PER_NODE", "8"}};
    CHECK(text(detect(sky)) == "1 of 2 at 10.0.0.1:29500");
    CHECK(detect(sky).describe() == "2 ranks, by SkyPilot, one on each host");
    CHECK(text(detect(with(sky, {{"MASTER_PORT", "8008"}}))) == "1 of 2 at 10.0.0.1:8008");
    CHECK(text(detect(with(sky, {{"SKYPILOT_NODE_IPS", "fd00::1\nfd00::2"}}))) == "1 of 2 at [fd00::1]:29500");
    CHECK(text(detect(with(sky, {{"SKYPILOT_NUM_NODES", "1"}, {"SKYPILOT_NODE_RANK", "0"}}))) == "0 of 1");
    CHECK(contains(error(without(sky, "SKYPILOT_NODE_IPS")), "SKYPILOT_NODE_IPS is not: give --master HOST:PORT"));
    CHECK(contains(error(without(sky, "SKYPILOT_NODE_RANK")), "SKYPILOT_NODE_RANK is not"));

    for (const char* index : {"JOB_COMPLETION_INDEX", "VC_TASK_INDEX"}) {
        const Variables pod = {{index, "1"}};
        CHECK(contains(error(pod), "2: " + std::string(index) +
                                       "=1 in the environment says that this is a pod of an "
                                       "indexed job, and not how many there are: give --world-size"));
        CHECK(text(detect(pod, launcher("none"))) == "0 of 1");
        CHECK(text(detect(pod, {.world_size = 4, .master = "job-0.svc"})) == "1 of 4 at job-0.svc:29500");
        CHECK(text(detect(pod, {.rank = 3, .world_size = 4, .master = "job-0.svc"})) == "3 of 4 at job-0.svc:29500");
        CHECK(contains(error({{index, "4"}}, {.world_size = 4, .master = "a"}),
                       std::string(index) + " 4 is not below --world-size 4"));
        CHECK(text(detect(with(pod, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}))) == "0 of 1");  // the user has said it
    }
    for (const char* count : {"AWS_BATCH_JOB_NUM_NODES", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE",
                              "LEPTON_JOB_TOTAL_WORKERS", "MV2_COMM_WORLD_SIZE"}) {
        CHECK(text(detect({{count, "1"}})) == "0 of 1");
        CHECK(contains(error({{count, "2"}}), "2: " + std::string(count) +
                                                  "=2 in the environment says that this is "
                                                  "one of several processes"));
        CHECK(text(detect({{count, "2"}}, launcher("none"))) == "0 of 1");
        CHECK(text(detect(with(kOpenMpi, {{count, "4"}}))) == text(detect(kOpenMpi)));
    }
    CHECK(contains(error({{"SM_HOSTS", "[\"algo-1\",\"algo-2\"]"}}), "2: SM_HOSTS="));
    CHECK(text(detect({{"SM_HOSTS", "[\"algo-1\"]"}})) == "0 of 1");
}

TEST_CASE("addresses", "[launch]") {
    const auto parts = [](const std::string& address) {
        const Address a = parse_address(address);
        return a.host + " " + std::to_string(a.port);
    };
    CHECK(parts("node1") == "node1 29500");
    CHECK(parts("node1.example:1") == "node1.example 1");
    CHECK(parts("10.0.0.1:65535") == "10.0.0.1 65535");
    CHECK(parts("::1") == "::1 29500");
    CHECK(parts("[::1]") == "::1 29500");
    CHECK(parts("[fe80::1]:80") == "fe80::1 80");
    for (const char* wrong : {"", ":80", "[", "[]", "[]:80", "[::1", "[::1]80"})
        CHECK(contains(error_of([&] { parse_address(wrong); }), "expected HOST or HOST:PORT"));
    CHECK(parts("[fe80::1%eth0]:80") == "fe80::1%eth0 80");
    CHECK(parts("my_host-1") == "my_host-1 29500");
    for (const char* wrong : {"no such host:80", "10.0.0.300", "10.0.0.1.2:80", "[::1::2]:80", "a/b"})
        CHECK(contains(error_of([&] { parse_address(wrong); }), " is neither the name nor the number of a host"));
    for (const char* wrong : {"a:", "a:0", "a:65536", "a:-1", "a:http", "a:80x", "[::1]:"})
        CHECK(contains(error_of([&] { parse_address(wrong); }), "expected a port from 1 to 65535"));
}

TEST_CASE("Slurm's lists of nodes", "[launch]") {
    CHECK(first_slurm_host("node7") == "node7");
    CHECK(first_slurm_host("node7,node8") == "node7");
    CHECK(first_slurm_host("node[007-019,022],other") == "node007");
    CHECK(first_slurm_host("node[3]") == "node3");
    CHECK(first_slurm_host("node[5,7-9]") == "node5");
    CHECK(first_slurm_host("rack[1-2]n[01-16]-ib,x") == "rack1n01-ib");
    CHECK(contains(error_of([] { first_slurm_host("node[1-2"); }), "has a [ without a ]"));
}

TEST_CASE("one rank joins nobody", "[launch]") {
    const std::unique_ptr<Ranks> ranks = join(detect({}, {.local_rank = 3}), 1);
    CHECK(ranks->world_size == 1);
    CHECK(ranks->device == 3);
    CHECK(ranks->watchdog() == nullptr);
    CHECK(ranks->all_gather("x") == std::vector<std::string>{"x"});
    CHECK(ranks->host_ranks == std::vector<int>{0});
}

TEST_CASE("hosts are told apart", "[launch]") {
    CHECK(host_identity() == host_identity());
    CHECK(host_identity().size() == 16);
    OneRank ranks;
    ranks.rank = 3, ranks.world_size = 6;
    ranks.set_hosts({"b", "a", "b", "a", "a", "c"});
    CHECK(ranks.host_ranks == std::vector<int>{1, 3, 4});
    CHECK(ranks.local_rank == 1);
    CHECK(ranks.device == 1);
    CHECK(ranks.local_size == 3);
    CHECK(ranks.num_hosts == 3);
}

TEST_CASE("ranks that are about to do different things are told so, all of them", "[launch]") {
    using Values = std::vector<std::pair<std::string, std::string>>;
    // The Errors of all ranks, where rank r brings values(r)
    const auto errors = [](int world_size, const std::function<Values(int)>& values) {
        std::vector<std::string> all(static_cast<size_t>(world_size));
        LocalGroup group(world_size);
        group.run([&](int rank) {
            LocalRanks ranks(group, rank);
            check_connected(ranks);
            all[size_t(rank)] = error_of([&] { check_alike(ranks, values(rank)); });
        });
        for (const std::string& each : all) CHECK(each == all[0]);
        return all[0];
    };
    const std::string advice = "; start all ranks with the same program, flags and data";
    CHECK(errors(4, [](int) { return Values{{"build", "1"}, {"seed", ""}}; }) == "");
    CHECK(errors(3, [](int) { return Values{}; }) == "");
    CHECK(errors(4, [](int r) { return Values{{"build", "1"}, {"seed", r == 2 ? "7" : "8"}}; }) ==
          "2: the ranks differ in seed: it is 7 on rank 2, and 8 on rank 0" + advice);
    CHECK(errors(4, [](int r) { return Values{{"build", r == 0 ? "1" : "2"}, {"seed", "8"}}; }) ==
          "2: the ranks differ in build: it is 1 on rank 0, and 2 on rank 1" + advice);
    CHECK(errors(2, [](int r) { return Values{{"seed", r ? "7" : "8"}}; }) ==
          "2: the ranks differ in seed: it is 7 on rank 1, and 8 on rank 0" + advice);
    // The lowest rank first, then the order in which the values are given
    CHECK(errors(5, [](int r) { return Values{{"a", r == 3 ? "x" : "y"}, {"b", r == 1 ? "x" : "y"}}; }) ==
          "2: the ranks differ in b: it is x on rank 1, and y on rank 0" + advice);
    CHECK(errors(3, [](int r) { return Values{{"b", r == 1 ? "x" : "y"}, {"a", r == 1 ? "x" : "y"}}; }) ==
          "2: the ranks differ in b: it is x on rank 1, and y on rank 0" + advice);
    CHECK(errors(3, [](int r) { return r == 1 ? Values{{"a", "x"}} : Values{{"a", "x"}, {"b", "y"}}; }) ==
          "2: the ranks differ in b: it is unknown on rank 1, and y on rank 0" + advice);
}
