// mpi_ranks.h in a build without MPI: detect_launch() asks first, and says what to do.
#include "llmc/base/check.h"             // ensure
#include "llmc/comm/launch/mpi_ranks.h"  // join_mpi

bool mpi_is_built_in() { return false; }

std::unique_ptr<Ranks> join_mpi(int, double, const std::function<const char*()>&) {
    ensure(!"no MPI");
    return nullptr;
}
