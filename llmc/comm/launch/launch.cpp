// See launch.h.
#include "llmc/comm/launch/launch.h"
#include <arpa/inet.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include "llmc/base/check.h"          // require, format
#include "llmc/comm/host.h"           // host_identity
#include "llmc/comm/tcp/tcp_ranks.h"  // TcpRanks

namespace {

struct Numbers {
    int rank, world_size, local_rank;
};

// Variables that launchers without a section of their own set to the number of processes or hosts.
constexpr const char* kCounts[] = {"AWS_BATCH_JOB_NUM_NODES", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE",
                                   "LEPTON_JOB_TOTAL_WORKERS", "MV2_COMM_WORLD_SIZE"};
// Variables that number the copies of a job and do not say how many there are.
constexpr const char* kIndices[] = {"JOB_COMPLETION_INDEX", "VC_TASK_INDEX"};

class Detector {
public:
    Detector(const LaunchFlags& flags, const Environment& environment, bool has_mpi)
        : flags_(flags), environment_(environment), has_mpi_(has_mpi) {}

    Launch launch() const {
        require(launcher_is("auto") || launcher_is("none") || launcher_is("mpi") || launcher_is("slurm") ||
                    launcher_is("torchrun"),
                "--launcher %s: expected auto, none, mpi, slurm or torchrun", flags_.launcher.c_str());
        if (flags_.rank >= 0 || flags_.world_size > 0) return by_flags();
        Launch launch;
        if (launcher_is("none")) {
            launch.local_rank = flags_.local_rank;
            launch.source = "--launcher none";
        } else if (launcher_is("auto")) {
            launch = by_environment();
        } else {
            launch = launcher_is("mpi") ? by_mpi() : launcher_is("slurm") ? by_slurm() : by_torchrun();
        }
        require(flags_.master.empty() || launch.world_size != 1 || !launch.source.empty(),
                "--master %s is given, but nothing says which rank this is: give --rank and --world-size as well",
                flags_.master.c_str());
        return launch;
    }

private:
    const LaunchFlags& flags_;
    const Environment& environment_;
    const bool has_mpi_;

    bool launcher_is(const char* name) const { return flags_.launcher == name; }

    std::string text(const char* name) const {
        const char* value = environment_(name);
        return value ? value : "";
    }
    bool has(const char* name) const { return !text(name).empty(); }

    int number(const char* name, int64_t least) const {
        const std::string value = text(name);
        char* end = nullptr;
        errno = 0;
        const long long found = std::strtoll(value.c_str(), &end, 10);
        require(end != value.c_str() && !*end && !errno && found >= least && found < (1 << 30),
                "%s=%s in the environment: expected a whole number of at least %ld; give --launcher none to run as one "
                "rank whatever the environment says",
                name, value.c_str(), long(least));
        return int(found);
    }

    // Rank, size and local rank from three variables, of which only the last may be missing.
    Numbers numbers(const char* rank_name, const char* size_name, const char* local_name) const {
        for (const auto& [name, other] : {std::pair(rank_name, size_name), std::pair(size_name, rank_name)})
            require(has(name),
                    "%s is set in the environment and %s is not: set it too, or give --launcher none to run as one "
                    "rank",
                    has(other) ? other : local_name, name);
        const Numbers n{number(rank_name, 0), number(size_name, 1),
                        flags_.local_rank >= 0 ? flags_.local_rank
                        : has(local_name)      ? number(local_name, 0)
                                               : -1};
        require(n.rank < n.world_size,
                "%s=%d is not below %s=%d in the environment: ranks are numbered from 0; give --launcher none to run "
                "as one rank",
                rank_name, n.rank, size_name, n.world_size);
        return n;
    }

    static Launch make(const Numbers& n, const char* source) {
        Launch launch;
        launch.rank = n.rank, launch.world_size = n.world_size, launch.local_rank = n.local_rank;
        launch.source = source;
        return launch;
    }

    // Completes a launch whose ranks meet at an address. `master` may be "" if there is one rank.
    Launch meet_at(Launch launch, const std::string& master) const {
        if (launch.world_size == 1) return launch;
        const Address address = parse_address(master);
        launch.meet = Launch::Meet::at_address;
        launch.secret = given_secret(environment_);
        launch.master = address_text(address.host, address.port);
        return launch;
    }

    // --master, else MASTER_ADDR with MASTER_PORT, else "".
    std::string given_master() const {
        if (!flags_.master.empty() || !has("MASTER_ADDR")) return flags_.master;
        int port = given_port("MASTER_PORT");
        // If torchrun's agent has its own store at that port, rank 0 cannot listen there and takes the next port.
        if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") port += port < 65535 ? 1 : -1;
        return address_text(text("MASTER_ADDR"), port);
    }
    int given_port(const char* name) const { return has(name) ? number(name, 1) : kDefaultPort; }
    static std::string address_text(const std::string& host, int port) {
        return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
    }

