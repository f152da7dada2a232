// mpi_ranks.h in a build without MPI: detect_launch() asks first, and says what to do.
#include "llmc/base/check.h"      // ensure
#include "llmc/comm/mpi_ranks.h"  // join_mpi

bool mpi_is_built_in() { return false; }

std::unique_ptr<Ranks> join_mpi(int, double) {
    ensure(!"no MPI");
    return nullptr;
}

std::mutex& mpi_mutex() {
    static std::mutex mutex;
    return mutex;
}
