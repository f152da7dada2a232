// See mpi_ranks.h.
#include "llmc/comm/launch/mpi_ranks.h"
#include <mpi.h>
#include <cstring>
#include <exception>
#include <sstream>
#include <thread>
#include "llmc/base/check.h"          // ensure, require, format
#include "llmc/comm/host.h"           // host_identity
#include "llmc/comm/tcp/hmac.h"       // random_bytes
#include "llmc/comm/tcp/tcp_ranks.h"  // TcpRanks
#include "llmc/comm/watchdog.h"       // Watchdog

namespace {

constexpr int kTag = 4711;  // not used by any other message of this program

class MpiNetwork : public HostNetwork {
public:
    const char* name() const override { return "MPI"; }
    void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                  const Look& look) override {
        ensure(send_bytes <= 1 << 30 && receive_bytes <= 1 << 30);
        MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        // Send before receive. In the other order a host that arrives early is answered first and fills the line with
        // its data before it learns of ours, so the two directions take turns instead of running at once.
        if (send_bytes) MPI_Isend(send, int(send_bytes), MPI_BYTE, to, kTag, MPI_COMM_WORLD, &requests[0]);
        if (receive_bytes) MPI_Irecv(receive, int(receive_bytes), MPI_BYTE, from, kTag, MPI_COMM_WORLD, &requests[1]);
        // Never sleeps, because messages advance only inside MPI calls; yields, in case there are few cores.
        for (int turns = 0; !over(requests); turns++) {
            look(receive_bytes ? from : to);
            if (turns > 1000) std::this_thread::yield();
        }
    }

private:
    static bool over(MPI_Request (&requests)[2]) {
        int done = 0;
        MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
        return done != 0;
    }
};

// Broadcasts rank 0's text to all ranks.
std::string text_of_first(std::string text) {
    uint64_t bytes = text.size();
    MPI_Bcast(&bytes, int(sizeof(bytes)), MPI_BYTE, 0, MPI_COMM_WORLD);
    text.resize(bytes);
    MPI_Bcast(text.data(), int(bytes), MPI_BYTE, 0, MPI_COMM_WORLD);
    return text;
}

bool same_host_everywhere() {
    const std::string mine = host_identity(), first = text_of_first(mine);
    int same = mine == first, all_same = 0;
    MPI_Allreduce(&same, &all_same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all_same != 0;
}

class MpiRanks : public Ranks {
public:
    MpiRanks(int expected_world_size, double timeout_s, const std::function<const char*()>& stop_signal) {
        Meeting meeting;
        meeting.timeout_s = timeout_s, meeting.stop_signal = stop_signal;
        std::vector<Address> place;
        Listeners listeners;
        {
            Watchdog starting(0, timeout_s);  // until TcpRanks has its own
            const Watchdog::Watch watch(&starting, "start of MPI");
            start(expected_world_size);
            starting.set_rank(rank);
            const bool local = same_host_everywhere();
            std::string where;  // the port, and rank 0's addresses
            if (rank == 0) {
                listeners = listen_anywhere(local);
                where = std::to_string(listeners.port);
                for (const std::string& host : local ? std::vector<std::string>{"127.0.0.1"} : own_addresses())
                    where += " " + host;
            }
            std::istringstream parts(text_of_first(where));
            int port = 0;
            parts >> port;
            for (std::string host; parts >> host;) place.push_back({host, port});
            meeting.secret = text_of_first(rank == 0 ? random_bytes(32) : "");
        }
        require(!place.empty(),
                "the host of rank 0 has no network address (ip -br addr), and there are ranks on other hosts");
        tcp_ = std::make_unique<TcpRanks>(rank, world_size, place, meeting, &listeners);
        host_ranks = {rank};
    }
    // A rank that ends with an error does not finalize MPI, which would wait for the other ranks; the launcher ends
    // those when it sees the exit code. Otherwise MPI is finalized while the connections still exist, so that a rank
    // that dies now is noticed, too.
    ~MpiRanks() override {
        if (std::uncaught_exceptions() > 0) return;
        const Watchdog::Watch watch(watchdog(), "end of MPI");
        MPI_Finalize();
    }

    Watchdog* watchdog() override { return tcp_->watchdog(); }
    std::string name_of(int of_rank) const override { return tcp_->name_of(of_rank); }
    std::vector<std::string> all_gather(const std::string& record) override { return tcp_->all_gather(record); }
    std::string ask_first(const std::string& record, const Judge& judge) override {
        return tcp_->ask_first(record, judge);
    }
    void send_piece(int to, const std::string& bytes) override { tcp_->send_piece(to, bytes); }
    Piece next_piece() override { return tcp_->next_piece(); }
    std::unique_ptr<HostNetwork> connect_hosts(const std::vector<int>&) override {
        return std::make_unique<MpiNetwork>();
    }

private:
    std::unique_ptr<TcpRanks> tcp_;

    void start(int expected_world_size) {
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &world_size);
        try {
            require(provided >= MPI_THREAD_SERIALIZED,
                    "this MPI library does not let threads take turns "
                    "(MPI_THREAD_SERIALIZED): use another one, Open MPI, say");
            require(
                !expected_world_size || world_size == expected_world_size,
                "the launcher started %d ranks, and the MPI library of this build sees %d: they are not of the same "
                "MPI; use the mpirun that belongs to the library (`make info`), or give --master HOST:PORT, where "
                "rank 0 runs",
                expected_world_size, world_size);
        } catch (const Error&) {
            MPI_Finalize();
            throw;
        }
    }
};

}  // namespace

bool mpi_is_built_in() { return true; }

std::unique_ptr<Ranks> join_mpi(int expected_world_size, double timeout_s,
                                const std::function<const char*()>& stop_signal) {
    return std::make_unique<MpiRanks>(expected_world_size, timeout_s, stop_signal);
}