    Launch by_flags() const {
        require(launcher_is("auto"), "--launcher %s contradicts --rank and --world-size: give the one or the other",
                flags_.launcher.c_str());
        require(flags_.world_size > 0, "--rank %d is given without --world-size: say how many ranks there are",
                flags_.rank);
        const char* index = nullptr;
        for (const char* name : kIndices)
            if (has(name)) index = name;
        const int rank = flags_.rank < 0 && index ? number(index, 0) : flags_.rank;
        require(rank >= 0,
                "--world-size %d is given without --rank: say which rank this is, from 0 to %d; every rank is started "
                "by its own command",
                flags_.world_size, flags_.world_size - 1);
        require(rank < flags_.world_size, "%s %d is not below --world-size %d: ranks are numbered from 0",
                flags_.rank < 0 ? index : "--rank", rank, flags_.world_size);
        require(flags_.world_size == 1 || !flags_.master.empty(),
                "--world-size %d needs --master HOST:PORT, where rank 0 runs (localhost:%d if all run here)",
                flags_.world_size, kDefaultPort);
        return meet_at(
            make({rank, flags_.world_size, flags_.local_rank}, flags_.rank < 0 ? "--world-size and the pod's index"
                                                               : flags_.nproc_per_node > 0 ? "--nproc-per-node"
                                                                                           : "--rank and --world-size"),
            flags_.master);
    }

    Launch by_environment() const {
        if (has("TORCHELASTIC_RUN_ID")) return by_torchrun();
        if (has_ompi()) return by_mpi();
        if (has_pmi()) {
            // srun can set PMI's variables, too. Without MPI in the build, Slurm's variables serve as well, if they are
            // this process's and not those of an mpirun helper that srun started.
            const bool same = is_srun_task() && text("PMI_RANK") == text("SLURM_PROCID") &&
                              text("PMI_SIZE") == std::to_string(slurm_numbers().world_size);
            return same && !has_mpi_ ? by_slurm() : by_mpi();
        }
        const bool has_torchrun = has("RANK") || has("LOCAL_RANK") || has("WORLD_SIZE");
        if (is_srun_task() && slurm_numbers().world_size > 1) {
            const Numbers slurm = slurm_numbers();
            require(!has("RANK") || (text("RANK") == std::to_string(slurm.rank) &&
                                     (!has("WORLD_SIZE") || text("WORLD_SIZE") == std::to_string(slurm.world_size))),
                    "srun says that this is rank %d of %d, and RANK=%s WORLD_SIZE=%s in the environment say otherwise: "
                    "choose by --launcher slurm or --launcher torchrun",
                    slurm.rank, slurm.world_size, text("RANK").c_str(), text("WORLD_SIZE").c_str());
            return by_slurm();
        }
        if (has_torchrun) return by_torchrun();
        if (has("PET_NODE_RANK") || has("PET_NNODES")) return by_torchrun_defaults();
        if (has("SKYPILOT_NODE_RANK") || has("SKYPILOT_NUM_NODES")) return by_skypilot();
        check_alone();
        Launch alone;
        alone.local_rank = flags_.local_rank;
        return alone;
    }

    // One process that others may be copies of must not train alone.
    void check_alone() const {
        for (const char* name : kCounts)
            require(!has(name) || number(name, 0) <= 1,
                    "%s=%s in the environment says that this is one of several processes, and not how they meet: give "
                    "each --rank, --world-size and --master, or --launcher none to run as one rank",
                    name, text(name).c_str());
        for (const char* name : kIndices)
            require(!has(name),
                    "%s=%s in the environment says that this is a pod of an indexed job, and not how many there are: "
                    "give --world-size, the number of pods, and --master, the host of pod 0 (the rank is %s then), or "
                    "--launcher none if each pod is a run of its own",
                    name, text(name).c_str(), name);
        require(text("SM_HOSTS").find(',') == std::string::npos,
                "SM_HOSTS=%s in the environment says that this is one of several processes, and not which: give each "
                "--rank, --world-size and --master, or --launcher none to run as one rank",
                text("SM_HOSTS").c_str());
    }

