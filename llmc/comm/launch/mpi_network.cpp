// Messages between hosts by MPI.
#include "llmc/comm/launch/mpi_network.h"
#include <mpi.h>
#include <sched.h>
#include "llmc/base/check.h"  // ensure

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
            if (turns > 1000) sched_yield();
        }
    }

private:
    static bool over(MPI_Request (&requests)[2]) {
        int done = 0;
        MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
        return done != 0;
    }
};

}  // namespace

std::unique_ptr<HostNetwork> make_mpi_network() { return std::make_unique<MpiNetwork>(); }
