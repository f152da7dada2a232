// See mpi_ranks.h.
#include "llmc/comm/mpi_ranks.h"
#include <mpi.h>
#include <chrono>
#include <exception>
#include <thread>
#include "llmc/base/check.h"     // require, ensure
#include "llmc/comm/watchdog.h"  // Watchdog

namespace {

constexpr int kRecordTag = 1;

// Calls done() until it is true: at first at once again, later after longer and longer sleeps.
template <class Done>
void wait_until(Done&& done) {
    using std::chrono::microseconds;
    for (int turns = 0; !done(); turns++) {
        if (turns < 100)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(microseconds(turns < 1000 ? 50 : 1000));
    }
}

void wait_for(MPI_Request& request) {
    wait_until([&] {
        const std::lock_guard lock(mpi_mutex());
        int done = 0;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        return done != 0;
    });
}

class MpiRanks : public Ranks {
public:
    MpiRanks(int expected_world_size, double timeout_s) : watchdog_(0, timeout_s) {
        const Watchdog::Watch watch(&watchdog_, "start of MPI");
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &world_size);
        watchdog_.set_rank(rank);
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
        host_ranks = {rank};
        // The launcher ends the others, too, on all hosts.
        watchdog_.add_hook([](const std::string&) { MPI_Abort(MPI_COMM_WORLD, kExitRank); });
    }
    // A rank that leaves with an error leaves MPI as it is: to end it would mean to wait for the others, and the
    // launcher ends those when it sees the exit code.
    ~MpiRanks() override {
        if (std::uncaught_exceptions() > 0) return;
        const Watchdog::Watch watch(&watchdog_, "end of MPI");
        const std::lock_guard lock(mpi_mutex());
        MPI_Finalize();
    }

    Watchdog* watchdog() override { return &watchdog_; }

    std::vector<std::string> all_gather(const std::string& record) override {
        return rank == 0 ? collect(record) : contribute(record);
    }

private:
    Watchdog watchdog_;

    std::vector<std::string> collect(const std::string& record) {
        std::vector<std::string> records(static_cast<size_t>(world_size));
        std::vector<char> arrived(static_cast<size_t>(world_size));
        std::mutex arrived_mutex;
        records[0] = record, arrived[0] = 1;
        const Watchdog::Missing missing = [&] {
            const std::lock_guard lock(arrived_mutex);
            std::vector<int> ranks;
            for (int r = 0; r < world_size; r++)
                if (!arrived[size_t(r)]) ranks.push_back(r);
            return rank_list(ranks);
        };
        const Watchdog::Watch watch(&watchdog_, "exchange of records", -1, &missing);
        for (int r = 1; r < world_size; r++)
            wait_until([&] {
                const std::lock_guard lock(mpi_mutex());
                // Of any rank, so that `missing` knows who has come.
                int found = 0, bytes = 0;
                MPI_Message message;
                MPI_Status status;
                MPI_Improbe(MPI_ANY_SOURCE, kRecordTag, MPI_COMM_WORLD, &found, &message, &status);
                if (!found) return false;
                MPI_Get_count(&status, MPI_BYTE, &bytes);
                const size_t from = size_t(status.MPI_SOURCE);
                records[from].resize(size_t(bytes));
                MPI_Mrecv(records[from].data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
                const std::lock_guard arrived_lock(arrived_mutex);
                arrived[from] = 1;
                return true;
            });
        std::vector<uint64_t> sizes;
        std::string all;
        for (const std::string& each : records) sizes.push_back(each.size()), all += each;
        broadcast_from_0(sizes, all);
        return records;
    }

    std::vector<std::string> contribute(const std::string& record) {
        const Watchdog::Watch watch(&watchdog_, "exchange of records");
        ensure(record.size() < (size_t(1) << 31));
        MPI_Request request;
        {
            const std::lock_guard lock(mpi_mutex());
            MPI_Isend(record.data(), int(record.size()), MPI_BYTE, 0, kRecordTag, MPI_COMM_WORLD, &request);
        }
        wait_for(request);
        std::vector<uint64_t> sizes(static_cast<size_t>(world_size));
        std::string all;
        broadcast_from_0(sizes, all);
        std::vector<std::string> records;
        size_t begin = 0;
        for (const uint64_t size : sizes) records.push_back(all.substr(begin, size)), begin += size;
        return records;
    }

    void broadcast_from_0(std::vector<uint64_t>& sizes, std::string& all) {
        bytes_from_0(sizes.data(), sizes.size() * sizeof(uint64_t));
        size_t total = 0;
        for (const uint64_t size : sizes) total += size;
        ensure(total < (size_t(1) << 31));
        all.resize(total);
        bytes_from_0(all.data(), total);
    }
    void bytes_from_0(void* data, size_t bytes) {
        MPI_Request request;
        {
            const std::lock_guard lock(mpi_mutex());
            MPI_Ibcast(data, int(bytes), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        }
        wait_for(request);
    }
};

}  // namespace

bool mpi_is_built_in() { return true; }

std::unique_ptr<Ranks> join_mpi(int expected_world_size, double timeout_s) {
    return std::make_unique<MpiRanks>(expected_world_size, timeout_s);
}

std::mutex& mpi_mutex() {
    static std::mutex mutex;
    return mutex;
}