    // torchrun's defaults (Kubeflow's TrainJob sets them), without torchrun: they number hosts, each with one process.
    Launch by_torchrun_defaults() const {
        const std::string per_host = text("PET_NPROC_PER_NODE");
        require(per_host == "1" || per_host.empty() || !std::isdigit(static_cast<unsigned char>(per_host[0])),
                "PET_NPROC_PER_NODE=%s in the environment asks for several processes on each host, and this "
                "command is one: set it to 1 (numProcPerNode of a TrainJob)",
                per_host.c_str());
        const Launch launch = make(numbers("PET_NODE_RANK", "PET_NNODES", "LOCAL_RANK"),
                                   "torchrun's defaults (PET_NODE_RANK and PET_NNODES)");
        std::string master = flags_.master;
        if (master.empty() && has("PET_MASTER_ADDR"))
            master = address_text(text("PET_MASTER_ADDR"), given_port("PET_MASTER_PORT"));
        if (master.empty()) master = given_master();
        require(launch.world_size == 1 || !master.empty(),
                "PET_NNODES=%d is set in the environment and PET_MASTER_ADDR is not: set it to the host of rank 0, or "
                "give --master HOST:PORT",
                launch.world_size);
        return meet_at(launch, master);
    }

    // SkyPilot runs a task's commands once on each host.
    Launch by_skypilot() const {
        const Launch launch =
            make(numbers("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "LOCAL_RANK"), "SkyPilot, one on each host");
        std::string master = given_master();
        const std::string hosts = text("SKYPILOT_NODE_IPS");  // one a line
        if (master.empty() && !hosts.empty())
            master = address_text(hosts.substr(0, hosts.find_first_of(" \r\n")), given_port("MASTER_PORT"));
        require(launch.world_size == 1 || !master.empty(),
                "SKYPILOT_NUM_NODES=%d is set in the environment and SKYPILOT_NODE_IPS is not: give --master "
                "HOST:PORT, where rank 0 runs",
                launch.world_size);
        return meet_at(launch, master);
    }

    bool has_ompi() const { return has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE"); }
    bool has_pmi() const { return has("PMI_RANK") || has("PMI_SIZE"); }

    Launch by_mpi() const {
        Launch launch;
        if (has_ompi())
            launch = make(numbers("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
                          "Open MPI's mpirun");
        else if (has_pmi())
            launch = make(numbers("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"), "an MPI launcher (PMI)");
        else  // a launcher whose ranks and sizes only its MPI library knows
            launch = make({0, 0, flags_.local_rank}, "MPI (--launcher mpi)");
        if (launch.world_size == 1) return launch;
        if (launch.world_size > 0 && (!flags_.master.empty() || (!has_mpi_ && !given_master().empty())))
            return meet_at(launch, given_master());
        require(has_mpi_,
                "%s started %s, and this build of Anvil has no MPI to connect them: build where Open MPI is installed "
                "with its headers (`make info` tells what was found), or give --master HOST:PORT, where rank 0 runs",
                launch.source.c_str(),
                launch.world_size ? format("%d ranks", launch.world_size).c_str() : "this process");
        launch.meet = Launch::Meet::by_mpi;
        return launch;
    }

    // Slurm gives the steps of batch scripts, interactive shells and the like numbers at the top of the range.
    // Processes in these steps were not started by srun, however many tasks the job has.
    bool is_srun_task() const {
        if (!has("SLURM_STEP_ID") || !has("SLURM_PROCID")) return false;
        const std::string step = text("SLURM_STEP_ID");
        char* end = nullptr;
        return std::strtoll(step.c_str(), &end, 10) < 0xfffffff0 && !*end;
    }
    Numbers slurm_numbers() const {
        return numbers("SLURM_PROCID", has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
                       "SLURM_LOCALID");
    }

    Launch by_slurm() const {
        require(is_srun_task(),
                "--launcher slurm: srun did not start this process (SLURM_STEP_ID and SLURM_PROCID are "
                "not those of a task): start it with srun");
        Launch launch = make(slurm_numbers(), "Slurm's srun");
        launch.run_key = "slurm " + text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID");
        if (launch.world_size == 1) return launch;
        std::string master = given_master();
        if (master.empty()) {
            std::string nodes;
            for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
                if (nodes.empty()) nodes = text(name);
            require(!nodes.empty(),
                    "srun started %d ranks, and neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST says where rank 0 "
                    "runs: give --master HOST:PORT",
                    launch.world_size);
            // Different jobs and steps on a host get different ports, below the system's ephemeral ports.
            const long long job = std::strtoll(text("SLURM_JOB_ID").c_str(), nullptr, 10);
            const long long step = std::strtoll(text("SLURM_STEP_ID").c_str(), nullptr, 10);
            const int port = has("MASTER_PORT") ? number("MASTER_PORT", 1) : int(12000 + (job * 97 + step) % 20000);
            master = first_slurm_host(nodes) + ":" + std::to_string(port);
        }
        return meet_at(launch, master);
    }

    Launch by_torchrun() const {
        Launch launch = make(numbers("RANK", "WORLD_SIZE", "LOCAL_RANK"),
                             has("TORCHELASTIC_RUN_ID") ? "torchrun" : "RANK and WORLD_SIZE");
        if (has("TORCHELASTIC_RUN_ID"))
            launch.run_key = "torchrun " + text("TORCHELASTIC_RUN_ID") + "." + text("TORCHELASTIC_RESTART_COUNT");
        if (launch.world_size == 1) return launch;
        require(!given_master().empty(),
                "WORLD_SIZE=%d is set in the environment and MASTER_ADDR is not: set it to the host of rank 0, or give "
                "--master HOST:PORT",
                launch.world_size);
        return meet_at(launch, given_master());
    }
};

}  // namespace

std::string Launch::describe() const {
    if (source.empty()) return "1 rank";
    return (world_size == 0 ? "ranks" : world_size == 1 ? "1 rank" : format("%d ranks", world_size)) + ", by " + source;
}

Launch detect_launch(const LaunchFlags& flags, const Environment& environment, bool has_mpi) {
    Launch launch = Detector(flags, environment, has_mpi).launch();
    require(
        flags.interface.empty() || launch.meet != Launch::Meet::by_mpi,
        "--interface %s is for ranks that meet at an address, and MPI connects these: give --master HOST:PORT as well, "
        "or mpirun's own flag (Open MPI: --mca btl_tcp_if_include %s)",
        flags.interface.c_str(), flags.interface.c_str());
    launch.interface = flags.interface;
    return launch;
}

std::unique_ptr<Ranks> join(const Launch& launch, double timeout_s, const std::function<const char*()>& stop_signal) {
    std::unique_ptr<Ranks> ranks;
    Meeting meeting;
    meeting.timeout_s = timeout_s, meeting.run_key = launch.run_key, meeting.secret = launch.secret;
    meeting.stop_signal = stop_signal, meeting.interface = launch.interface;
    meeting.numbers_anew = launch.numbers_anew, meeting.may_go_without = launch.may_go_without;
    meeting.waits_for_port = launch.waits_for_port;
    switch (launch.meet) {
        case Launch::Meet::nobody:
            ranks = std::make_unique<OneRank>();
            break;
        case Launch::Meet::by_mpi:
            ranks = join_mpi(launch.world_size, timeout_s, stop_signal);
            break;
        case Launch::Meet::at_address:
            ranks = std::make_unique<TcpRanks>(launch.rank, launch.world_size,
                                               std::vector<Address>{parse_address(launch.master)}, meeting);
            break;
    }
    if (ranks->world_size > 1) ranks->set_hosts(ranks->all_gather(host_identity()));
    if (launch.local_rank >= 0) ranks->device = launch.local_rank;
    return ranks;
}

Address parse_address(const std::string& text) {
    Address address{text, kDefaultPort};
    size_t colon = text.find(':');
    if (text.starts_with("[")) {
        const size_t close = std::min(text.find(']'), text.size());
        colon = close + 1;
        address.host = text.substr(1, close - 1);
    } else if (colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
        address.host = text.substr(0, colon);
    } else {
        colon = text.size();  // no port: a name, or a bare IPv6 address
    }
    require(!address.host.empty() && colon <= text.size() && (colon == text.size() || text[colon] == ':'),
            "--master %s: expected HOST or HOST:PORT, localhost:29500 or [::1]:29500, say", text.c_str());
    // A text that cannot be a host name is an Error at once. A name that does not resolve yet is waited for
    // (meeting.h).
    const std::string& host = address.host;
    const bool is_v6 = host.find(':') != std::string::npos;
    in6_addr v6;
    in_addr v4;
    const auto is_of_name = [](unsigned char c) { return std::isalnum(c) || std::strchr("-_.%", c) || c >= 128; };
    const bool makes_sense = is_v6 ? inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) == 1
                             : host.find_first_not_of("0123456789.") == std::string::npos
                                 ? inet_aton(host.c_str(), &v4) != 0
                                 : std::all_of(host.begin(), host.end(), is_of_name);
    require(makes_sense, "--master %s: %s is neither the name nor the number of a host", text.c_str(), host.c_str());
    if (colon == text.size()) return address;
    const std::string port = text.substr(colon + 1);
    char* end = nullptr;
    const long value = std::strtol(port.c_str(), &end, 10);
    require(!port.empty() && !*end && value >= 1 && value <= 65535,
            "--master %s: expected a port from 1 to 65535 after the colon, found \"%s\"", text.c_str(), port.c_str());
    address.port = int(value);
    return address;
}

std::string first_slurm_host(const std::string& list) {
    std::string host;
    for (size_t i = 0; i < list.size() && list[i] != ','; i++) {
        if (list[i] != '[') {
            host += list[i];
            continue;
        }
        const size_t close = list.find(']', i);
        require(close != std::string::npos, "Slurm's list of nodes %s has a [ without a ]: give --master HOST:PORT",
                list.c_str());
        const std::string inside = list.substr(i + 1, close - i - 1);
        host += inside.substr(0, inside.find_first_of(",-"));
        i = close;
    }
    return host;
}
